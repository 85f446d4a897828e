"""The `jax_aiter` wheel: where everything lies in it, what its manifest says, and what a repair makes of it.

Pure: what was built comes in as paths and digests.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from core import targets, versions
from core.errors import RequestError
from core.model import BuildRequest, KernelRequest
from kernels.modules import Catalog, Kind, Module, load_catalog
from wheelkit import recipe_base
from wheelkit.repair.plan import RepairPlan

PROJECT = "jax-aiter"
PACKAGE = "jax_aiter"
KERNELS = f"{PACKAGE}/_kernels"
MANIFEST = f"{KERNELS}/manifest.json"
TAG = "py3-none-manylinux_2_28_x86_64"
MANIFEST_SCHEMA = 1
LAUNCHERS_LIMIT = 4_000_000
"""Bytes of a wheel with the co-launchers for gfx942 and gfx950."""
FFI_SINCE = {(0, 1): "0.8.0", (0, 2): "0.8.2", (0, 3): "0.9.1"}
"""FFI API -> the first jaxlib from 0.8.0 on whose XLA has it, as c_api.h in jaxlib's wheels says; older ones refuse
such handlers, newer ones take them."""
_PAYLOAD = Path(__file__).with_name("payload") / PACKAGE
_REQUIRES_PYTHON = ">=3.11"


@dataclass(frozen=True, kw_only=True, slots=True)
class Native:
    """One native file of the wheel.

    Attributes:
        path: inside the wheel.
        file: where it lies now.
        module: that it belongs to.
        target: processor of a code object; empty for a library.
    """

    path: str
    file: Path
    sha256: str
    module: str
    target: str = ""


def library_path(module: Module) -> str:
    """Where a module's library lies in the wheel."""
    return f"{KERNELS}/lib/{module.library}"


def object_path(module: str, target: str, name: str, sku: str = "") -> str:
    """Where a code object lies in the wheel."""
    return "/".join(filter(None, (KERNELS, "hsa", target, sku, module, name)))


def expected_modules(catalog: Catalog, wanted: Sequence[str], toolchain: str) -> tuple[Module, ...]:
    """The modules of a complete wheel for some processors: all that the toolchain builds and one of them has.

    A device-lib is none of them: it is in the library of what calls it.
    """
    chosen = [module for module in catalog.chosen(None, toolchain) if module.kind is not Kind.DEVICE_LIB]
    return tuple(module for module in chosen if any(map(module.supports, wanted)))


def check_jax(catalog: Catalog, jax_version: str) -> None:
    """A wheel goes with the jaxlib of its own version: that one has to take the handlers.

    Raises:
        RequestError: its XLA is older than the FFI that they are compiled against.
    """
    api = max(handler.api for module in catalog.modules.values() for handler in module.ffi)
    if Version(jax_version) < Version(FFI_SINCE[api]):
        raise RequestError(
            f"The kernels are made for FFI API {api[0]}.{api[1]}, and were not tried with jaxlib {jax_version}.",
            hint=f"Give --jax-version={FFI_SINCE[api]} or a later one, or make a set without kernels.",
        )


def chosen_modules(catalog: Catalog, wanted: Sequence[str], request: KernelRequest) -> tuple[Module, ...]:
    """The modules to build for some processors: those that one of them has code for.

    Raises:
        RequestError: no processors, unknown modules, a required module without code for a processor, or a wheel that
            would lack modules without being allowed to.
    """
    if not wanted:
        raise RequestError("No gfx target was named for the kernels.", hint="Name them with --targets.")
    chosen = catalog.chosen(request.modules or None, request.toolchain)
    for module in catalog.chosen(request.require, request.toolchain) if request.require else ():
        if lacking := [name for name in wanted if not module.supports(name)]:
            raise RequestError(
                f"{module.name} is required and has no code for {', '.join(lacking)}.",
                hint=f"It supports {', '.join(module.targets)}.",
            )
    found = tuple(module for module in chosen if any(map(module.supports, wanted)))
    if not found:
        raise RequestError(
            f"None of {', '.join(m.name for m in chosen)} has code for {', '.join(wanted)}.",
            hint="See `ci_build kernels list`.",
        )
    if without := sorted(set(request.require) - {module.name for module in found}):
        raise RequestError(
            f"{', '.join(without)} is required, and --modules leaves it out.", hint="Name it there too, or not at all."
        )
    expected = {module.name for module in expected_modules(catalog, wanted, request.toolchain)}
    left_out = sorted(expected - {module.name for module in found})
    if left_out and not request.allow_partial:
        raise RequestError(
            f"The wheel would lack {', '.join(left_out)}.", hint="Build all modules, or add --allow-partial."
        )
    return found


