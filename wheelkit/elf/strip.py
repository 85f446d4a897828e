"""Symbol tables and debug sections, moved from a library to a separate debug file.

The library's loaded bytes stay where they are; only its tail is rewritten. A section of
the library names the debug file and its CRC-32 (GDB manual, "Debugging Information in
Separate Files").
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from isal import isal_zlib

from core.errors import ElfError
from core.frozen import frozen
from wheelkit.archive.output_file import ByteRange, reserve
from wheelkit.elf import constants
from wheelkit.elf import elf_tables as reader
from wheelkit.elf.constants import HEADER, SECTION, SEGMENT
from wheelkit.elf.elf_tables import ElfImage, Section

Edit = tuple[int, bytes]
"""Offset in a file, and the bytes to write there."""

_LINK = ".gnu_debuglink"
_DEBUG = (".debug_", ".zdebug_", ".rela.debug_", ".gdb_index")
_COUNTS = struct.Struct("<QIHHHHHH")  # the ELF header from e_shoff on
_BLOCK = 1 << 20
_SHNDX = struct.Struct("<H")


@frozen
class StripReport:
    """Result of stripping; sizes in bytes.

    Attributes:
        changed: ranges of the new file that differ from the old one; the old file may
            be longer.
        dropped: names of the removed sections.
        bytes_saved: size of the removed sections. A removed section before loaded bytes
            is overwritten with zeros, which does not shorten the file.
    """

    changed: tuple[ByteRange, ...]
    dropped: tuple[str, ...]
    bytes_saved: int


def strip_symbols(path: Path, debug: Path | None = None) -> StripReport:
    """Remove symbol tables and debug sections of a library, in place.

    Args:
        path: the library; unchanged if there is nothing to remove.
        debug: debug file to write; debuggers look it up by its file name. It is not
            written if there is nothing to remove. None discards the symbols.

    Raises:
        ElfError: the file is damaged or cannot be stripped; nothing is changed or
            written.
    """
    partial = debug.with_name(f".{debug.name}.partial") if debug else None
    try:
        with reader.open_image(path) as image:
            dropped = _droppable(image)
            if not dropped:
                return StripReport(changed=(), dropped=(), bytes_saved=0)
            link = b""
            if debug and partial:
                name = os.fsencode(debug.name)
                link = (
                    name
                    + bytes(4 - len(name) % 4)
                    + struct.pack("<I", _write_debug(image, path, partial))
                )
            edits, end = _edits(image, dropped, link)
            sections = [image.sections[index] for index in sorted(dropped)]
        with path.open("r+b") as file:
            for offset, data in edits:
                file.seek(offset)
                file.write(data)
            file.truncate(end)
        if debug and partial:
            partial.replace(debug)
    finally:
        if partial:
            with contextlib.suppress(FileNotFoundError):
                partial.unlink()
    return StripReport(
        changed=tuple((offset, offset + len(data)) for offset, data in edits),
        dropped=tuple(section.name for section in sections),
        bytes_saved=sum(section.file_size for section in sections),
    )


def _droppable(image: ElfImage) -> set[int]:
    """Return the indices of sections, string tables included, that only debuggers read."""
    sections = image.sections
    drop = set()
    for index, section in enumerate(sections):
        if not section.is_loaded and (
            section.type in (constants.SHT_SYMTAB, constants.SHT_SYMTAB_SHNDX)
            or section.name.startswith(_DEBUG)
        ):
            drop.add(index)
    if not drop:
        return drop
    drop |= {index for index, section in enumerate(sections) if section.name == _LINK}
    used = {section.link for i, section in enumerate(sections) if i not in drop}
    if used & drop:
        raise ElfError(
            f"Cannot strip {image.label}: a section that stays refers to the symbol"
            " table.",
            hint="Keep its symbols with `--no-strip`.",
        )
    strings = {sections[i].link for i in drop} - used - {0, image.names_index}
    return drop | {i for i in strings if not sections[i].is_loaded}


def _edits(
    image: ElfImage, dropped: Collection[int], link: bytes
) -> tuple[list[Edit], int]:
    """Return the writes that remove the sections, in order, and the file's new length."""
    sections = image.sections
    first = min(sections[index].offset for index in dropped)
    kept = []
    rows: list[tuple[Section, bytes | None]] = []
    leaving: list[Section] = []
    fixed: list[Section] = []
    for index, section in enumerate(sections):
        if index in dropped or index == image.names_index:
            leaving.append(section)
            continue
        moves = section.file_size and not section.is_loaded and section.offset >= first
        (leaving if moves else fixed).append(section)
        kept.append(index)
        rows.append((section, image.contents(section) if moves else None))
    _check_apart(image, leaving)
    base = _end_of_fixed(image, fixed)

    if link:
        rows.append((_new_section(_LINK, constants.SHT_PROGBITS, link, 4), link))
    names = sorted({*(section.name for section, _ in rows), ".shstrtab"} - {""})
    strings = b"\0" + b"".join(os.fsencode(name) + b"\0" for name in names)
    own = _new_section(".shstrtab", constants.SHT_STRTAB, strings, 1)
    rows.append((own, strings))
    numbers = {old: new for new, old in enumerate(kept)}
    numbers[image.names_index] = len(rows) - 1
    tail, table = _tail(rows, base, numbers, strings)

    header = list(_COUNTS.unpack(image.read(40, _COUNTS.size)))
    header[0], header[6], header[7] = table, len(rows), len(rows) - 1
    holes = [(section.offset, section.end) for section in leaving]
    old_end = image.section_table + SECTION.size * len(sections)
    holes.append((image.section_table, old_end))
    edits = [(40, _COUNTS.pack(*header)), *_symbol_edits(image, numbers), (base, tail)]
    for start, end in holes:
        if start < min(end, base):
            edits.append((start, bytes(min(end, base) - start)))
    return sorted(edits), base + len(tail)


