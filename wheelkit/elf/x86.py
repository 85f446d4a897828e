"""Machine code of x86-64 libraries: instruction sets that functions use, and functions that cannot be decoded.

Source: System V ABI, x86-64 supplement (micro-architecture levels).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wheelkit.elf import constants
from wheelkit.elf.reader import ElfImage, Section

try:
    from iced_x86 import CpuidFeature, Decoder, EncodingKind
except ImportError:  # it has wheels for x86-64 machines only
    CAN_DECODE = False
else:
    CAN_DECODE = True
    _LEVEL_3 = frozenset({CpuidFeature.AVX2, CpuidFeature.FMA, CpuidFeature.BMI1, CpuidFeature.BMI2})
    _LEVEL_4 = frozenset(value for name, value in vars(CpuidFeature).items() if name.startswith("AVX512"))

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


def read_code(image: ElfImage) -> MachineCode | None:
    """Decode the functions of an x86-64 library; None without a table of its functions (.eh_frame_hdr).

    The result is also None on machines that CAN_DECODE nothing.

    Raises:
        ElfError: the file is damaged.
    """
    text = image.section(".text")
    if not CAN_DECODE or image.machine != constants.EM_X86_64 or text is None or text.type != constants.SHT_PROGBITS:
        return None
    functions = list(_functions(image, text))
    if not functions:
        return None
    code, (xgetbv, symbols) = image.contents(text), _DISPATCH
    found: dict[str, list[int]] = {"avx2": [], "avx512": [], "unknown": []}
    for start, stop in functions:
        for kind, address in _first(code[start:stop], text.address + start).items():
            found[kind].append(address)
    return MachineCode(
        functions=len(functions), avx2=tuple(found["avx2"]), avx512=tuple(found["avx512"]),
        unknown=tuple(found["unknown"]), whole=text.size <= _WHOLE,
        dispatches=xgetbv in code or any(name in symbols for _, name in image.dynamic_symbols()),
    )  # fmt: skip


def _functions(image: ElfImage, text: Section) -> Iterator[tuple[int, int]]:
    """Yield the start and end of functions in .text, from the table by which exceptions find their frames."""
    table = next((segment for segment in image.segments if segment.type == constants.PT_GNU_EH_FRAME), None)
    data = image.read(table.offset, table.file_size) if table else b""
    if table is None or not data.startswith(_TABLE_ENCODINGS):
        return
    count = min(int.from_bytes(data[8:_TABLE_HEAD], "little"), (len(data) - _TABLE_HEAD) // _TABLE_ROW)
    starts = memoryview(data[_TABLE_HEAD : _TABLE_HEAD + count * _TABLE_ROW]).cast("i")[::2]
    step = 1 if text.size <= _WHOLE else max(1, text.size // _SAMPLE)
    shift = table.address - text.address
    for number in range(0, count, step):
        start = starts[number] + shift
        stop = min(starts[number + 1] + shift, text.size) if number + 1 < count else text.size
        if 0 <= start < stop:
            yield start, stop


def _first(code: bytes, address: int) -> dict[str, int]:
    """Return the addresses of the first instruction of AVX2, of AVX-512, and of the first bytes that are none."""
    found: dict[str, int] = {}
    for instruction in Decoder(64, code, ip=address):
        if instruction.is_invalid:
            if address + len(code) - instruction.ip > _PADDING:
                found["unknown"] = instruction.ip
            break
        if instruction.encoding != EncodingKind.LEGACY:
            features = set(instruction.cpuid_features())
            if features & _LEVEL_4:
                found.setdefault("avx512", instruction.ip)
            elif features & _LEVEL_3:
                found.setdefault("avx2", instruction.ip)
    return found
