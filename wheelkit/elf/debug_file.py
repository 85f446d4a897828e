"""Separate debug files: ELF files with a library's section table and only the contents that the library lost.

As with `objcopy --only-keep-debug`, loaded sections become NOBITS, except notes, so that the build ID matches. Section
numbers stay, so symbols need no change.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from isal import isal_zlib

from wheelkit.archive.output_file import reserve
from wheelkit.elf import constants
from wheelkit.elf.constants import HEADER, SECTION, SEGMENT
from wheelkit.elf.reader import ElfImage, Section

_BLOCK = 1 << 20


def write_debug(image: ElfImage, source: Path, out: Path, dropped: Collection[int]) -> int:
    """Write the debug file of a library.

    Args:
        image: the unstripped library.
        source: its path; contents are copied in blocks.
        out: the file to write.
        dropped: indices of the sections that the library loses.

    Returns:
        CRC-32 of the file, for .gnu_debuglink.
    """
    head = list(HEADER.unpack(image.read(0, HEADER.size)))
    position = HEADER.size + SEGMENT.size * len(image.segments)
    placed: list[Section] = []
    for index, section in enumerate(image.sections):
        kept = index in dropped or section.type == constants.SHT_NOTE or not section.flags & constants.SHF_ALLOC
        if kept and section.file_size:
            position = section.align(position)
        placed.append(section._replace(offset=position, type=section.type if kept else constants.SHT_NOBITS))
        position += placed[-1].file_size
    table = position + -position % 8
    head[5], head[6] = HEADER.size if image.segments else 0, table
    crc = 0
    with source.open("rb") as library, out.open("wb") as file:
        reserve(file.fileno(), 0, table + SECTION.size * len(placed))
        for block in _blocks(image, library.fileno(), placed, HEADER.pack(*head), table):
            crc = isal_zlib.crc32(block, crc)
            file.write(block)
    return crc


def _blocks(image: ElfImage, library: int, placed: list[Section], head: bytes, table: int) -> Iterator[bytes]:
    """Yield the whole file in order."""
    yield head
    position = HEADER.size
    for segment in _segments(image, placed):
        yield segment
        position += len(segment)
    for old, new in zip(image.sections, placed, strict=True):
        if not new.file_size:
            continue
        yield bytes(new.offset - position)
        for start in range(0, new.file_size, _BLOCK):
            yield os.pread(library, min(_BLOCK, new.file_size - start), old.offset + start)
        position = new.offset + new.file_size
    yield bytes(table - position)
    rows = SECTION.iter_unpack(image.read(image.section_table, SECTION.size * len(image.sections)))
    for (name, *_), section in zip(rows, placed, strict=True):
        yield SECTION.pack(
            name, section.type, section.flags, section.address, section.offset, section.size,
            section.link, section.info, section.alignment, section.entry_size,
        )  # fmt: skip


def _segments(image: ElfImage, placed: list[Section]) -> Iterator[bytes]:
    """Yield the program headers; only themselves and notes have bytes in the file."""
    start = HEADER.unpack(image.read(0, HEADER.size))[5]
    table = image.read(start, SEGMENT.size * len(image.segments))
    notes = {section.address: section for section in placed if section.type == constants.SHT_NOTE}
    for kind, flags, offset, address, physical, file_size, size, align in SEGMENT.iter_unpack(table):
        new_offset, present = 0, 0
        if kind == constants.PT_PHDR:
            new_offset, present = HEADER.size, len(table)
        elif kind == constants.PT_LOAD and offset == 0:
            present = min(file_size, HEADER.size + len(table))
        elif kind == constants.PT_NOTE and address in notes:
            new_offset, present = notes[address].offset, min(file_size, notes[address].size)
        yield SEGMENT.pack(kind, flags, new_offset, address, physical, present, size, align)
