"""Checks of compiled files.

Targets and kernels of code objects, handlers and dependencies of libraries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from core.errors import ElfError
from core.model import GfxTarget
from wheelkit.elf.elf_tables import ElfImage
from wheelkit.elf.snapshot import Elf
from wheelkit.gpu.code_object import HEAD_SIZE, code_object_problem, kernarg_sizes

COMMON_EXPORTS = ("jax_aiter_set_root", "jax_aiter_build_info")
"""Symbols that every library exports for the loader, besides its handlers."""
SYSTEM = (
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "ld-linux-x86-64.so.2",
)
"""Allowed dependencies of every library."""


def code_problems(
    data: bytes, label: str, target: str, kernels: Sequence[str], *, kernarg: int = 0
) -> list[str]:
    """Return the problems of a code object.

    Args:
        target: processor that the code must be for; xnack and sramecc must be "any" or
            unsupported.
        kernels: exact set of kernel symbols.
        kernarg: bytes of arguments that the host packs for a kernel; 0 disables the
            check.
    """
    if clause := code_object_problem(data[:HEAD_SIZE], GfxTarget.parse(target)):
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
            f"{label}: {name} has {size} bytes of arguments, but the host packs {kernarg}"
            for name, size in sizes.items()
            if size > kernarg
        ]
    return problems


def library_problems(path: Path, label: str, exports: Sequence[str]) -> list[str]:
    """Return the problems of a host library: handlers and forbidden dependencies.

    Args:
        exports: exact set of exported symbols. Other libraries would bind to others,
            such as those of a bundled C++ library.
    """
    try:
        elf = Elf.read(path)
    except ElfError as error:
        return [error.message.rstrip(".")]
    problems = []
    if lacking := sorted(set(exports) - set(elf.exported)):
        problems.append(f"{label} does not export {_list(lacking)}")
    if more := sorted(set(elf.exported) - set(exports)):
        problems.append(f"{label} also exports {_list(more[:5])}")
    if foreign := sorted(set(elf.needed) - set(SYSTEM)):
        problems.append(f"{label} has forbidden dependencies: {_list(foreign)}")
    # Undefined symbols of linked libraries have a version; the linker silently accepts
    # symbols without a library.
    loose = sorted(
        {s.name for s in elf.undefined if s.version is None and s.bind == "GLOBAL"}
    )
    if loose:
        problems.append(
            f"{label} uses {_list(loose[:5])}, which none of its libraries defines"
        )
    return problems


def _list(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(names) or "none"
