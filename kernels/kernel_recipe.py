"""Pure functions for the `jax_aiter` wheel.

Paths inside the wheel, its manifest and its repair plan.
"""

from __future__ import annotations

import json
import runpy
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from packaging.version import Version

from core import versions
from core.errors import RequestError
from core.frozen import frozen
from core.model import BuildRequest, GfxTarget, KernelRequest, RocmVersion
from kernels.module_catalog import load_catalog
from kernels.modules import KernelModule, ModuleKind
from wheelkit import recipe_base
from wheelkit.repair.platform_tags import PLATFORM
from wheelkit.repair.repair_plan import RepairPlan

PACKAGE = "jax_aiter"
KERNELS = f"{PACKAGE}/_kernels"
MANIFEST = f"{KERNELS}/manifest.json"
MANIFEST_SCHEMA = 1
FFI_SINCE = {(0, 1): "0.8.0", (0, 2): "0.8.2", (0, 3): "0.9.1"}
"""FFI API version -> first jaxlib (0.8.0 or later) whose XLA has that version.

Older jaxlibs refuse handlers of that version; newer ones accept them.
"""
PROJECT_FOLDER = Path(__file__).parent
"""Folder of the project `jax-aiter`, with pyproject.toml."""
ASM_ALONE = (
    "attention has AITER's assembly kernels alone; head dimensions of 64, 80, 96 and 256,"
    " float16 and windows forward need --kernel-rocm with --attention=common"
)
_VERSION_FILE = PROJECT_FOLDER / "payload" / PACKAGE / "version.py"


@frozen
class NativeFile:
    """One native file of the wheel.

    Attributes:
        path: path inside the wheel.
        file: path on disk.
        module: module that the file belongs to.
        target: processor of a code object; empty for a library.
    """

    path: str
    file: Path
    sha256: str
    module: str
    target: str = ""


def own_version() -> str:
    """Return the version in the payload's version.py, which is independent of JAX."""
    return str(runpy.run_path(str(_VERSION_FILE))["__version__"])


def version_for(
    wanted: Sequence[GfxTarget] | None,
    *,
    stripped: bool = True,
    rocm: RocmVersion | None = None,
) -> str:
    """Return the version of a wheel.

    Equal for all releases of JAX, with a local part for other contents.

    Args:
        wanted: gfx targets; None for all targets.
        rocm: the ROCm that compiles the kernels; None for the toolchain of the package
            index.
    """
    return versions.wheel_version(
        own_version(),
        rocm=rocm,
        variant=versions.variant_label(wanted, stripped=stripped),
    )


def wheel_version(request: BuildRequest, *, every_target: bool = False) -> str:
    """Return the version of the wheel of a request.

    Args:
        every_target: whether the targets were requested as `all`.
    """
    rocm = (
        request.rocm_version
        if _has_rocm(request) and request.rocm_version_extra
        else None
    )
    return version_for(
        None if every_target else request.targets, stripped=request.strip, rocm=rocm
    )


def _has_rocm(request: BuildRequest) -> bool:
    """Return whether a ROCm compiles the kernels; only then does the wheel depend on it."""
    return request.kernels is not None and request.kernels.toolchain != "pypi"


def library_path(module: KernelModule) -> str:
    """Return the path of a module's library in the wheel."""
    return f"{KERNELS}/lib/{module.library}"


def object_path(
    module: str,
    target: str,
    name: str,
    sku: str = "",
) -> str:
    """Return the path of a code object in the wheel."""
    return "/".join(filter(None, (KERNELS, "hsa", target, sku, module, name)))


def requested_modules(
    request: KernelRequest,
) -> tuple[KernelModule, ...]:
    """Return the named modules and their dependencies, or those of a complete wheel.

    Raises:
        RequestError: a module is unknown, or the toolchain cannot build it.
    """
    modules = load_catalog().chosen(request.modules or None, request.toolchain)
    if request.modules or request.attention != "asm":
        return modules
    return tuple(module for module in modules if not module.attention)


def expected_modules(
    wanted: Sequence[str], request: KernelRequest
) -> tuple[KernelModule, ...]:
    """Return the modules of a complete wheel.

    Those that the toolchain builds and that have code for a processor.

    Device-libs are excluded, because they are linked into the libraries that call them.
    """
    modules = []
    for module in requested_modules(replace(request, modules=())):
        has_code = any(map(module.supports, wanted))
        if has_code and module.kind is not ModuleKind.DEVICE_LIB:
            modules.append(module)
    return tuple(modules)


def lacks_attention(wanted: Sequence[str], modules: Sequence[KernelModule]) -> bool:
    """Report whether Composable Kernel's attention could be added to these modules."""
    attention = [
        module for module in load_catalog().modules.values() if module.attention
    ]
    possible = any(any(map(module.supports, wanted)) for module in attention)
    return possible and not any(module.attention for module in modules)


def check_jax(jax_version: str) -> None:
    """Refuse a JAX version whose XLA is older than the FFI API of the handlers.

    Raises:
        RequestError: XLA in the jaxlib of that version would refuse the handlers.
    """
    modules = load_catalog().modules.values()
    handlers = chain.from_iterable(module.ffi for module in modules)
    api = max(handler.api for handler in handlers)
    if Version(jax_version) < Version(FFI_SINCE[api]):
        raise RequestError(
            f"The kernels need FFI API {api[0]}.{api[1]}, which jaxlib {jax_version}"
            " does not have.",
            hint=(
                f"Use --jax-version={FFI_SINCE[api]} or later, or build a set without"
                " kernels."
            ),
        )


