"""Differences between an archive and the form in which this program writes archives.

Archives that this program wrote are canonical: one form of headers, one timestamp, no
gaps, RECORD last. A later change by another program, even one that readers accept, thus
shows.
"""

from __future__ import annotations

from collections.abc import Iterator

from core.errors import ArchiveError
from wheelkit.archive.member_writer import central_directory, local_header
from wheelkit.archive.record import RecordEntry, format_record, parse_record
from wheelkit.archive.wheel_archive import WheelArchive

_REGULAR, _PERMISSIONS = 0o100000 << 16, 0o775 << 16
"""External attributes of members: regular files, whose permissions the writer keeps."""


def check_canonical(archive: WheelArchive) -> dict[str, list[str]]:
    """Return a mapping: clause about a difference -> the files that it is about.

    None for the archive as a whole.
    """
    found: dict[str, list[str]] = {}
    for name, clause in _differences(archive):
        found.setdefault(clause, []).extend([name] if name else [])
    return found


def _differences(archive: WheelArchive) -> Iterator[tuple[str, str]]:
    position = 0
    record = f"{archive.dist_info}/RECORD"
    for member in archive.members:
        header = local_header(member)
        if archive.pread(len(header), position) != header:
            text = (
                "the local headers have other flags, times, versions, extra fields or"
                " places"
            )
            yield member.name, text
        if member.external_attr & ~_PERMISSIONS != _REGULAR:
            text = f"the headers have external attributes 0x{member.external_attr:x}"
            yield member.name, text
        position = member.data_end
    if archive.members and archive.members[-1].name != record:
        yield archive.members[-1].name, "RECORD is not the last file"
    directory = central_directory(archive.members, position)
    if archive.pread(max(0, archive.size - position), position) != directory:
        text = (
            "the central directory has comments, extra fields, folders or versions of"
            " other writers"
        )
        yield "", text
    yield from _record_differences(archive, record)


def _record_differences(archive: WheelArchive, name: str) -> Iterator[tuple[str, str]]:
    """Compare the form of RECORD; other checks compare its hashes."""
    try:
        body = archive.read(name)
        rows = dict(parse_record(body.decode())[0])
    except (ArchiveError, UnicodeDecodeError):
        return  # reported where RECORD is read
    empty = RecordEntry(None, None)
    order = [
        (member.name, rows.get(member.name, empty))
        for member in archive.members
        if member.name != name
    ]
    if body != format_record([*order, (name, empty)]):
        text = "the rows of RECORD have another order or form than the archive's files"
        yield name, text
