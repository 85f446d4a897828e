"""GNU symbol versions in the raw tables.

Versions required from other libraries, and versions defined.

Source: Linux Standard Base Core Specification, symbol versioning.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from wheelkit.elf import constants
from wheelkit.elf.elf_tables import ElfImage

_NEED = struct.Struct("<HHIII")  # version, count, file name, first auxiliary, next
_NEED_AUX = struct.Struct("<IHHII")  # hash, flags, index, name, next
DEFINITION = struct.Struct(
    "<HHHHIII"
)  # version, flags, index, count, hash, first auxiliary, next
DEFINITION_NAME = struct.Struct("<II")  # name, next


def needs(image: ElfImage, tags: Mapping[int, int]) -> Iterator[tuple[int, int, int]]:
    """Yield (version index, version name offset, library name offset) per required version.

    Args:
        tags: dynamic tag -> its first value.
    """
    places = tags.get(constants.DT_VERNEED), tags.get(constants.DT_VERNEEDNUM, 0)
    for (_, _, library, *_), (_, _, index, name, _) in _records(
        image, *places, _NEED, _NEED_AUX
    ):
        yield index & 0x7FFF, name, library


def definitions(image: ElfImage, tags: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Yield (version index, name offset) of each defined version, then of its parents."""
    places = tags.get(constants.DT_VERDEF), tags.get(constants.DT_VERDEFNUM, 0)
    for (_, _, index, *_), (name, _) in _records(
        image, *places, DEFINITION, DEFINITION_NAME
    ):
        yield index & 0x7FFF, name


def _records(
    image: ElfImage,
    address: int | None,
    number: int,
    head: struct.Struct,
    row: struct.Struct,
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield each record of a version table with each of its auxiliary records."""
    position = 0 if address is None else image.offset_of(address)
    for _ in range(0 if address is None else number):
        record = head.unpack(image.read(position, head.size))
        count = record[-4]
        first = record[-2]
        following = record[-1]
        auxiliary = position + first
        for _ in range(count):
            names = row.unpack(image.read(auxiliary, row.size))
            yield record, names
            if not names[-1]:
                break
            auxiliary += names[-1]
        if not following:
            break
        position += following
