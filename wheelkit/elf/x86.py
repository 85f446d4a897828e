"""Machine code of x86-64 libraries: instruction sets that functions use, and functions that cannot be decoded.

A regular expression that matches one instruction decodes 20 MB a second. Sources: Intel, "64 and IA-32 Architectures
Software Developer's Manual", volume 2, chapter 2 (formats, VEX, EVEX) and appendix A (opcode maps); System V ABI,
x86-64 supplement (micro-architecture levels).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wheelkit.elf import constants, reader
from wheelkit.elf.reader import ElfImage, Section

_WHOLE = 8 << 20
"""Size of .text in bytes up to which all functions are decoded; of larger libraries, evenly distributed ones."""
_SAMPLE = 1 << 20
_TABLE_HEAD, _TABLE_ROW = 12, 8
_TABLE_ENCODINGS = b"\x01\x1b\x03\x3b"
"""Version and encodings of .eh_frame_hdr, as linkers write it: (function, frame) relative to the table, sorted."""
_PADDING = 16
"""Number of bytes at the end of a function that may be padding, such as an odd zero byte."""
_DISPATCH = (b"\x0f\x01\xd0", ("__cpu_model", "__cpu_indicator_init"))
"""The instruction xgetbv, and symbols of libgcc, with which programs find out whether AVX can be used."""


def _bytes(fits: Callable[[int], bool]) -> bytes:
    """Return a character class of the bytes that fit."""
    return b"[" + b"".join(b"\\x%02x" % byte for byte in range(256) if fits(byte)) + b"]"


def _modes(mode: int, fits: Callable[[int], bool]) -> bytes:
    return _bytes(lambda byte: byte >> 6 == mode and fits(byte & 7))


# A ModRM byte, with the SIB byte (r/m 4) and the displacement that follow it.
_SIB = b"(?:" + _bytes(lambda byte: byte & 7 != 5) + b"|" + _bytes(lambda byte: byte & 7 == 5) + b".{4})"
_MODRM = b"(?:" + b"|".join((
    _bytes(lambda byte: byte >> 6 == 3), _modes(0, lambda rm: rm not in (4, 5)), _modes(1, lambda rm: rm != 4) + b".",
    _modes(0, lambda rm: rm == 5) + b".{4}", _modes(2, lambda rm: rm != 4) + b".{4}",
    _modes(0, lambda rm: rm == 4) + _SIB, _modes(1, lambda rm: rm == 4) + b"..",
    _modes(2, lambda rm: rm == 4) + b".{5}",
)) + b")"  # fmt: skip
_TEST = b"(?=" + _bytes(lambda byte: byte >> 3 & 7 < 2) + b")" + _MODRM
"""ModRM of the instruction test in opcodes F6 and F7, which alone of their group has an immediate."""
_IMMEDIATE = rb"[\x70-\x73\xc2\xc4-\xc6]"
"""Opcodes of the map 0F with an immediate byte, which VEX-encoded instructions share."""
_MAP_0F = b"\\x0f(?:" + b"|".join((
    rb"[\x80-\x8f].{4}", rb"[\x70-\x73\xa4\xac\xba\xc2\xc4-\xc6]" + _MODRM + b".",
    rb"[\x05\x06\x08\x09\x0b\x0e\x30-\x37\x77\xa0-\xa2\xa8-\xaa\xc8-\xcf]", rb"\x38." + _MODRM,
    rb"\x3a." + _MODRM + b".", rb"[^\x04\x0f\x24-\x27\x38\x3a\x80-\x8f]" + _MODRM,
)) + b")"  # fmt: skip


def _opcodes(word: int, moved: int) -> bytes:
    """Return the pattern of an instruction after its prefixes.

    Args:
        word: size of most immediates in bytes.
        moved: size of the immediate of mov.
    """
    size = b".{%d}" % word
    return b"(?:" + b"|".join((
        _bytes(lambda byte: byte & 0xC7 < 4 or 0x84 <= byte <= 0x8F or byte in b"\x63\xfe\xff") + _MODRM,
        _MAP_0F,
        rb"[\x50-\x5f\x6c\x6d\x90-\x99\x9b-\x9f\xa4-\xa7\xaa-\xaf\xc3\xc9\xcc\xd7\xf4\xf8-\xfd]",
        rb"[\xd0-\xd3\xd8-\xdf]" + _MODRM,
        rb"[\x6b\x80\x83\xc0\xc1\xc6]" + _MODRM + b".",
        rb"[\x69\x81\xc7]" + _MODRM + size,
        _bytes(lambda byte: byte & 0xC7 == 4 or 0x70 <= byte <= 0x7F or 0xB0 <= byte <= 0xB7 or 0xE0 <= byte <= 0xE3
               or byte in b"\x6a\xa8\xcd\xeb") + b".",
        _bytes(lambda byte: byte & 0xC7 == 5 or byte in b"\x68\xa9") + size,
        rb"[\xe8\xe9].{4}", rb"[\xb8-\xbf].{%d}" % moved, rb"\xc2..",
        rb"\xf6(?:" + _TEST + b".|" + _MODRM + b")", rb"\xf7(?:" + _TEST + size + b"|" + _MODRM + b")",
    )) + b")"  # fmt: skip


_WIDE, _REX = rb"[\x48-\x4f]", rb"[\x40-\x47]?"
_PREFIX = rb"[\x26\x2e\x36\x3e\x64\x65\x67\xf0\xf2\xf3]"
_PLAIN = b"(?:" + _WIDE + _opcodes(4, 8) + b"|" + _REX + _opcodes(4, 4) + b")"
_SHORT = b"(?:" + _WIDE + _opcodes(4, 8) + b"|" + _REX + _opcodes(2, 2) + b")"
_VEX = b"|".join((
    rb"(?:\xc5.|\xc4[\x01\x21\x41\x61\x81\xa1\xc1\xe1].)(?:\x77|" + _IMMEDIATE + _MODRM + b"."
    rb"|[^\x70-\x73\x77\xc2\xc4-\xc6]" + _MODRM + b")",
    rb"\xc4[\x02\x22\x42\x62\x82\xa2\xc2\xe2].." + _MODRM, rb"\xc4[\x03\x23\x43\x63\x83\xa3\xc3\xe3].." + _MODRM + b".",
))  # fmt: skip
_INSTRUCTION = b"|".join((
    _PLAIN, _VEX, _PREFIX + b"+" + _PLAIN, _PREFIX + rb"*\x66(?:\x66|" + _PREFIX + b")*" + _SHORT,
))  # fmt: skip
_LEVEL_3 = (
    rb"\xc4(?:[\x02\x22\x42\x62\x82\xa2\xc2\xe2].[\x16\x36\x45-\x47\x58-\x5a\x78\x79\x8c\x8e\x90-\x93\x96-\xbf\xf2\xf3"
    rb"\xf5-\xf7]|[\x03\x23\x43\x63\x83\xa3\xc3\xe3].[\x00-\x02\x38\x39\x46\xf0])"
)
"""Instructions of AVX2, FMA and BMI, which x86-64-v3 has and AVX has not."""

_EVEX = 0x62
"""First byte of the instructions of AVX-512."""


class _Patterns:
    """Compiled patterns; compiling them takes longer than most commands.

    Attributes:
        plain: instructions up to the first one of level 3.
        every: instructions up to the first one of AVX-512.
        level_3: start of an instruction of level 3.
    """

    def __init__(self) -> None:
        self.plain = re.compile(b"(?:(?!" + _LEVEL_3 + b")(?>" + _INSTRUCTION + b"))*+", re.DOTALL)
        self.every = re.compile(b"(?:(?>" + _INSTRUCTION + b"))*+", re.DOTALL)
        self.level_3 = re.compile(_LEVEL_3, re.DOTALL)


_patterns = functools.cache(_Patterns)


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineCode:
    """Decoded functions of a library.

    Attributes:
        functions: number of decoded functions.
        avx2: addresses of instructions of AVX2, FMA or BMI; at most one for each function.
        avx512: addresses of instructions of AVX-512; at most one for each function.
        unknown: addresses at which functions cannot be decoded.
        whole: whether all functions were decoded.
        dispatches: whether code asks the processor which instructions it has.
    """

    functions: int
    avx2: tuple[int, ...]
    avx512: tuple[int, ...]
    unknown: tuple[int, ...]
    whole: bool
    dispatches: bool


def read_code(path: Path) -> MachineCode | None:
    """Decode the functions of an x86-64 library; None without a table of its functions (.eh_frame_hdr).

    Raises:
        ElfError: the file is not an ELF file, or is damaged.
    """
    with reader.open_image(path) as image:
        text = image.section(".text")
        if image.machine != constants.EM_X86_64 or text is None or text.type != constants.SHT_PROGBITS:
            return None
        functions = list(_functions(image, text))
        return _decoded(image, text, functions) if functions else None


def _functions(image: ElfImage, text: Section) -> Iterator[tuple[int, int]]:
    """Yield offsets of the start and end of functions, from the table by which exceptions find their frames."""
    table = next((segment for segment in image.segments if segment.type == constants.PT_GNU_EH_FRAME), None)
    data = image.read(table.offset, table.file_size) if table else b""
    if table is None or not data.startswith(_TABLE_ENCODINGS):
        return
    count = min(int.from_bytes(data[8:_TABLE_HEAD], "little"), (len(data) - _TABLE_HEAD) // _TABLE_ROW)
    starts = memoryview(data[_TABLE_HEAD : _TABLE_HEAD + count * _TABLE_ROW]).cast("i")[::2]
    step = 1 if text.size <= _WHOLE else max(1, text.size // _SAMPLE)
    shift, end = table.address - text.address + text.offset, text.offset + text.size
    for number in range(0, count, step):
        start = starts[number] + shift
        stop = min(starts[number + 1] + shift, end) if number + 1 < count else end
        if text.offset <= start < stop:
            yield start, stop


def _decoded(image: ElfImage, text: Section, functions: Sequence[tuple[int, int]]) -> MachineCode:
    patterns, shift = _patterns(), text.address - text.offset
    avx2: list[int] = []
    avx512: list[int] = []
    unknown: list[int] = []
    for start, stop in functions:
        at = _end(patterns.plain, image, start, stop)
        if at < stop and patterns.level_3.match(image.data, at, stop):
            avx2.append(at + shift)
            at = _end(patterns.every, image, at, stop)
        if at < stop and image.data[at] == _EVEX:
            avx512.append(at + shift)
        elif stop - at > _PADDING:
            unknown.append(at + shift)
    xgetbv, symbols = _DISPATCH
    dispatches = image.data.find(xgetbv, text.offset, text.offset + text.size) >= 0 or any(
        name in symbols for _, name in image.dynamic_symbols()
    )
    return MachineCode(
        functions=len(functions), avx2=tuple(avx2), avx512=tuple(avx512), unknown=tuple(unknown),
        whole=text.size <= _WHOLE, dispatches=dispatches,
    )  # fmt: skip


def _end(pattern: re.Pattern[bytes], image: ElfImage, start: int, stop: int) -> int:
    """Return the end of the instructions that a pattern matches from an offset on."""
    match = pattern.match(image.data, start, stop)
    return match.end() if match else start
