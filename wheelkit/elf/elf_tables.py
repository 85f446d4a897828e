"""Raw tables of an ELF64 little-endian file, with file offsets for edits in place.

Source: System V ABI, gABI chapters 4 (object files) and 5 (dynamic linking); GNU
extensions from the LSB.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Container, Iterator
from itertools import compress, takewhile
from pathlib import Path
from typing import NamedTuple

from core.errors import ElfError
from core.frozen import frozen
from wheelkit.elf.constants import (
    DT_NULL,
    DYNAMIC,
    HEADER,
    MAGIC,
    NOTE,
    PT_DYNAMIC,
    PT_LOAD,
    R_X86_64_GLOB_DAT,
    R_X86_64_JUMP_SLOT,
    R_X86_64_RELATIVE,
    RELA,
    SECTION,
    SEGMENT,
    SHF_ALLOC,
    SHN_XINDEX,
    SHT_DYNSYM,
    SHT_NOBITS,
    SHT_NOTE,
    SHT_NULL,
    SHT_RELA,
    SHT_SYMTAB,
    SYMBOL,
)

_ALIGNMENT_LIMIT = 1 << 16


class Section(NamedTuple):
    """One row of the section header table; offset and size are in bytes."""

    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int

    @property
    def file_size(self) -> int:
        """Size of the section in the file, in bytes; 0 for NOBITS and NULL."""
        return 0 if self.type in (SHT_NULL, SHT_NOBITS) else self.size

    @property
    def end(self) -> int:
        """Offset of the first byte after the section in the file."""
        return self.offset + self.file_size

    @property
    def is_loaded(self) -> bool:
        """True if the section is part of the memory of a process."""
        return bool(self.flags & SHF_ALLOC)

    def row(self, name: int) -> bytes:
        """Return the section header as bytes.

        `name` is the offset of the section's name in the string table.
        """
        return SECTION.pack(name, *self[1:])

    def align(self, position: int) -> int:
        """Return the first offset from `position` on at which the section may begin.

        Raises:
            ElfError: the alignment exceeds the limit for real files.
        """
        alignment = max(1, self.alignment)
        if alignment > _ALIGNMENT_LIMIT:
            raise damaged(
                f"Section {self.name} has the impossible alignment {alignment}."
            )
        return position + -position % alignment


class Segment(NamedTuple):
    """One row of the program header table; sizes are in bytes."""

    type: int
    flags: int
    offset: int
    address: int
    file_size: int
    memory_size: int
    alignment: int

    @property
    def end(self) -> int:
        """Offset of the first byte after the segment in the file."""
        return self.offset + self.file_size


class DynamicEntry(NamedTuple):
    """One entry of the dynamic table, with its offset in the file."""

    tag: int
    value: int
    offset: int


class RawSymbol(NamedTuple):
    """One row of a symbol table; `name` is the offset of the symbol's name in the string table."""

    name: int
    info: int
    other: int
    section: int
    value: int
    size: int


