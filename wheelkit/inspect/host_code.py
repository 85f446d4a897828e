"""Rules on the machine code of a wheel's libraries: instruction sets that users may lack, and code that was lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from core.model import Finding
from wheelkit.elf.x86 import MachineCode
from wheelkit.findings import finding

_SHARE = 50
"""Published libraries that ask the processor use its newer instructions in less than one of 200 functions."""

_FEW = 50
"""A library with this many functions may need no newer instruction, whatever it is built for."""


def check_instructions(codes: Mapping[str, MachineCode]) -> Iterator[Finding]:
    """Check that libraries use only instructions of the processors that the wheel is for.

    Published wheels need AVX, or since 0.12.0 AVX2, which jaxlib checks when it is imported. Libraries may have
    functions for newer processors if they ask the processor before.

    Args:
        codes: library -> its decoded functions.
    """
    for path, code in codes.items():
        if _is_built_for(code, code.avx512):
            yield _finding(path, "AVX-512", code, code.avx512)
        elif _is_built_for(code, code.avx2):
            others = [other for name, other in codes.items() if name != path and other.functions > _FEW]
            if others and 2 * sum(_is_built_for(other, other.avx2) for other in others) < len(others):
                yield _finding(path, "AVX2, FMA or BMI", code, code.avx2)
        for kind, text in code.defects:
            yield finding(kind, f"the library {text}.", member=path)
        # Large libraries have assembly code with constants between functions.
        if code.whole and code.unknown:
            text = f"the library has bytes that are no instructions in its machine code at {code.unknown[0]:#x}."
            yield finding("code-lost", text, member=path)


def _is_built_for(code: MachineCode, found: tuple[int, ...]) -> bool:
    """Return whether a library needs instructions, instead of using them where the processor has them."""
    return bool(found) and (not code.dispatches or len(found) * _SHARE > code.functions)


def _finding(path: str, name: str, code: MachineCode, found: tuple[int, ...]) -> Finding:
    text = f"the library uses {name} in {len(found)} of {code.functions} functions, the first at {found[0]:#x},"
    reason = "with few checks of the processor" if code.dispatches else "without asking the processor for it"
    return finding("isa-too-new", f"{text} {reason}.", member=path)
