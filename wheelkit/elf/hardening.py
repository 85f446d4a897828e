"""Defects in how a library is loaded: segments, stack, RELRO, text relocations and flags of the dynamic table.

Sources: gABI chapter 5 (program header, dynamic section); glibc, elf/dl-load.c and elf/dl-reloc.c, which refuse such
libraries or make their code writable; glibc 2.41 refuses libraries that need an executable stack in a running process.
"""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Iterator, Mapping

from wheelkit.elf import constants
from wheelkit.elf.layout import layout_problems
from wheelkit.elf.reader import ElfImage, Section
from wheelkit.elf.relocations import relocation_problems

_LARGEST_ALIGNMENT = 1 << 24
"""Larger alignments of segments do not occur; huge pages have 2 MiB."""
PAGE = 4096
"""Page size of x86-64 in bytes; glibc maps no segment with a smaller alignment."""

_LOST_CODE, _LOST_FRAMES = bytes(64), bytes(256)
"""Linkers fill gaps between functions with other bytes; published libraries have at most 32 zero bytes in a row."""
_FRAMES = (".eh_frame", ".eh_frame_hdr", ".gcc_except_table")
_UNWIND_HEAD = struct.Struct("<BBBBiI")
_UNWIND_ROW = struct.Struct("<ii")
_FRAME_HEAD = struct.Struct("<II")
_PC_RELATIVE_INT = 0x1B
"""DW_EH_PE_pcrel | DW_EH_PE_sdata4, the encoding that linkers use."""
_SEARCHED = (0x03, 0x3B)
"""Encodings of the number of rows and of the rows (from the table's address), which linkers use."""
_GOOD_FLAGS = constants.DF_1_NOW | constants.DF_1_GLOBAL | constants.DF_1_NODELETE | constants.DF_1_ORIGIN
_TABLES = {
    "constructors": (constants.DT_INIT_ARRAY, constants.DT_INIT_ARRAYSZ),
    "destructors": (constants.DT_FINI_ARRAY, constants.DT_FINI_ARRAYSZ),
    "relocations": (constants.DT_RELA, constants.DT_RELASZ),
    "relocations of functions": (constants.DT_JMPREL, constants.DT_PLTRELSZ),
    "names": (constants.DT_STRTAB, constants.DT_STRSZ),
}
"""Table -> the tags of its address and of its size in bytes."""
_ROWS = {
    constants.DT_SYMENT: constants.SYMBOL.size, constants.DT_RELAENT: constants.RELA.size,
    constants.DT_PLTREL: constants.DT_RELA,
}  # fmt: skip
"""Tag -> its only value: the sizes of rows, and the kind of the relocations of functions."""
_REDIRECTIONS = {
    constants.DT_AUXILIARY: "DT_AUXILIARY", constants.DT_FILTER: "DT_FILTER", constants.DT_CONFIG: "DT_CONFIG",
    constants.DT_AUDIT: "DT_AUDIT", constants.DT_DEPAUDIT: "DT_DEPAUDIT",
}  # fmt: skip
"""Dynamic tags with which a library replaces or watches the symbols of others."""


def load_defects(image: ElfImage) -> Iterator[tuple[str, str]]:
    """Yield the code of a finding and a clause, such as "has an executable stack", for each defect of a library.

    Programs, object files and device code are skipped.
    """
    kinds = {segment.type: segment for segment in image.segments}
    if image.machine == constants.EM_AMDGPU or constants.PT_INTERP in kinds:
        return
    if image.type != constants.ET_DYN:
        if constants.PT_DYNAMIC in kinds:
            yield "layout-wrong", f"is no shared library, but an ELF file of type {image.type}"
        return
    stack = kinds.get(constants.PT_GNU_STACK)
    if stack is None or stack.flags & constants.PF_X:
        yield "stack-executable", "needs an executable stack" + ("" if stack else ", since it has no PT_GNU_STACK")
    for problem in segment_problems(image, page=PAGE):
        yield "segment-unmappable", problem
    for problem in _lost_code(image):
        yield "code-lost", problem
    for segment in writable_code(image):
        yield "code-writable", segment
    if constants.PT_GNU_RELRO not in kinds:
        yield "relro-missing", "keeps its relocated pointers writable (no PT_GNU_RELRO)"
    if problem := _unwind_problem(image):
        yield "unwind-table-wrong", problem
    used = itertools.takewhile(lambda entry: entry.tag != constants.DT_NULL, image.dynamic())
    tags = {entry.tag: entry.value for entry in used}
    if constants.DT_TEXTREL in tags or tags.get(constants.DT_FLAGS, 0) & constants.DF_TEXTREL:
        yield "code-writable", "has relocations in its code (DT_TEXTREL)"
    if unusual := tags.get(constants.DT_FLAGS_1, 0) & ~_GOOD_FLAGS:
        yield "load-flags-wrong", f"has the flags {unusual:#x} in DT_FLAGS_1"
    if tags.get(constants.DT_FLAGS, 0) & constants.DF_STATIC_TLS:
        yield "load-flags-wrong", "has DF_STATIC_TLS, so dlopen fails if no static memory for threads is left"
    for problem in (*_table_problems(image, tags), *_bound_twice(image, tags)):
        yield "dynamic-table-wrong", problem
    for problem in layout_problems(image, tags):
        yield "layout-wrong", problem
    for problem in relocation_problems(image, tags):
        yield "relocation-wrong", problem
    for tag in sorted(_REDIRECTIONS.keys() & tags.keys()):
        yield "load-flags-wrong", f"has {_REDIRECTIONS[tag]}"


