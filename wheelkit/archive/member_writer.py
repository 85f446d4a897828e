"""Writer of a new wheel: members one after another, then RECORD and the central directory.

Records use the zip64 format only for numbers that require it (APPNOTE 4.3 to 4.5).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from core.digests import sha256_of
from wheelkit.archive.compression import (
    Compressed,
    FileCompression,
    compress,
)
from wheelkit.archive.output_file import OutFile
from wheelkit.archive.record import RecordEntry, format_record
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.archive.zip_format import (
    CENTRAL,
    END,
    END64,
    LOCAL,
    LOCATOR64,
    MAX16,
    MAX32,
    UTF8_NAME,
    ZIP64_EXTRA,
    ZipMember,
)

_TIME, _DATE = 0, 1 << 5 | 1
"""1980-01-01, the earliest timestamp of the zip format, for reproducible output."""
_NEW_FILE = 0o100644 << 16
"""External attributes of a new member: a regular file, rw-r--r--."""


LateContent = Callable[[Mapping[str, RecordEntry]], bytes]
"""Function that returns a small member's content, given the earlier RECORD rows."""


class MemberChange(NamedTuple):
    """One member of the new wheel: the old member if any, and its new content if it changes."""

    old: ZipMember | None = None
    new: bytes | Path | LateContent | None = None


class MemberWriter:
    """Writer of the members of a new archive.

    Args:
        files: running compression of each member whose new content is a file.

    Attributes:
        record: RECORD rows of the members written so far.
    """

    def __init__(
        self,
        source: WheelArchive,
        out: OutFile,
        files: dict[str, FileCompression],
    ) -> None:
        self._source = source
        self._out = out
        self._files = files
        self._old_record = source.record()
        self._members: list[ZipMember] = []
        self.record: dict[str, RecordEntry] = {}

    def add(self, name: str, entry: MemberChange) -> None:
        """Write one member.

        Raises:
            ArchiveError: the source is damaged, or the compressed data does not inflate
                to the new content.
        """
        match entry.new:
            case None:
                self._copy(name, entry)
            case Path():
                # Removed, so that the memory is free once the member is written.
                file = self._files.pop(name)
                compressed, digest = file.result()
                self._write(name, entry, compressed, file.size, digest)
            case new:
                data = new if isinstance(new, bytes) else new(self.record)
                compressed = compress(name, data)
                self._write(name, entry, compressed, len(data), sha256_of(data))

    def finish(self, record: str) -> None:
        """Write RECORD as the member `record`, then the central directory."""
        text = format_record([*self.record.items(), (record, RecordEntry(None, None))])
        old = self._source[f"{self._source.dist_info}/RECORD"]
        self.add(record, MemberChange(old=old, new=text))
        self._out.write(central_directory(self._members, self._out.position))

    def _copy(self, name: str, entry: MemberChange) -> None:
        old = entry.old
        assert old is not None, "a change has an old member or new content"
        recorded = self._old_record.get(old.name, RecordEntry(None, None))
        digest = recorded.sha256 or self._source.digest(old.name)
        member = old._replace(name=name, header_offset=self._out.position)
        self._out.write(local_header(member))
        self._out.copy(self._source.fileno(), old.data_offset, old.compressed_size)
        self._done(member, digest)

    def _write(
        self,
        name: str,
        entry: MemberChange,
        compressed: Compressed,
        size: int,
        digest: str,
    ) -> None:
        member = ZipMember(
            name=name,
            method=compressed.method,
            crc32=compressed.crc32,
            compressed_size=len(compressed.data),
            size=size,
            external_attr=entry.old.external_attr if entry.old else _NEW_FILE,
            header_offset=self._out.position,
            data_offset=0,
        )
        self._out.write(local_header(member))
        self._out.write(compressed.data)
        self._done(member, digest)

    def _done(self, member: ZipMember, digest: str) -> None:
        self._members.append(member)
        self.record[member.name] = RecordEntry(digest, member.size)


def local_header(member: ZipMember) -> bytes:
    """Return the local header of `member`, in zip64 format if a size requires it."""
    name = member.name.encode()
    wide = max(member.size, member.compressed_size) >= MAX32
    sizes = struct.pack("<HHQQ", ZIP64_EXTRA, 16, member.size, member.compressed_size)
    extra = sizes if wide else b""
    packed, size = (MAX32, MAX32) if wide else (member.compressed_size, member.size)
    head = LOCAL.pack(
        b"PK\3\4",
        45 if wide else 20,
        _name_flag(name),
        member.method,
        _TIME,
        _DATE,
        member.crc32,
        packed,
        size,
        len(name),
        len(extra),
    )
    return head + name + extra


def central_directory(members: Sequence[ZipMember], offset: int) -> bytes:
    """Return the central directory and end records for members, written at `offset`."""
    entries = b"".join(_central_entry(member) for member in members)
    count = len(members)
    size = len(entries)
    end64 = b""
    if count >= MAX16 or size >= MAX32 or offset >= MAX32:
        end64 = END64.pack(
            b"PK\6\6", END64.size - 12, 0x032D, 45, 0, 0, count, count, size, offset
        )
        end64 += LOCATOR64.pack(b"PK\6\7", 0, offset + size, 1)
    short = min(count, MAX16)
    return (
        entries
        + end64
        + END.pack(
            b"PK\5\6", 0, 0, short, short, min(size, MAX32), min(offset, MAX32), 0
        )
    )


def _central_entry(member: ZipMember) -> bytes:
    name = member.name.encode()
    values = (member.size, member.compressed_size, member.header_offset)
    wide = [value for value in values if value >= MAX32]
    extra = (
        struct.pack(f"<HH{len(wide)}Q", ZIP64_EXTRA, 8 * len(wide), *wide)
        if wide
        else b""
    )
    need = 45 if wide else 20
    head = CENTRAL.pack(
        b"PK\1\2",
        3 << 8 | need,
        need,
        _name_flag(name),
        member.method,
        _TIME,
        _DATE,
        member.crc32,
        min(member.compressed_size, MAX32),
        min(member.size, MAX32),
        len(name),
        len(extra),
        0,
        0,
        0,
        member.external_attr,
        min(member.header_offset, MAX32),
    )
    return head + name + extra


def _name_flag(name: bytes) -> int:
    return 0 if name.isascii() else UTF8_NAME