@frozen
class ElfImage:
    """Parsed tables of a file. The caller owns `data`; every access to it is range-checked.

    Attributes:
        label: name of the file in error messages.
        segment_table: file offset of the program header table.
        section_table: file offset of the section header table; 0 if the file has none.
        names_index: index of the section that contains the section names.
    """

    data: bytes | mmap.mmap
    label: str
    type: int
    machine: int
    flags: int
    segment_table: int
    section_table: int
    names_index: int
    sections: tuple[Section, ...]
    segments: tuple[Segment, ...]

    @classmethod
    def parse(cls, data: bytes | mmap.mmap, label: str) -> ElfImage:
        """Read the header, program headers and section headers.

        Raises:
            ElfError: the data is not an ELF64 little-endian file, or a table lies
                outside the file.
        """
        if bytes(data[:4]) != MAGIC:
            raise ElfError(
                f"{label} is not an ELF file.",
                hint="Check that the download is complete.",
            )
        if len(data) < HEADER.size or bytes(data[4:6]) != b"\x02\x01":
            raise ElfError(
                f"{label} is not a 64-bit little-endian ELF file.",
                hint="Use a wheel for x86-64 Linux.",
            )
        head = HEADER.unpack(data[: HEADER.size])
        _, kind, machine, _, _, ph, sh, flags, _, *counts = head
        ph_size, ph_count, sh_size, sh_count, names = counts
        if (ph_count and ph_size != SEGMENT.size) or (sh and sh_size != SECTION.size):
            raise damaged(f"{label} has header tables with an unsupported row size.")
        rows = _rows(data, ph, SEGMENT, ph_count, label)
        segments = tuple(Segment(*row[:4], *row[5:]) for row in rows)
        raw: list[tuple[int, ...]] = []
        if sh:
            first = _rows(data, sh, SECTION, 1, label)[0]
            # gABI: counts that do not fit into 16 bits are stored in section 0.
            sh_count = sh_count or first[5]
            names = first[6] if names == SHN_XINDEX else names
            raw = _rows(data, sh, SECTION, sh_count, label)
        image = cls(
            data=data,
            label=label,
            type=kind,
            machine=machine,
            flags=flags,
            segment_table=ph,
            section_table=sh,
            names_index=names,
            segments=segments,
            sections=(),
        )
        object.__setattr__(image, "sections", image._named(raw, names))
        return image

    def _named(self, rows: list[tuple[int, ...]], names: int) -> tuple[Section, ...]:
        if rows and names >= len(rows):
            raise damaged(f"{self.label} has no section name table.")
        table = self.read(rows[names][4], rows[names][5]) if rows else b""
        sections = []
        for name, *fields in rows:
            section = Section(string_at(table, name, self.label), *fields)
            if section.file_size:
                self.read(section.end, 0)
            sections.append(section)
        return tuple(sections)

    def read(self, offset: int, size: int) -> bytes:
        """Return the bytes [offset, offset + size) of the file.

        Raises:
            ElfError: the file ends before the last of these bytes.
        """
        if offset + size > len(self.data):
            raise damaged(f"{self.label} ends before byte {offset + size}.")
        return bytes(self.data[offset : offset + size])

    def section(self, name: str) -> Section | None:
        """Return the first section with this name, or None."""
        return next((s for s in self.sections if s.name == name), None)

    def of_type(self, kind: int) -> Section | None:
        """Return the first section of this type, or None."""
        return next((s for s in self.sections if s.type == kind), None)

    def contents(self, section: Section) -> bytes:
        """Return the bytes of a section in the file; empty for NOBITS."""
        return self.read(section.offset, section.file_size)

    def offset_of(self, address: int) -> int:
        """Return the file offset of a virtual address.

        Raises:
            ElfError: no loadable segment of the file contains the address.
        """
        for segment in self.segments:
            if (
                segment.type == PT_LOAD
                and 0 <= address - segment.address < segment.file_size
            ):
                return address - segment.address + segment.offset
        raise damaged(
            f"{self.label} refers to address {address:#x}, which no segment contains."
        )

    def dynamic(self) -> tuple[DynamicEntry, ...]:
        """Return the dynamic table as the loader sees it, DT_NULL entries included.

        Empty for a static file.
        """
        for segment in self.segments:
            if segment.type == PT_DYNAMIC:
                table = self.read(segment.offset, segment.file_size)
                rows = enumerate(_whole_rows(table, DYNAMIC))
                return tuple(
                    DynamicEntry(tag, value, segment.offset + DYNAMIC.size * number)
                    for number, (tag, value) in rows
                )
        return ()

    def live_dynamic(self) -> tuple[DynamicEntry, ...]:
        """Return the entries of the dynamic table before its first DT_NULL."""
        return tuple(takewhile(lambda entry: entry.tag != DT_NULL, self.dynamic()))

    def symbols(self, section: Section) -> Iterator[RawSymbol]:
        """Yield the rows of a symbol table section, the null symbol included."""
        for row in _whole_rows(self.contents(section), SYMBOL):
            yield RawSymbol._make(row)

    def dynamic_symbols(self) -> Iterator[tuple[RawSymbol, str]]:
        """Yield the rows of .dynsym with their names.

        Raises:
            ElfError: the file has no dynamic symbols, or a damaged table.
        """
        table = self.of_type(SHT_DYNSYM)
        if table is None or table.link >= len(self.sections):
            raise damaged(f"{self.label} has no dynamic symbols.")
        strings = self.contents(self.sections[table.link])
        for symbol in self.symbols(table):
            yield symbol, string_at(strings, symbol.name, self.label)

    def symbol_names(
        self, addresses: Container[int], kind: int
    ) -> Iterator[tuple[int, str]]:
        """Yield address and name of each .symtab symbol of this type at these addresses."""
        table = self.of_type(SHT_SYMTAB)
        if table is None or table.link >= len(self.sections):
            return
        content = self.contents(table)
        names = self.contents(self.sections[table.link])
        # A library has a million symbols, so addresses are compared without a loop of
        # Python.
        words = memoryview(content[: len(content) // SYMBOL.size * SYMBOL.size]).cast(
            "Q"
        )
        values = words[1::3].tolist()
        for row in compress(range(len(values)), map(addresses.__contains__, values)):
            if words[3 * row] >> 32 & 0xF == kind:
                yield (
                    values[row],
                    string_at(names, words[3 * row] & 0xFFFFFFFF, self.label),
                )

    def pointers(self, places: Container[int]) -> dict[int, int]:
        """Return address -> value of the relocated pointers at these addresses."""
        found = {}
        for where, kinds, values in self._relocations():
            for row in compress(range(len(where)), map(places.__contains__, where)):
                if kinds[row] == R_X86_64_RELATIVE:
                    found[where[row]] = values[row]
        return found

    def words(self, *sections: Section) -> dict[int, int]:
        """Return address -> relocated 64-bit word of sections."""
        words = {}
        for section in sections:
            content = self.contents(section)
            for place in range(0, len(content) - 7, 8):
                word = int.from_bytes(content[place : place + 8], "little")
                words[section.address + place] = word
        return words | self.pointers(words)

    def slots(self) -> dict[int, int]:
        """Return address -> index of the dynamic symbol for each slot of the GOT."""
        found = {}
        for where, kinds, _ in self._relocations():
            others = map(R_X86_64_RELATIVE.__ne__, kinds)
            for row in compress(range(len(where)), others):
                if kinds[row] & 0xFFFFFFFF in (R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT):
                    found[where[row]] = kinds[row] >> 32
        return found

    def _relocations(self) -> Iterator[tuple[list[int], list[int], list[int]]]:
        """Yield the columns of each table of relocations: places, kinds, values.

        A library has a million rows, so callers select rows without a loop of Python.
        """
        for section in self.sections:
            if section.type == SHT_RELA and section.is_loaded:
                content = self.contents(section)
                words = memoryview(content[: len(content) // RELA.size * RELA.size])
                table = words.cast("Q").tolist()
                yield table[0::3], table[1::3], table[2::3]

    def notes(self) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield name (with its NUL), type and description of each note.

        The file aligns all of them to 4 bytes.
        """
        for section in self.sections:
            data = self.contents(section) if section.type == SHT_NOTE else b""
            at = 0
            while at + NOTE.size <= len(data):
                name_size, size, kind = NOTE.unpack_from(data, at)
                at += NOTE.size
                start = at + name_size + -name_size % 4
                yield data[at : at + name_size], kind, data[start : start + size]
                at = start + size + -size % 4


def _rows(
    data: bytes | mmap.mmap, offset: int, row: struct.Struct, count: int, label: str
) -> list[tuple[int, ...]]:
    end = offset + row.size * count
    if end > len(data):
        raise damaged(f"{label} ends inside a header table.")
    return list(row.iter_unpack(data[offset:end]))


def _whole_rows(table: bytes, row: struct.Struct) -> Iterator[tuple[int, ...]]:
    return row.iter_unpack(table[: len(table) // row.size * row.size])


def damaged(problem: str) -> ElfError:
    """Return an error about a damaged file."""
    return ElfError(problem, hint="Download or build the damaged file again.")


def bytes_at(table: bytes, offset: int, label: str) -> bytes:
    """Return the NUL-terminated string at an offset of a string table, without the NUL.

    Raises:
        ElfError: the offset lies outside the table, or the string has no NUL.
    """
    end = table.find(b"\0", offset) if offset < len(table) else -1
    if end < 0:
        raise damaged(f"{label} has a name outside of its string table.")
    return table[offset:end]


def string_at(table: bytes, offset: int, label: str) -> str:
    """Return the result of `bytes_at` as text; bytes that are not UTF-8 are escaped."""
    return bytes_at(table, offset, label).decode(errors="backslashreplace")


@contextlib.contextmanager
def open_image(path: Path) -> Iterator[ElfImage]:
    """Map a file and parse its tables; the image must not be used after the `with` block.

    Raises:
        ElfError: the file is not an ELF64 little-endian file, or is damaged.
    """
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise ElfError(
                f"{path.name} is empty.", hint="Check that the download is complete."
            ) from error
        with data:
            yield ElfImage.parse(data, path.name)
