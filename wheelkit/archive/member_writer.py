"""Writer of a new wheel: members one after another, then RECORD and the central directory.

Records use the zip64 format only for numbers that require it (APPNOTE 4.3 to 4.5).
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from wheelkit.archive.output_file import OutFile
from wheelkit.archive.reader import WheelArchive
from wheelkit.archive.record import RecordEntry, format_record
from wheelkit.archive.zip_format import (
    CENTRAL,
    DEFLATED,
    END,
    END64,
    LOCAL,
    LOCATOR64,
    MAX16,
    MAX32,
    STORED,
    UTF8_NAME,
    ZIP64_EXTRA,
    DateTime,
    ZipMember,
)

if TYPE_CHECKING:  # re-tagging a wheel needs neither threads nor libz
    from wheelkit.archive.file_member import FileContent

EPOCH: DateTime = (1980, 1, 1, 0, 0, 0)
"""The earliest timestamp of the zip format, for new members and reproducible output."""
_LEVEL = 6
_NEW_FILE = 0o100644 << 16
"""External attributes of a new member: a regular file, rw-r--r--."""


LateContent = Callable[[Mapping[str, RecordEntry]], bytes]
"""Function that returns a small member's content, given the RECORD rows of the members written before it."""


class MemberChange(NamedTuple):
    """One member of the new wheel: the old member if any, and its new content if it changes."""

    old: ZipMember | None = None
    new: bytes | FileContent | LateContent | None = None