def _new_section(name: str, kind: int, content: bytes, alignment: int) -> Section:
    return Section(name, kind, 0, 0, 0, len(content), 0, 0, alignment, 0)


def _check_apart(image: ElfImage, leaving: Iterable[Section]) -> None:
    for section in leaving:
        for segment in image.segments:
            if section.file_size and (
                section.offset < segment.end and segment.offset < section.end
            ):
                raise ElfError(
                    f"Cannot strip {image.label}: section {section.name} is part of a"
                    " segment.",
                    hint="Keep its symbols with `--no-strip`.",
                )


def _end_of_fixed(image: ElfImage, sections: Iterable[Section]) -> int:
    """Return the end of the bytes that stay.

    Headers, segments, and sections before the first dropped one.
    """
    end = max(
        image.segment_table + SEGMENT.size * len(image.segments),
        *(segment.end for segment in image.segments),
        *(section.end for section in sections if section.file_size),
    )
    image.read(end, 0)  # raises ElfError if the end lies outside the file
    return end


def _tail(
    rows: Sequence[tuple[Section, bytes | None]],
    base: int,
    numbers: dict[int, int],
    strings: bytes,
) -> tuple[bytes, int]:
    """Return the bytes to write at `base`, and the file offset of the section headers."""
    tail = bytearray()
    table = bytearray()
    for section, content in rows:
        offset = section.offset
        if content is not None:
            offset = section.align(base + len(tail))
            tail += bytes(offset - base - len(tail)) + content
        info = section.info
        if section.flags & constants.SHF_INFO_LINK or section.type in (
            constants.SHT_RELA,
            constants.SHT_REL,
        ):
            info = numbers.get(info, 0)
        link = numbers.get(section.link, 0)
        name = b"\0" + os.fsencode(section.name) + b"\0"
        place = strings.index(name) + 1 if section.name else 0
        table += section._replace(offset=offset, link=link, info=info).row(place)
    tail += bytes(-(base + len(tail)) % 8)
    return bytes(tail + table), base + len(tail)


