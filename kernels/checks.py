"""Checks of compiled files: code objects with their target and kernels, libraries with their handlers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from core.errors import ElfError
from core.model import GfxTarget
from core.targets import machs
from wheelkit.elf.reader import ElfImage
from wheelkit.elf.snapshot import Elf
from wheelkit.gpu.code_object import HEAD_SIZE, code_object_problem, kernarg_sizes

COMMON_EXPORTS = ("jax_aiter_set_root", "jax_aiter_build_info")
"""Symbols that every library offers to the loader beside its handlers."""
SYSTEM = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2")
"""Libraries that every library may need."""


def code_problems(data: bytes, label: str, target: str, kernels: Sequence[str], *, kernarg: int = 0) -> list[str]:
    """Return the problems of a code object.

    Args:
        target: its processor; xnack and sramecc must be "any" or unsupported.
        kernels: the exact set of symbols.
        kernarg: bytes that the host packs for a kernel; 0 disables the check.
    """
    if clause := code_object_problem(data[:HEAD_SIZE], GfxTarget.parse(target), machs()):
        return [f"{label} {clause}, not for {target}"]
    try:
        sizes = kernarg_sizes(ElfImage.parse(data, label))
    except ElfError as error:
        return [error.message.rstrip(".")]
    problems = []
    if set(sizes) != set(kernels):
        problems.append(f"{label} has the kernels {_list(sizes)}, not {_list(kernels)}")
    if kernarg:
        problems += [
            f"{label}: {name} takes {size} bytes of arguments, the host packs {kernarg}"
            for name, size in sizes.items()
            if size > kernarg
        ]
    return problems


def library_problems(
    path: Path, label: str, exports: Sequence[str], sonames: Sequence[str], *, alone: bool = False
) -> list[str]:
    """Return the problems of a host library: missing handlers and forbidden dependencies.

    Args:
        exports: required symbols.
        sonames: libraries that it may need beside SYSTEM.
        alone: refuse other exports, such as a bundled C++ library that others would then bind to.
    """
    try:
        elf = Elf.read(path)
    except ElfError as error:
        return [error.message.rstrip(".")]
    problems = []
    if elf.machine != "x86_64":
        problems.append(f"{label} is for {elf.machine}")
    if lacking := sorted(set(exports) - set(elf.exported)):
        problems.append(f"{label} does not export {_list(lacking)}")
    if alone and (more := sorted(set(elf.exported) - set(exports))):
        problems.append(f"{label} also exports {_list(more[:5])}")
    if foreign := sorted(set(elf.needed) - {*SYSTEM, *sonames}):
        problems.append(f"{label} needs {_list(foreign)}")
    # Symbols of properly linked libraries have a version; the linker accepts others silently.
    loose = sorted({s.name for s in elf.undefined if s.version is None and s.bind == "GLOBAL"})
    if loose and not sonames:
        problems.append(f"{label} uses {_list(loose[:5])}, which none of its libraries defines")
    return problems


def _list(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(names) or "none"
