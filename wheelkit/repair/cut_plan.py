"""Offsets at which to split the compressed data of a large library before the library is edited."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from wheelkit.archive.blocks import ANY_WINDOW, SEARCHED, CutPoints, find_block
from wheelkit.archive.inflate import CHUNK, WINDOW, InflateError, inflate
from wheelkit.archive.reader import WheelArchive
from wheelkit.archive.zip_format import DEFLATED, ZipMember
from wheelkit.elf.constants import HEADER, SECTION, SHF_ALLOC, SHF_EXECINSTR, SHT_DYNAMIC, SHT_PROGBITS, SHT_STRTAB
from wheelkit.gpu.bundle import PAGE

_LEADS = 8 << 20, 2 << 20
"""Distances in bytes from a split point to the section after it; with large blocks, the nearer point may come late."""

Row = tuple[int, ...]
"""Fields of a section header: name, type, flags, address, offset, size, link, info, alignment, entry size."""


def plan_cuts(archive: WheelArchive, member: ZipMember) -> CutPoints:
    """Return split points around dynamic strings, dynamic tables and fat binaries, and before debug sections.

    Split points are guesses: after a wrong guess, more of the library or all of it is recompressed.
    """
    goals: list[int] = []
    for _, kind, flags, _, offset, size, *_, alignment, _ in _sections(archive, member):
        if not flags & SHF_ALLOC:
            goals += [offset - lead for lead in _LEADS]
            break
        loading = kind in (SHT_STRTAB, SHT_DYNAMIC)
        fat = kind == SHT_PROGBITS and not flags & SHF_EXECINSTR and alignment == PAGE
        if loading or fat:
            goals += [*(offset - lead for lead in _LEADS), offset + size + WINDOW]
    return CutPoints(goal for goal in goals if 0 < goal < member.size)


def _sections(archive: WheelArchive, member: ZipMember) -> Iterator[Row]:
    """Yield the section headers, without the null section.

    Yields nothing unless the member is deflated and the header table is in its last bytes, where linkers usually
    put it.
    """
    head = next(archive.chunks(member.name), b"")
    if member.method != DEFLATED or len(head) < HEADER.size:
        return
    _, _, _, _, _, _, table, _, _, _, _, row_size, count, _ = HEADER.unpack_from(head)
    wanted = member.size - table
    if row_size != SECTION.size or not SECTION.size * count <= wanted <= CHUNK:
        return
    searched = min(SEARCHED, member.compressed_size)
    data = archive.pread(searched, member.data_end - searched)
    block = find_block(data)
    tail = b""
    with suppress(InflateError):
        for chunk in inflate([data[block:]] if block is not None else [], window=ANY_WINDOW):
            tail = chunk[-wanted:] if len(chunk) >= wanted else (tail + chunk)[-wanted:]
    if len(tail) == wanted:
        yield from list(SECTION.iter_unpack(tail[: SECTION.size * count]))[1:]