def _symbol_edits(image: ElfImage, numbers: dict[int, int]) -> Iterable[Edit]:
    """Yield edits that update the section numbers of dynamic symbols."""
    section = image.of_type(constants.SHT_DYNSYM)
    if section is None:
        return
    for row, symbol in enumerate(image.symbols(section)):
        old = symbol.section
        if not 0 < old < constants.SHN_LORESERVE or numbers.get(old) == old:
            continue
        if old not in numbers:
            raise ElfError(
                f"{image.label} exports a symbol of a debug section.",
                hint="Keep its symbols with `--no-strip`.",
            )
        place = section.offset + row * constants.SYMBOL.size + 6
        yield place, _SHNDX.pack(numbers[old])


def _write_debug(image: ElfImage, source: Path, out: Path) -> int:
    """Write the debug file of a library.

    Its section table, and the contents of sections that are not loaded.

    As with `objcopy --only-keep-debug`, loaded sections become NOBITS, except notes, so
    that the build ID matches. Section numbers stay, so symbols need no change.

    Returns:
        CRC-32 of the file, for .gnu_debuglink.
    """
    head = list(HEADER.unpack(image.read(0, HEADER.size)))
    position = HEADER.size + SEGMENT.size * len(image.segments)
    placed: list[Section] = []
    for section in image.sections:
        kind = section.type
        if section.is_loaded and kind != constants.SHT_NOTE:
            kind = constants.SHT_NOBITS
        elif section.file_size:
            position = section.align(position)
        placed.append(section._replace(offset=position, type=kind))
        position = placed[-1].end
    table = position + -position % 8
    head[5], head[6] = HEADER.size if image.segments else 0, table
    crc = 0
    with source.open("rb") as library, out.open("wb") as file:
        reserve(file.fileno(), 0, table + SECTION.size * len(placed))
        for block in _debug_blocks(
            image, library.fileno(), placed, HEADER.pack(*head), table
        ):
            crc = isal_zlib.crc32(block, crc)
            file.write(block)
    return crc


def _debug_blocks(
    image: ElfImage, library: int, placed: list[Section], head: bytes, table: int
) -> Iterator[bytes]:
    """Yield the bytes of the debug file in order."""
    yield head
    position = HEADER.size
    for segment in _debug_segments(image, placed):
        yield segment
        position += len(segment)
    for old, new in zip(image.sections, placed, strict=True):
        if not new.file_size:
            continue
        yield bytes(new.offset - position)
        for start in range(0, new.file_size, _BLOCK):
            yield os.pread(
                library, min(_BLOCK, new.file_size - start), old.offset + start
            )
        position = new.end
    yield bytes(table - position)
    rows = SECTION.iter_unpack(
        image.read(image.section_table, SECTION.size * len(image.sections))
    )
    for (name, *_), section in zip(rows, placed, strict=True):
        yield section.row(name)


def _debug_segments(image: ElfImage, placed: list[Section]) -> Iterator[bytes]:
    """Yield the program headers of the debug file.

    Only segments of headers and notes have bytes in it.
    """
    table = image.read(image.segment_table, SEGMENT.size * len(image.segments))
    notes = {s.address: s for s in placed if s.type == constants.SHT_NOTE}
    for row in SEGMENT.iter_unpack(table):
        kind, flags, offset, address, physical, file_size, size, align = row
        new_offset = 0
        present = 0
        if kind == constants.PT_PHDR:
            new_offset = HEADER.size
            present = len(table)
        elif kind == constants.PT_LOAD and offset == 0:
            present = min(file_size, HEADER.size + len(table))
        elif kind == constants.PT_NOTE and address in notes:
            new_offset = notes[address].offset
            present = min(file_size, notes[address].size)
        yield SEGMENT.pack(
            kind, flags, new_offset, address, physical, present, size, align
        )
