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
from dataclasses import dataclass
from pathlib import Path

from isal import isal_zlib

from core.errors import ElfError
from wheelkit.archive.output_file import ByteRange, reserve
from wheelkit.elf import constants
from wheelkit.elf import elf_tables as reader
from wheelkit.elf.constants import HEADER, SECTION, SEGMENT
from wheelkit.elf.elf_tables import ElfImage, Section

Edit = tuple[int, bytes]
"""Offset in a file, and the bytes to write there."""

_LINK = ".gnu_debuglink"
_COUNTS = struct.Struct("<QIHHHHHH")  # the ELF header from e_shoff on
_BLOCK = 1 << 20
_SHNDX = struct.Struct("<H")


@dataclass(frozen=True, kw_only=True, slots=True)
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
                    + struct.pack("<I", _write_debug(image, path, partial, dropped))
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


def _droppable(image: ElfImage) -> frozenset[int]:
    """Return the indices of sections, string tables included, that only debuggers read."""
    drop = {
        index
        for index, section in enumerate(image.sections)
        if not section.flags & constants.SHF_ALLOC
        and (
            section.type in (constants.SHT_SYMTAB, constants.SHT_SYMTAB_SHNDX)
            or section.name.startswith((".debug_", ".zdebug_", ".gdb_index"))
        )
    }
    if not drop:
        return frozenset()
    for index, section in enumerate(image.sections):
        relocates = (
            section.type in (constants.SHT_RELA, constants.SHT_REL)
            and not section.flags & constants.SHF_ALLOC
        )
        if (relocates and section.info in drop) or section.name == _LINK:
            drop.add(index)
    linked = {image.sections[i].link for i in drop} - {0, image.names_index}
    kept = {
        section.link
        for index, section in enumerate(image.sections)
        if index not in drop
    }
    if kept & drop:
        raise ElfError(
            f"Cannot strip {image.label}: a section that stays refers to the symbol"
            " table.",
            hint="Keep its symbols with `--no-strip`.",
        )
    return frozenset(
        drop
        | {
            i
            for i in linked - kept
            if not image.sections[i].flags & constants.SHF_ALLOC
        }
    )


def _edits(
    image: ElfImage, dropped: Collection[int], link: bytes
) -> tuple[list[Edit], int]:
    """Return the writes that remove the sections, in order, and the file's new length."""
    first = min(image.sections[index].offset for index in dropped)
    kept = [
        i
        for i in range(len(image.sections))
        if i not in dropped and i != image.names_index
    ]
    moved = {
        i
        for i in kept
        if (s := image.sections[i]).file_size
        and not s.flags & constants.SHF_ALLOC
        and s.offset >= first
    }
    leaving = [image.sections[i] for i in sorted({*moved, *dropped, image.names_index})]
    _check_apart(image, leaving)
    base = _end_of_fixed(image, [image.sections[i] for i in kept if i not in moved])
    rows = [
        (image.sections[i], image.contents(image.sections[i]) if i in moved else None)
        for i in kept
    ]
    if link:
        rows.append(
            (
                Section(0, len(link), constants.SHT_PROGBITS, 0, _LINK, 0, 0, 0, 4, 0),
                link,
            )
        )
    names = {*(section.name for section, _ in rows), ".shstrtab"}
    strings = b"\0" + b"".join(
        os.fsencode(name) + b"\0" for name in sorted(names - {""})
    )
    rows.append(
        (
            Section(
                0, len(strings), constants.SHT_STRTAB, 0, ".shstrtab", 0, 0, 0, 1, 0
            ),
            strings,
        )
    )
    numbers = {old: new for new, old in enumerate(kept)} | {
        image.names_index: len(rows) - 1
    }
    tail, table = _tail(rows, base, numbers, strings)
    header = list(_COUNTS.unpack(image.read(40, _COUNTS.size)))
    header[0], header[6], header[7] = table, len(rows), len(rows) - 1
    holes = [(s.offset, s.offset + s.file_size) for s in leaving]
    holes.append(
        (image.section_table, image.section_table + SECTION.size * len(image.sections))
    )
    zeros = [
        (start, bytes(min(end, base) - start))
        for start, end in holes
        if start < min(end, base)
    ]
    edits = [
        (40, _COUNTS.pack(*header)),
        *_symbol_edits(image, numbers),
        *zeros,
        (base, tail),
    ]
    return sorted(edits), base + len(tail)


def _check_apart(image: ElfImage, leaving: Iterable[Section]) -> None:
    for section in leaving:
        for segment in image.segments:
            end = segment.offset + segment.file_size
            if (
                section.file_size
                and section.offset < end
                and segment.offset < section.offset + section.file_size
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
    program_headers: int = HEADER.unpack(image.read(0, HEADER.size))[5]
    end = max(
        program_headers + SEGMENT.size * len(image.segments),
        *(segment.offset + segment.file_size for segment in image.segments),
        *(
            section.offset + section.file_size
            for section in sections
            if section.file_size
        ),
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
            tail.extend(bytes(offset - base - len(tail)))
            tail.extend(content)
        info = section.info
        if section.flags & constants.SHF_INFO_LINK or section.type in (
            constants.SHT_RELA,
            constants.SHT_REL,
        ):
            info = numbers.get(info, 0)
        name = (
            strings.index(b"\0" + os.fsencode(section.name) + b"\0") + 1
            if section.name
            else 0
        )
        table += section._replace(
            offset=offset, link=numbers.get(section.link, 0), info=info
        ).row(name)
    tail.extend(bytes(-(base + len(tail)) % 8))
    return bytes(tail + table), base + len(tail)


def _symbol_edits(image: ElfImage, numbers: dict[int, int]) -> Iterable[Edit]:
    """Yield edits that update the section numbers of dynamic symbols."""
    for section in image.sections:
        if section.type != constants.SHT_DYNSYM:
            continue
        for row, symbol in enumerate(image.symbols(section)):
            if (
                0 < symbol.section < constants.SHN_LORESERVE
                and numbers.get(symbol.section) != symbol.section
            ):
                if symbol.section not in numbers:
                    raise ElfError(
                        f"{image.label} exports a symbol of a debug section.",
                        hint="Keep its symbols with `--no-strip`.",
                    )
                yield (
                    section.offset + row * constants.SYMBOL.size + 6,
                    _SHNDX.pack(numbers[symbol.section]),
                )


def _write_debug(
    image: ElfImage, source: Path, out: Path, dropped: Collection[int]
) -> int:
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
    for index, section in enumerate(image.sections):
        kept = (
            index in dropped
            or section.type == constants.SHT_NOTE
            or not section.flags & constants.SHF_ALLOC
        )
        if kept and section.file_size:
            position = section.align(position)
        placed.append(
            section._replace(
                offset=position, type=section.type if kept else constants.SHT_NOBITS
            )
        )
        position += placed[-1].file_size
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
        position = new.offset + new.file_size
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
    start = HEADER.unpack(image.read(0, HEADER.size))[5]
    table = image.read(start, SEGMENT.size * len(image.segments))
    notes = {
        section.address: section
        for section in placed
        if section.type == constants.SHT_NOTE
    }
    for (
        kind,
        flags,
        offset,
        address,
        physical,
        file_size,
        size,
        align,
    ) in SEGMENT.iter_unpack(table):
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
