"""GNU symbol versions in the raw tables: versions required from other libraries, and versions defined.

Source: Linux Standard Base Core Specification, symbol versioning.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from wheelkit.elf import constants
from wheelkit.elf.reader import ElfImage

_NEED = struct.Struct("<HHIII")  # version, count, file name, first auxiliary, next
_NEED_AUX = struct.Struct("<IHHII")  # hash, flags, index, name, next
_DEF = struct.Struct("<HHHHIII")  # version, flags, index, count, hash, first auxiliary, next
_DEF_AUX = struct.Struct("<II")  # name, next


def needs(image: ElfImage, tags: Mapping[int, int]) -> Iterator[tuple[int, int, int]]:
    """Yield (version index, offset of the version's name, offset of the library's name) of each required version.

    Args:
        image: the file.
        tags: dynamic tag -> its first value.
    """
    if constants.DT_VERNEED not in tags:
        return
    position = image.offset_of(tags[constants.DT_VERNEED])
    for _ in range(tags.get(constants.DT_VERNEEDNUM, 0)):
        _, count, library, first, following = _NEED.unpack(image.read(position, _NEED.size))
        auxiliary = position + first
        for _ in range(count):
            _, _, index, name, step = _NEED_AUX.unpack(image.read(auxiliary, _NEED_AUX.size))
            yield index & 0x7FFF, name, library
            if not step:
                break
            auxiliary += step
        if not following:
            break
        position += following


def definitions(image: ElfImage, tags: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Yield (version index, offset of the name) of each defined version, followed by those of its parents."""
    if constants.DT_VERDEF not in tags:
        return
    position = image.offset_of(tags[constants.DT_VERDEF])
    for _ in range(tags.get(constants.DT_VERDEFNUM, 0)):
        _, _, index, count, _, first, following = _DEF.unpack(image.read(position, _DEF.size))
        auxiliary = position + first
        for _ in range(count):
            name, step = _DEF_AUX.unpack(image.read(auxiliary, _DEF_AUX.size))
            yield index & 0x7FFF, name
            if not step:
                break
            auxiliary += step
        if not following:
            break
        position += following


def version_names(image: ElfImage, tags: Mapping[int, int]) -> Iterator[int]:
    """Yield the offsets in the dynamic string table of every name in the version tables."""
    for _, name, library in needs(image, tags):
        yield name
        yield library
    yield from (name for _, name in definitions(image, tags))
