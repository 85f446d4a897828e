"""Machine code of gfx9 GPUs: whether a code object consists of instructions, and of those of its target.

A regular expression matches one instruction: one or two words of 4 bytes, whose fourth byte selects the encoding.
Sources: AMD, "Instinct MI300" Instruction Set Architecture, chapter 12 (microcode formats), and LLVM's AMDGPU target.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

_WHOLE, _BUDGET = 1 << 16, 1 << 14
"""Size in bytes up to which machine code is decoded as a whole, and number of bytes that are decoded of other code."""
_EVEN = b"[" + b"".join(b"\\x%02x" % byte for byte in range(0, 256, 2)) + b"]"
_TWO = b".{4}"
"""The second word of an instruction."""
_ODD = b"[" + b"".join(b"\\x%02x" % byte for byte in range(1, 256, 2)) + b"]"
_SOURCE = rb"[^\xd1-\xea\xf9\xfa\xff]"
"""A scalar register or an inline constant."""
_OPERANDS = rb"(?:" + _SOURCE + rb".|." + _ODD + rb")"
"""The source of a vector instruction, which has 9 bits; those with the ninth bit are vector registers."""
_ENCODINGS = (
    # VOP2, VOP1 and VOPC, with a literal constant, SDWA or DPP; v_madmk, v_madak, v_fmamk and v_fmaak with a constant.
    rb"[\xf9\xfa\xff]" + _EVEN + rb".[\x00-\x7f]" + _TWO, _OPERANDS + rb".[\x2e-\x31\x48-\x4b]" + _TWO,
    _OPERANDS + rb".[\x00-\x2d\x32-\x47\x4c-\x7b]", _OPERANDS + rb"(?:[\x20-\x2b\x40-\xff]\x7c|[\x40-\xff]\x7d)",
    rb"(?=.[\x00-\xb7]" + _EVEN + rb"[\x7e\x7f])" + _OPERANDS + b"..",
    # SOP2, SOPK, SOP1, SOPC and SOPP.
    rb"(?:\xff" + _SOURCE + b"|" + _SOURCE + rb"\xff|\xff\xff).[\x80-\x9a]" + _TWO,
    _SOURCE + _SOURCE + rb".[\x80-\x9a]", rb"..[\x00-\x7f]\xba" + _TWO, rb"...[\xb0-\xba]",
    rb"\xff[\x00-\x38][\x80-\xff]\xbe" + _TWO, _SOURCE + rb"[\x00-\x38][\x80-\xff]\xbe",
    rb"(?:\xff" + _SOURCE + b"|" + _SOURCE + rb"\xff)[\x00-\x14]\xbf" + _TWO, _SOURCE + _SOURCE + rb"[\x00-\x14]\xbf",
    rb"..[\x80-\x9e]\xbf",
    # VOP3 and VOP3P, SMEM, DS, FLAT, MUBUF, MTBUF and MIMG.
    rb"..(?:.\xd0|[^\x3e\x3f\x9c-\xbf]\xd1|[\x00-\x0b\x33-\x6a\x70-\x77\x80-\xa9]\xd2|[\x80-\xff]\xd3)" + _TWO,
    rb"...[\xc0\xd8-\xdb\xe0-\xe3\xe8-\xeb\xf0-\xf3]" + _TWO, rb".[\x00-\xbf].[\xdc-\xdf]" + _TWO,
)  # fmt: skip

_LITERAL = re.compile(
    rb"\xff" + _EVEN + rb".[\x00-\x7f]|(?:\xff.|.\xff).[\x80-\x9a]|..[\x00-\x7f]\xba|\xff.[\x80-\xff]\xbe"
    rb"|(?:\xff.|.\xff)[\x00-\x7f]\xbf",
    re.DOTALL,
)
"""First words of instructions whose second word is a constant, such as those of random generators."""


@functools.cache
def _code() -> re.Pattern[bytes]:
    return re.compile(b"(?:(?>" + b"|".join(_ENCODINGS) + b"))*+", re.DOTALL)


def unknown_instruction(data: bytes, section: tuple[int, int], functions: Iterable[tuple[int, int]]) -> int | None:
    """Return the offset of the first bytes that are no instruction of gfx9; None if all are instructions.

    Args:
        section: offset and size of the machine code.
        functions: offset and size of functions, which are decoded instead of long machine code, as far as they fit.
    """
    whole = section[1] <= _WHOLE
    left = _WHOLE if whole else _BUDGET
    for start, size in [section] if whole else functions:
        if size <= left:
            left -= size
            match = _code().match(data, start, start + size)
            if match and match.end() != start + size:
                return match.end()
    return None


def foreign_instruction(data: bytes, section: tuple[int, int], patterns: Iterable[bytes]) -> int | None:
    """Return the offset of the first instruction of other GPUs; None if the target has all instructions.

    Args:
        section: offset and size of the machine code.
        patterns: patterns of the fourth byte of such instructions; see `GpuLimits.foreign`.
    """
    start, size = section
    for pattern in map(re.compile, patterns):
        for match in pattern.finditer(data, start, start + size):
            at = match.start() - 3
            if at >= start and (at - start) % 4 == 0 and not (at > start and _LITERAL.match(data, at - 4)):
                return at
    return None