def _lost_code(image: ElfImage) -> Iterator[str]:
    """Yield a clause for each section of machine code or of frames in which a block of a file was lost."""
    for section in image.sections:
        code = section.type == constants.SHT_PROGBITS and section.flags & constants.SHF_EXECINSTR
        if code or section.name in _FRAMES:
            lost = _LOST_CODE if code else _LOST_FRAMES
            at = image.data.find(lost, section.offset, section.offset + section.file_size)
            if at >= 0:
                what = "machine code" if code else f"{section.name}, by which exceptions find their handlers,"
                yield f"has zeros instead of {what} at {section.address + at - section.offset:#x}"


def _table_problems(image: ElfImage, tags: Mapping[int, int]) -> Iterator[str]:
    """Yield a clause for each table whose size in the dynamic table is not that of the section at its address."""
    sizes = {section.address: section.size for section in image.sections if section.flags & constants.SHF_ALLOC}
    for name, (start, size) in _TABLES.items():
        held = sizes.get(tags.get(start, 0))
        if held is not None and tags.get(size, 0) != held:
            yield f"has {held} bytes of {name}, but {tags.get(size, 0)} in its dynamic table"
    for tag, only in _ROWS.items():
        if tags.get(tag, only) != only:
            yield f"has {tags[tag]} instead of {only} as entry {tag} of its dynamic table"


def _bound_twice(image: ElfImage, tags: Mapping[int, int]) -> Iterator[str]:
    """Yield a clause if calls of two functions reach one function: linkers make one slot for each."""
    if constants.DT_JMPREL not in tags:
        return
    size = tags.get(constants.DT_PLTRELSZ, 0)
    table = image.read(image.offset_of(tags[constants.DT_JMPREL]), size - size % constants.RELA.size)
    slots = Counter(
        info >> 32
        for _, info, _ in constants.RELA.iter_unpack(table)
        if info & 0xFFFFFFFF == constants.R_X86_64_JUMP_SLOT
    )
    twice = {number for number, count in slots.items() if count > 1}
    names = [name for number, (_, name) in enumerate(image.dynamic_symbols()) if number in twice] if twice else []
    if names:
        yield f"calls {names[0]} in place of another function"


def segment_problems(image: ElfImage, *, page: int = 1) -> Iterator[str]:
    """Yield a clause for each segment that a loader cannot map.

    Args:
        page: smallest alignment of a segment in bytes.
    """
    end = 0
    for segment in image.segments:
        if segment.type != constants.PT_LOAD:
            continue
        alignment = max(1, segment.alignment)
        if (
            segment.offset + segment.file_size > len(image.data)
            or segment.file_size > segment.memory_size
            or alignment & (alignment - 1)
            or not page <= alignment <= _LARGEST_ALIGNMENT
            or (segment.address - segment.offset) % alignment
            or segment.address < end
        ):
            yield f"has a segment at {segment.address:#x} that cannot be mapped"
        end = segment.address + segment.memory_size


def _unwind_problem(image: ElfImage) -> str:
    """Return a clause about the table by which C++ exceptions find their handlers; empty without a defect.

    Source: LSB Core, "Exception Frames": a version 1, encodings, and the address of .eh_frame relative to its field.
    The first, middle and last row of the table must lead to a frame that follows its common information.
    """
    frames = image.section(".eh_frame")
    table = next((segment for segment in image.segments if segment.type == constants.PT_GNU_EH_FRAME), None)
    if frames is None or not frames.size:
        return ""
    if table is None:
        return "has no PT_GNU_EH_FRAME, by which exceptions find their handlers"
    head = image.read(table.offset, min(table.file_size, _UNWIND_HEAD.size)).ljust(_UNWIND_HEAD.size, b"\0")
    version, encoding, *searched, relative, count = _UNWIND_HEAD.unpack(head)
    if version != 1 or (encoding == _PC_RELATIVE_INT and table.address + 4 + relative != frames.address):
        return "has a damaged .eh_frame_hdr, by which exceptions find their handlers"
    for row in (0, count // 2, count - 1) if count and tuple(searched) == _SEARCHED else ():
        data = image.read(table.offset + _UNWIND_HEAD.size + row * _UNWIND_ROW.size, _UNWIND_ROW.size)
        if not _has_frame(image, frames, table.address + _UNWIND_ROW.unpack(data)[1]):
            return "has a damaged .eh_frame, in which exceptions find their handlers"
    return ""


def _has_frame(image: ElfImage, frames: Section, address: int) -> bool:
    """Return whether a frame begins at an address of .eh_frame."""
    at = address - frames.address
    if not 0 <= at <= frames.size - _FRAME_HEAD.size:
        return False
    size, back = _FRAME_HEAD.unpack(image.read(frames.offset + at, _FRAME_HEAD.size))
    common = at + 4 - back
    if not size or not 0 <= common < at:
        return False
    size, zero = _FRAME_HEAD.unpack(image.read(frames.offset + common, _FRAME_HEAD.size))
    return bool(size) and zero == 0


def writable_code(image: ElfImage) -> Iterator[str]:
    """Yield a clause for each segment that is both writable and executable."""
    for segment in image.segments:
        if segment.type == constants.PT_LOAD and segment.flags & constants.PF_X and segment.flags & constants.PF_W:
            yield f"has a segment at {segment.address:#x} that is both writable and executable"