def refuse_code_alone(modules: Sequence[Module]) -> None:
    """A device-lib is no library of a wheel: it is linked into what calls it.

    Raises:
        RequestError: there is nothing else among the modules.
    """
    if all(module.kind is Kind.DEVICE_LIB for module in modules):
        raise RequestError(
            f"{', '.join(m.name for m in modules)} is code that handlers are linked with, and no handler was named.",
            hint="Name the module that needs it, see modules.toml; --shard=1/1 compiles the code alone.",
        )


def manifest(
    catalog: Catalog, natives: Sequence[Native], version: str, wanted: Sequence[str], *, missing: Sequence[str] = (),
    instances: str = "",
) -> bytes:  # fmt: skip
    """The text of manifest.json.

    Args:
        natives: every native file of the wheel.
        wanted: processors that were asked for.
        missing: modules that a complete wheel would hold; they mark it as partial.
        instances: what the names of generated kernels had to match; it marks their modules.
    """
    names = {native.module for native in natives}
    order = [name for name in catalog.modules if name in names]
    body: dict[str, Any] = {
        "schema": MANIFEST_SCHEMA,
        "version": version,
        "targets": list(wanted),
        "load_order": order,
        "modules": {name: _entry(catalog.modules[name], natives, wanted) for name in order},
    }
    for name in order:
        if instances and catalog.modules[name].kind is Kind.FFI_SHIM:
            body["modules"][name]["instances"] = instances
    if missing:
        body["partial"] = sorted(missing)
    return (json.dumps(body, indent=1, sort_keys=True) + "\n").encode()


def _entry(module: Module, natives: Sequence[Native], wanted: Sequence[str]) -> dict[str, Any]:
    own = [native for native in natives if native.module == module.name]
    (library,) = (native for native in own if not native.target)
    objects: dict[str, dict[str, str]] = {}
    for native in own:
        if native.target:
            below = native.path.removeprefix(f"{KERNELS}/hsa/")
            objects.setdefault(native.target, {})[below] = native.sha256
    return {
        "kind": module.kind.value,
        "library": library.path.removeprefix(f"{KERNELS}/"),
        "sha256": library.sha256,
        "needs": [] if module.kind is Kind.FFI_SHIM else list(module.needs),
        "targets": [name for name in wanted if module.supports(name)],
        "ffi": [
            {"target": f.target, "symbol": f.symbol, "api": list(f.api), "command_buffer": f.command_buffer}
            for f in module.ffi
        ],
        "objects": objects,
        "variants": _variants(module, wanted),
    }


def _variants(module: Module, wanted: Sequence[str]) -> dict[str, dict[str, str]]:
    """Processor -> number of compute units -> subfolder; processors whose code is for all of them are left out."""
    told: dict[str, dict[str, str]] = {}
    for objects in module.objects:
        for target in (name for name in wanted if name in objects.targets and objects.sku):
            told.setdefault(target, {}).update({str(units): objects.sku for units in objects.compute_units})
    return told


def repair_plan(request: BuildRequest, version: str, catalog: Catalog | None = None) -> RepairPlan:
    """What to make of the wheel as it was packed: its Python files, true metadata, a verdict on its platform.

    Which libraries it has is known once it is packed: see `with_members`.
    """
    catalog = catalog or load_catalog()
    sonames = frozenset(name for module in catalog.modules.values() for name in module.sonames)
    return RepairPlan(
        project=PROJECT,
        version=version,
        covers=targets.covers(),
        machs=targets.machs(),
        strip=False,
        summary=f"AITER's kernels for JAX on AMD GPUs ({recipe_base.content(request)})",
        requires_python=_REQUIRES_PYTHON,
        requires_dist=requirements(version),
        license_text=recipe_base.license_text(),
        entry_points={},
        files=payload_files(version),
        allowed_sonames=sonames,
    )


def with_members(plan: RepairPlan, catalog: Catalog, natives: Sequence[Native]) -> RepairPlan:
    """The plan for a wheel with these files: exactly their libraries, and device code in those that are for it."""
    libraries = [native for native in natives if not native.target]
    coded = [native.path for native in libraries if catalog.modules[native.module].kind is Kind.FFI_SHIM]
    return replace(plan, members=tuple(native.path for native in libraries), device_members=tuple(coded))


def requirements(version: str) -> tuple[str, ...]:
    """Requires-Dist: the jaxlib of the set, whose FFI the handlers know, and what the Python files import."""
    return (versions.jaxlib_requirement(version), f"jax>={Version(version).base_version}", "numpy")


def payload_files(version: str) -> dict[str, bytes]:
    """The Python files of the wheel: path inside it -> content."""
    files = {
        f"{PACKAGE}/{path.relative_to(_PAYLOAD).as_posix()}": path.read_bytes()
        for path in sorted(_PAYLOAD.rglob("*"))
        if path.is_file() and path.suffix in (".py", ".pyi", ".typed", ".toml", ".json")
    }
    stamp = f'"""The version of this wheel."""\n\n__version__ = {version!r}\n'
    return files | {f"{PACKAGE}/version.py": stamp.encode()}
