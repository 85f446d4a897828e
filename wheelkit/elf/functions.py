"""Functions of a library, from the table by which exceptions find their frames, and tables that must agree with them.

Sources: LSB Core, "Exception Frames" (.eh_frame_hdr, .eh_frame); System V ABI, x86-64 supplement. Compilers write a
frame for each function, so that pointers, exported functions and constructors lead to the beginning of one. Only the
start-up code of compilers, in .init_array and .fini_array, has no frames.
"""

from __future__ import annotations

import functools
import operator
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

from wheelkit.elf import constants
from wheelkit.elf.reader import ElfImage, Section

_HEAD, _ROW = 12, 8
_ENCODINGS = b"\x01\x1b\x03\x3b"
"""Version and encodings of .eh_frame_hdr, as linkers write it: (function, frame) relative to the table, sorted."""
_FRAME = struct.Struct("<IIi")
"""Start of a frame: size, offset back to the common information, and the function relative to the field."""
_HANDLERS, _RELATIVE_INT, _MOST_AUGMENTATION = 17, 0x1B, 24
"""Offset of a table's address in a frame: after size, offset, function, its size, and one byte of length."""
_OMITTED, _TYPE_ENCODINGS = 0xFF, (0x00, 0x03, 0x0B, 0x1B, 0x9B, 0xFF)
"""Encodings at the start of a table of handlers: start of landing pads, and types."""
_MOST_FRAMES, _SAMPLE = 8192, 2048
"""Number of frames up to which all are read, and number of evenly distributed ones that are read of others."""
_POINTER, _IRELATIVE = 8, 37
_ALIGNMENT = 16
"""Alignment of functions without frames."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Functions:
    """Functions of .text, sorted.

    Attributes:
        starts: addresses.
        table: address of the table.
        rows: rows of the table: function and frame in turn, relative to the table.
    """

    text: Section
    starts: Sequence[int]
    table: int
    rows: Sequence[int]

    @classmethod
    def read(cls, image: ElfImage) -> Functions | None:
        """Return the functions; None without a table in the form of linkers, or without .text of machine code."""
        text = image.section(".text")
        table = next((segment for segment in image.segments if segment.type == constants.PT_GNU_EH_FRAME), None)
        if text is None or text.type != constants.SHT_PROGBITS or table is None:
            return None
        data = image.read(table.offset, table.file_size)
        if not data.startswith(_ENCODINGS):
            return None
        count = min(int.from_bytes(data[8:_HEAD], "little"), (len(data) - _HEAD) // _ROW)
        rows = memoryview(data[_HEAD : _HEAD + count * _ROW]).cast("i").tolist()
        starts = [table.address + start for start in rows[::2]]
        return cls(text=text, starts=starts, table=table.address, rows=rows) if starts else None

    @property
    def end(self) -> int:
        """Address of the end of .text."""
        return self.text.address + self.text.size

    def range_of(self, start: int) -> tuple[int, int]:
        """Return start and end of the function at an address; an empty range if none begins there."""
        number = bisect_left(self.starts, start)
        if number == len(self.starts) or self.starts[number] != start or not self.text.address <= start < self.end:
            return start, start
        return start, min(self.starts[number + 1], self.end) if number + 1 < len(self.starts) else self.end

    def ranges(self, step: int = 1) -> Iterator[tuple[int, int]]:
        """Yield start and end of every function of .text, or of one in `step`."""
        for number in range(0, len(self.starts), step):
            start = self.starts[number]
            stop = min(self.starts[number + 1], self.end) if number + 1 < len(self.starts) else self.end
            if self.text.address <= start < stop:
                yield start, stop


def constructors(image: ElfImage) -> Iterator[int]:
    """Yield the addresses of the functions that the loader calls, from their relocations, which linkers sort."""
    tags, words = _dynamic(image), _relocations(image)
    place = tags.get(constants.DT_INIT_ARRAY, 0)
    stop = place + tags.get(constants.DT_INIT_ARRAYSZ, 0)
    row = bisect_left(range(len(words) // 3), place, key=lambda number: words[3 * number])
    while 3 * row < len(words) and words[3 * row] < stop:
        if words[3 * row + 1] == constants.R_X86_64_RELATIVE:
            yield words[3 * row + 2]
        row += 1


def function_problems(image: ElfImage, functions: Functions, *, assembly: bool) -> Iterator[tuple[str, str]]:
    """Yield the code of a finding and a clause for each kind of defect.

    Args:
        assembly: whether the library has functions without frames, which begin at multiples of 16.

    Raises:
        ElfError: a table lies outside of the file.
    """
    if problem := _frame_problem(image, functions):
        yield "unwind-table-wrong", problem
        return
    known = set(functions.starts)
    yield from _pointer_problems(image, functions, known, assembly=assembly)
    for symbol, name in image.dynamic_symbols():
        if symbol.section and functions.text.address <= symbol.value < functions.end:
            if symbol.info & 0xF != constants.STT_FUNC:
                yield "layout-wrong", f"exports the function {name} as a symbol of type {symbol.info & 0xF}"
                break
            if symbol.value not in known:
                yield "layout-wrong", f"exports {name} at {symbol.value:#x}, where no function begins"
                break


def _frame_problem(image: ElfImage, functions: Functions) -> str:
    """Return a clause about a frame that is not that of its function; empty without a defect."""
    starts, rows, table = functions.starts, functions.rows, functions.table
    if any(map(int.__gt__, starts, starts[1:])):
        return "has a .eh_frame_hdr that is not sorted, so that exceptions do not find their handlers"
    frames = image.section(".eh_frame")
    if frames is None:
        return ""
    handlers: dict[int, int] = {}
    content = memoryview(image.data)[frames.offset : frames.offset + frames.file_size]
    try:
        for row in range(0, len(starts), 1 if len(starts) <= _MOST_FRAMES else len(starts) // _SAMPLE):
            at = table + rows[2 * row + 1] - frames.address
            size, back, start = _FRAME.unpack_from(content, at) if at >= 0 else (0, 0, 0)
            common = at + 4 - back
            if not size or not 0 <= common < at or frames.address + at + 8 + start != starts[row]:
                return f"has no frame of the function at {starts[row]:#x}, by which exceptions find their handlers"
            if common not in handlers:
                handlers[common] = _handler_offset(bytes(content[common + 9 : common + 9 + _MOST_AUGMENTATION]))
            # The address of the handlers follows the length of the augmentation data.
            if table_offset := handlers[common]:
                pointer = int.from_bytes(content[at + table_offset : at + table_offset + 4], "little", signed=True)
                address = frames.address + at + table_offset + pointer
                if pointer and not _has_handlers(image, address):
                    return f"has no table at {address:#x} of the handlers of the function at {starts[row]:#x}"
    except struct.error:
        return "has frames outside of .eh_frame, by which exceptions find their handlers"
    finally:
        content.release()
    return ""


def _handler_offset(augmentation: bytes) -> int:
    """Return the offset in a frame of the address of its table of handlers; 0 if frames have none.

    Args:
        augmentation: text and encodings of the common information.
    """
    text, _, rest = augmentation.partition(b"\0")
    # Alignments and the return register have one byte each; then the length, and an encoding for each letter.
    encodings = iter(rest[4:])
    for letter in text[1:].decode("ascii", errors="replace") if text.startswith(b"z") else "":
        encoding = next(encodings, 0)
        if letter == "P":
            for _ in range(4):
                next(encodings, 0)
        if letter == "L":
            return _HANDLERS if encoding == _RELATIVE_INT else 0
    return 0


def _has_handlers(image: ElfImage, address: int) -> bool:
    """Return whether a table of handlers begins with encodings that compilers use."""
    section = image.section(".gcc_except_table")
    if section is None or not section.address <= address < section.address + section.size - 3:
        return section is None
    start, types = image.read(section.offset + address - section.address, 2)
    return start == _OMITTED and types in _TYPE_ENCODINGS


def _pointer_problems(
    image: ElfImage, functions: Functions, known: set[int], *, assembly: bool
) -> Iterator[tuple[str, str]]:
    """Yield a clause about the first relocated pointer to the middle of a function."""
    tags, words = _dynamic(image), _relocations(image)
    infos, addends = words[1::3].tolist(), words[2::3].tolist()
    count = infos.count(constants.R_X86_64_RELATIVE)
    places = words[: 3 * count : 3].tolist()
    if constants.R_X86_64_RELATIVE in infos[count:] or any(map(int.__gt__, places, places[1:])):
        yield "relocation-wrong", "has relocations of pointers that are out of order, as no linker writes them"
        return
    if functools.reduce(operator.or_, places, 0) % _POINTER:
        yield "relocation-wrong", "has a relocated pointer at an address that is no multiple of 8"
        return
    called = [a for info, a in zip(infos[count:], addends[count:], strict=True) if info == _IRELATIVE]
    if not known.issuperset(called):
        yield "relocation-wrong", "has a resolver of a function, where no function begins"
        return
    relative = set(addends[:count])
    first, last = functions.text.address, functions.end
    strays = {addend for addend in relative - known if first <= addend < last}
    arrays = [
        range(tags.get(start, 0), tags.get(start, 0) + tags.get(length, 0))
        for start, length in (
            (constants.DT_INIT_ARRAY, constants.DT_INIT_ARRAYSZ), (constants.DT_FINI_ARRAY, constants.DT_FINI_ARRAYSZ)
        )
    ]  # fmt: skip
    for row in compress(range(count), map(strays.__contains__, addends)) if strays else ():
        place, addend = words[3 * row], addends[row]
        aligned = addend % _ALIGNMENT == 0 and (assembly or any(place in array for array in arrays))
        if not aligned or _is_inside(image, functions, addend):
            yield "relocation-wrong", f"has a pointer at {place:#x} to {addend:#x}, where no function begins"
            return


def _is_inside(image: ElfImage, functions: Functions, address: int) -> bool:
    """Return whether an address is inside of the function before it, whose frame has its size."""
    row = bisect_left(functions.starts, address) - 1
    frames = image.section(".eh_frame")
    if row < 0 or frames is None:
        return False
    at = functions.table + functions.rows[2 * row + 1] - frames.address + frames.offset
    return address < functions.starts[row] + int.from_bytes(image.read(at + 12, 4), "little")


def _dynamic(image: ElfImage) -> dict[int, int]:
    return {entry.tag: entry.value for entry in image.dynamic()}


def _relocations(image: ElfImage) -> memoryview:
    """Return the relocations of data: place, type with symbol, and addend in turn."""
    tags = _dynamic(image)
    size = tags.get(constants.DT_RELASZ, 0) // constants.RELA.size * constants.RELA.size
    data = image.read(image.offset_of(tags[constants.DT_RELA]), size) if constants.DT_RELA in tags else b""
    return memoryview(data).cast("Q")