def chosen_modules(
    wanted: Sequence[str], request: KernelRequest
) -> tuple[KernelModule, ...]:
    """Return the modules to build: those that have code for one of the processors.

    Raises:
        RequestError: there are no processors, a module is unknown, a required module
            has no code for a processor, or modules are missing without --allow-partial.
    """
    if not wanted:
        raise RequestError(
            "No gfx target was named for the kernels.", hint="Name them with --targets."
        )
    chosen = requested_modules(request)
    for module in load_catalog().chosen(request.require, request.toolchain):
        if lacking := [name for name in wanted if not module.supports(name)]:
            raise RequestError(
                f"{module.name} is required but has no code for {', '.join(lacking)}.",
                hint=f"It supports {', '.join(module.targets)}.",
            )
    usable = tuple(module for module in chosen if any(map(module.supports, wanted)))
    if not usable:
        raise RequestError(
            f"None of {', '.join(m.name for m in chosen)} has code for"
            f" {', '.join(wanted)}.",
            hint="See `ci_build kernels list`.",
        )
    names = {module.name for module in usable}
    if without := sorted(set(request.require) - names):
        raise RequestError(
            f"{', '.join(without)} is required but missing in --kernel-modules.",
            hint="Add the module to --kernel-modules, or remove it from --require.",
        )
    expected = expected_modules(wanted, request)
    left_out = sorted({module.name for module in expected} - names)
    if left_out and not request.allow_partial:
        raise RequestError(
            f"The wheel would lack {', '.join(left_out)}.",
            hint="Build all modules, or add --allow-partial.",
        )
    return usable


def refuse_code_alone(modules: Sequence[KernelModule]) -> None:
    """Refuse a request of device-libs alone, which are only linked into handler libraries.

    Raises:
        RequestError: no module has a handler.
    """
    if all(module.kind is ModuleKind.DEVICE_LIB for module in modules):
        raise RequestError(
            f"{', '.join(m.name for m in modules)} is a device library without a"
            " handler.",
            hint="Name the module that needs it (kernels/modules.toml).",
        )


def manifest(
    natives: Sequence[NativeFile],
    version: str,
    wanted: Sequence[str],
    request: KernelRequest,
    *,
    missing: Sequence[str] = (),
) -> bytes:
    """Return the content of manifest.json.

    Args:
        natives: all native files of the wheel.
        wanted: requested processors.
        request: the selection of generated kernels is recorded for the modules that use
            them.
        missing: modules that a complete wheel would also contain; they mark the wheel
            as partial.
    """
    names = {native.module for native in natives}
    modules = {}
    for name in names:
        module = load_catalog().modules[name]
        modules[name] = _entry(module, natives, wanted)
        if request.instances and module.kind is ModuleKind.FFI_SHIM:
            modules[name]["instances"] = request.instances
        if module.attention:
            modules[name]["attention"] = request.attention
    body: dict[str, Any] = {
        "schema": MANIFEST_SCHEMA,
        "version": version,
        "targets": list(wanted),
        "modules": modules,
    }
    if missing:
        body["partial"] = sorted(missing)
    return (json.dumps(body, indent=1, sort_keys=True) + "\n").encode()


def _entry(
    module: KernelModule, natives: Sequence[NativeFile], wanted: Sequence[str]
) -> dict[str, Any]:
    own = [native for native in natives if native.module == module.name]
    (library,) = (native for native in own if not native.target)
    objects: dict[str, dict[str, str]] = {}
    for native in own:
        if native.target:
            below = native.path.removeprefix(f"{KERNELS}/hsa/")
            objects.setdefault(native.target, {})[below] = native.sha256
    # Processor -> number of compute units -> subfolder.
    variants: dict[str, dict[str, str]] = {}
    for group in module.objects:
        for target in wanted:
            if group.sku and target in group.targets:
                units = dict.fromkeys(map(str, group.compute_units), group.sku)
                variants.setdefault(target, {}).update(units)
    return {
        "kind": module.kind.value,
        "library": library.path.removeprefix(f"{KERNELS}/"),
        "sha256": library.sha256,
        "targets": [name for name in wanted if module.supports(name)],
        "ffi": [
            {
                "target": f.target,
                "symbol": f.symbol,
                "api": list(f.api),
                "command_buffer": f.command_buffer,
            }
            for f in module.ffi
        ],
        "objects": objects,
        "variants": variants,
    }


def repair_plan(
    request: BuildRequest,
    version: str,
    natives: Sequence[NativeFile] = (),
) -> RepairPlan:
    """Return the plan that checks the packed wheel and completes its metadata.

    Args:
        natives: native files, whose libraries become members or device members; they are
            known only after the build.
    """
    modules = load_catalog().modules
    members = []
    shims = []
    for native in natives:
        if not native.target:
            members.append(native.path)
            if modules[native.module].kind is ModuleKind.FFI_SHIM:
                shims.append(native.path)
    project = tomllib.loads(
        (PROJECT_FOLDER / "pyproject.toml").read_text(encoding="utf-8")
    )["project"]
    return RepairPlan(
        project=versions.KERNELS_PROJECT,
        version=version,
        platform=PLATFORM,
        strip=False,
        summary=(
            f"{project['description']}"
            f" ({recipe_base.content(request, rocm=_has_rocm(request))})"
        ),
        requires_python=project["requires-python"],
        requires_dist=tuple(project["dependencies"]),
        license_text=recipe_base.license_text(),
        entry_points={},
        members=tuple(members),
        device_members=tuple(shims),
    )