class MemberWriter:
    """Writer of the members of a new archive.

    Attributes:
        record: RECORD rows of the members written so far.
    """

    def __init__(self, source: WheelArchive, out: OutFile, date_time: DateTime | None) -> None:
        self._source = source
        self._out = out
        self._date_time = date_time
        self._old_record = source.record()
        self._members: list[ZipMember] = []
        self.record: dict[str, RecordEntry] = {}

    def add(self, name: str, entry: MemberChange) -> None:
        """Write one member.

        Raises:
            ArchiveError: the source is damaged, or a content file does not match its changed ranges.
        """
        match entry.new:
            case None:
                self._copy(name, entry)
            case bytes() as data:
                self._small(name, data, entry)
            case late if callable(late):
                self._small(name, late(self.record), entry)
            case content:
                self._file(name, content, entry)

    def finish(self, record: str) -> None:
        """Write RECORD as the member `record`, then the central directory."""
        text = format_record([*self.record.items(), (record, RecordEntry(None, None))])
        self._small(record, text, MemberChange(old=self._source[f"{self._source.dist_info}/RECORD"]))
        self._out.write(central_directory(self._members, self._out.position))

    def _copy(self, name: str, entry: MemberChange) -> None:
        old = entry.old
        assert old is not None, "a change has an old member or new content"
        recorded = self._old_record.get(old.name)
        digest = recorded.sha256 if recorded and recorded.sha256 else self._source.digest(old.name)
        member = self._member(name, entry)._replace(method=old.method, crc32=old.crc32, size=old.size)
        member = member._replace(compressed_size=old.compressed_size)
        self._out.write(local_header(member))
        self._out.copy(self._source.fileno(), old.data_offset, old.compressed_size)
        self._done(member, digest)

    def _small(self, name: str, data: bytes, entry: MemberChange) -> None:
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -15)
        packed = packer.compress(data) + packer.flush()
        method, body = (DEFLATED, packed) if len(packed) < len(data) else (STORED, data)
        member = self._member(name, entry)._replace(
            method=method, crc32=zlib.crc32(data), compressed_size=len(body), size=len(data)
        )
        self._out.write(local_header(member) + body)
        self._done(member, hashlib.sha256(data).hexdigest())

    def _file(self, name: str, content: FileContent, entry: MemberChange) -> None:
        # Start-up time: re-tagging a wheel needs neither threads nor libz.
        from wheelkit.archive.file_member import write_file

        fd = os.open(content.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            # The header is written twice: its CRC and sizes are known last, but its length must be right at once.
            # Deflate adds at most 5 bytes to each 16 KiB, so 1/1024 and 1 MiB are enough.
            wide = is_wide(size + size // 1024 + (1 << 20))
            draft = self._member(name, entry)._replace(size=size)
            self._out.write(local_header(draft, wide=wide))
            begin = self._out.position
            crc, sha256 = write_file(name, content, fd, self._out, source=self._source, old=entry.old)
        finally:
            os.close(fd)
        member = draft._replace(crc32=crc, compressed_size=self._out.position - begin)
        self._out.patch(local_header(member, wide=wide), member.header_offset)
        self._done(member, sha256)

    def _member(self, name: str, entry: MemberChange) -> ZipMember:
        old = entry.old
        return ZipMember(
            name=name,
            method=DEFLATED,
            crc32=0,
            compressed_size=0,
            size=0,
            external_attr=old.external_attr if old else _NEW_FILE,
            date_time=self._date_time or (old.date_time if old else EPOCH),
            header_offset=self._out.position,
            data_offset=0,
        )

    def _done(self, member: ZipMember, digest: str) -> None:
        self._members.append(member)
        self.record[member.name] = RecordEntry(digest, member.size)


def is_wide(size: int) -> bool:
    """Return whether a number of bytes needs zip64."""
    return size >= MAX32


def local_header(member: ZipMember, *, wide: bool | None = None) -> bytes:
    """Return the local header of `member`, in zip64 format if a size requires it; `wide` overrides the choice."""
    name = member.name.encode()
    if wide is None:
        wide = is_wide(max(member.size, member.compressed_size))
    extra = struct.pack("<HHQQ", ZIP64_EXTRA, 16, member.size, member.compressed_size) if wide else b""
    date, time = _to_dos(member.date_time)
    packed, size = (MAX32, MAX32) if wide else (member.compressed_size, member.size)
    head = LOCAL.pack(
        b"PK\3\4", 45 if wide else 20, _name_flag(name), member.method, time, date, member.crc32, packed, size,
        len(name), len(extra),
    )  # fmt: skip
    return head + name + extra


def central_directory(members: list[ZipMember], offset: int) -> bytes:
    """Return the central directory and end records for members in this order, written at `offset`."""
    entries = b"".join(_central_entry(member) for member in members)
    count, size = len(members), len(entries)
    end64 = b""
    if count >= MAX16 or size >= MAX32 or offset >= MAX32:
        end64 = END64.pack(b"PK\6\6", END64.size - 12, 0x032D, 45, 0, 0, count, count, size, offset)
        end64 += LOCATOR64.pack(b"PK\6\7", 0, offset + size, 1)
    short = min(count, MAX16)
    return entries + end64 + END.pack(b"PK\5\6", 0, 0, short, short, min(size, MAX32), min(offset, MAX32), 0)


def _central_entry(member: ZipMember) -> bytes:
    name = member.name.encode()
    values = (member.size, member.compressed_size, member.header_offset)
    wide = [value for value in values if value >= MAX32]
    extra = struct.pack(f"<HH{len(wide)}Q", ZIP64_EXTRA, 8 * len(wide), *wide) if wide else b""
    date, time = _to_dos(member.date_time)
    need = 45 if wide else 20
    head = CENTRAL.pack(
        b"PK\1\2", 3 << 8 | need, need, _name_flag(name), member.method, time, date, member.crc32,
        min(member.compressed_size, MAX32), min(member.size, MAX32), len(name), len(extra), 0, 0, 0,
        member.external_attr, min(member.header_offset, MAX32),
    )  # fmt: skip
    return head + name + extra


def _to_dos(when: DateTime) -> tuple[int, int]:
    year, month, day, hour, minute, second = when
    return (year - 1980) << 9 | month << 5 | day, hour << 11 | minute << 5 | second // 2


def _name_flag(name: bytes) -> int:
    return 0 if name.isascii() else UTF8_NAME
