"""Content of _kernels/manifest.json.

The wheel's modules, their targets, and the digest of every file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jax_aiter._errors import ManifestError
from jax_aiter._table import GENERICS

SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Handler:
    """An FFI handler of a module.

    Attributes:
        target: name of the custom call.
        symbol: symbol of the handler.
        api: XLA FFI API that the handler was compiled against, (major, minor).
        command_buffer: whether the handler may be captured into a command buffer.
    """

    target: str
    symbol: str
    api: tuple[int, int]
    command_buffer: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    """A kernel module: one library and its code objects.

    Attributes:
        name: name of the module.
        kind: co-launcher, portable, device-lib or ffi-shim.
        library: path below _kernels.
        sha256: digest of the library.
        targets: gfx targets of the module's code, which may include generic ones.
        handlers: handlers that the module registers with XLA.
        objects: digests of code objects by path below _kernels/hsa.
        variants: supported numbers of compute units by target, if code objects are for
            certain variants only.
        attention: Composable Kernel's kernels of attention in the library: common or
            all; empty for other modules.
    """

    name: str
    kind: str
    library: str
    sha256: str
    targets: tuple[str, ...]
    handlers: tuple[Handler, ...]
    objects: Mapping[str, str]
    variants: Mapping[str, frozenset[int]]
    attention: str = ""

    def runs_on(self, gfx: str) -> bool:
        """Return whether a device, such as "gfx942", runs code of this module.

        Only the portable kernels are compiled for generic targets; each of AITER's code
        objects is for one processor. Code for certain features, such as
        "gfx942:xnack+", needs a device that reports them.
        """
        processor, *features = gfx.split(":")
        for target in self.targets:
            name, *required = target.split(":")
            covered = processor == name or (
                self.kind == "portable" and processor in GENERICS.get(name, ())
            )
            if covered and set(required) <= set(features):
                return True
        return False

    def fits(self, gfx: str, compute_units: int) -> bool:
        """Return whether the module has code for a device with this number of compute units."""
        numbers = self.variants.get(gfx.partition(":")[0])
        return numbers is None or compute_units in numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Content of manifest.json.

    Attributes:
        version: version of the wheel.
        targets: gfx targets of the wheel.
        modules: modules by name.
    """

    version: str
    targets: tuple[str, ...]
    modules: Mapping[str, Module]
    _by_target: Mapping[str, str] = field(default_factory=dict)

    @property
    def attention(self) -> str:
        """Kernels of attention: asm for AITER's alone, common or all."""
        kinds = {module.attention for module in self.modules.values()} - {""}
        return min(kinds, default="asm")

    def module_of(self, target: str) -> Module | None:
        """Return the module that provides a custom call, or None."""
        name = self._by_target.get(target)
        return None if name is None else self.modules[name]


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest.

    Raises:
        FileNotFoundError: the file does not exist.
        ManifestError: the manifest is damaged or has another schema.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as problem:
        raise ManifestError(f"{path} cannot be read: {problem}.") from problem
    try:
        return _parse(data)
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        why = f"{problem} is missing" if isinstance(problem, KeyError) else str(problem)
        raise ManifestError(
            f"{path} is not a valid manifest of kernel modules: {why}."
        ) from problem


def _parse(data: Any) -> Manifest:
    if data["schema"] != SCHEMA:
        raise ValueError(
            f"its schema is {data['schema']!r}, but this version of jax_aiter reads"
            f" schema {SCHEMA}"
        )
    modules = {}
    by_target = {}
    for name, row in data["modules"].items():
        modules[name] = module = _module(name, row)
        for handler in module.handlers:
            by_target[handler.target] = name
    return Manifest(
        version=data["version"],
        targets=tuple(data["targets"]),
        modules=modules,
        _by_target=by_target,
    )


def _module(name: str, row: Mapping[str, Any]) -> Module:
    handlers = [
        Handler(**{**entry, "api": tuple(entry["api"])}) for entry in row["ffi"]
    ]
    objects: dict[str, str] = {}
    for files in row["objects"].values():
        objects |= files
    variants = {}
    for gfx, numbers in row.get("variants", {}).items():
        variants[gfx] = frozenset(map(int, numbers))
    return Module(
        name=name,
        kind=row["kind"],
        library=row["library"],
        sha256=row["sha256"],
        targets=tuple(row["targets"]),
        handlers=tuple(handlers),
        objects=objects,
        variants=variants,
        attention=row.get("attention", ""),
    )
