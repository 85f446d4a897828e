"""Edits of RUNPATH and NEEDED in place: a few bytes change, nothing moves, and no page is added.

Source: gABI chapter 5, dynamic section and string table; LSB, symbol versions, whose
names are in that string table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from core.errors import ElfError
from core.frozen import frozen
from wheelkit.archive.output_file import ByteRange
from wheelkit.elf import constants
from wheelkit.elf import elf_tables as reader
from wheelkit.elf.constants import DYNAMIC
from wheelkit.elf.elf_tables import DynamicEntry, ElfImage
from wheelkit.elf.symbol_versions import definitions, needs

_NAMES = frozenset(
    {
        constants.DT_NEEDED,
        constants.DT_SONAME,
        constants.DT_RPATH,
        constants.DT_RUNPATH,
        constants.DT_AUXILIARY,
        constants.DT_FILTER,
        constants.DT_CONFIG,
        constants.DT_DEPAUDIT,
        constants.DT_AUDIT,
    }
)
"""Dynamic tags whose value is an offset in the string table."""


@frozen
class _Table:
    """Dynamic table up to its end, with its string table.

    Attributes:
        spare: unused DT_NULL entries before the last DT_NULL.
        offset: file offset of the string table.
        used: string table offsets that are referenced, except by the RUNPATH entry.
    """

    label: str
    entries: tuple[DynamicEntry, ...]
    spare: tuple[DynamicEntry, ...]
    runpath: DynamicEntry
    offset: int
    strings: bytes
    used: frozenset[int]

    @classmethod
    def read(cls, image: ElfImage) -> _Table:
        entries = image.live_dynamic()
        rest = image.dynamic()[len(entries) :]
        first = {entry.tag: entry.value for entry in reversed(entries)}
        runpath = [entry for entry in entries if entry.tag == constants.DT_RUNPATH]
        if len(runpath) != 1 or constants.DT_STRTAB not in first:
            rpath = constants.DT_RPATH in first
            kind = "RPATH instead of RUNPATH" if rpath else "no RUNPATH"
            raise ElfError(
                f"{image.label} has {kind}.",
                hint="Link the library with -rpath and --enable-new-dtags.",
            )
        offset = image.offset_of(first[constants.DT_STRTAB])
        strings = image.read(offset, first.get(constants.DT_STRSZ, 0))
        return cls(
            label=image.label,
            entries=entries,
            spare=rest[:-1] if all(e.tag == 0 for e in rest) else (),
            runpath=runpath[0],
            offset=offset,
            strings=strings,
            used=frozenset(_references(image, entries, runpath[0])),
        )

    @property
    def length(self) -> int:
        """Length of the RUNPATH string in bytes, without its NUL."""
        return len(reader.bytes_at(self.strings, self.runpath.value, self.label))

    @property
    def room(self) -> int:
        """Maximum length of a new RUNPATH in bytes, without its NUL.

        Up to the next referenced string.

        A RUNPATH that was shortened in place, for example by patchelf, is followed by
        unused bytes.
        """
        end = self.runpath.value + self.length
        after = min((o for o in self.used if o >= end), default=len(self.strings))
        return max(self.length, after - self.runpath.value - 1)


def _references(
    image: ElfImage, entries: tuple[DynamicEntry, ...], runpath: DynamicEntry
) -> Iterator[int]:
    for entry in entries:
        if entry.tag in _NAMES and entry is not runpath:
            yield entry.value
    symbols = image.of_type(constants.SHT_DYNSYM)
    if symbols:
        yield from (symbol.name for symbol in image.symbols(symbols))
    tags = {entry.tag: entry.value for entry in reversed(entries)}
    for _, name, library in needs(image, tags):
        yield from (name, library)
    yield from (name for _, name in definitions(image, tags))


def set_runpath(path: Path, runpath: str) -> list[ByteRange]:
    """Overwrite the RUNPATH of a library and fill the rest of its old bytes with NULs.

    Returns:
        The changed ranges of the file; empty if the library already has this RUNPATH.

    Raises:
        ElfError: the library has no RUNPATH, the new RUNPATH is too long or invalid, or
            another name shares the bytes of the old RUNPATH.
    """
    new = os.fsencode(runpath)
    with reader.open_image(path) as image:
        table = _Table.read(image)
    start = table.runpath.value
    length = table.length
    room = table.room
    if table.strings[start : start + length] == new:
        return []
    if b"\0" in new or not new:
        raise ElfError(
            f"{runpath!r} cannot be a RUNPATH.",
            hint="Use non-empty text without NUL; separate entries with colons.",
        )
    if len(new) > room:
        raise ElfError(
            f"{table.label}: the new RUNPATH has {len(new)} bytes, but there is room"
            f" for {room}.",
            hint="Shorten the new RUNPATH, or link the library with a longer RUNPATH.",
        )
    if table.strings[start - 1] or any(
        start <= offset < start + length for offset in table.used
    ):
        raise ElfError(
            f"Cannot edit the RUNPATH of {table.label}: another entry of the string"
            " table shares its bytes.",
            hint="Link the library without merging strings.",
        )
    at = table.offset + start
    # A longer RUNPATH fills all the room with NULs: unused bytes after the old RUNPATH
    # may contain text.
    return [_write(path, at, new.ljust(length if len(new) <= length else room, b"\0"))]


def add_needed(path: Path, soname: str) -> list[ByteRange]:
    """Add a NEEDED entry for a soname after the existing NEEDED entries.

    The soname is written to bytes that `set_runpath` freed, unless the string table
    already contains it. The new entry replaces a spare DT_NULL, or else DT_RELACOUNT,
    which only makes loading faster.

    Returns:
        The changed ranges of the file; empty if the library already needs the soname.

    Raises:
        ElfError: there is no room for the soname or the entry.
    """
    name = os.fsencode(soname) + b"\0"
    with reader.open_image(path) as image:
        table = _Table.read(image)
    for entry in table.entries:
        if entry.tag == constants.DT_NEEDED and table.strings.startswith(
            name, entry.value
        ):
            return []
    ranges = []
    value = table.strings.find(name, 1)
    inside = table.runpath.value <= value <= table.runpath.value + table.length
    counts = [entry for entry in table.entries if entry.tag == constants.DT_RELACOUNT]
    if not (table.spare or counts):
        raise ElfError(
            f"{table.label} has no spare dynamic entry for {soname}.",
            hint="Add the soname when the library is linked.",
        )
    if value < 0 or inside:
        value = _free_place(table, len(name), soname)
        ranges.append(_write(path, table.offset + value, name))
    place = (table.spare or counts)[0]
    ranges.append(_write(path, place.offset, DYNAMIC.pack(constants.DT_NEEDED, value)))
    return sorted(ranges)


def _free_place(table: _Table, size: int, soname: str) -> int:
    """Return the string table offset of unused NULs after the RUNPATH and its own NUL."""
    start = table.runpath.value + table.length + 1
    stop = min((o for o in table.used if o >= start), default=len(table.strings))
    # Bytes that no entry refers to may contain text.
    if stop - start < size or any(table.strings[start : start + size]):
        raise ElfError(
            f"{table.label} has no room for the name {soname}.",
            hint="Set a shorter RUNPATH first to make room.",
        )
    return start


def _write(path: Path, offset: int, data: bytes) -> ByteRange:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
    return offset, offset + len(data)
