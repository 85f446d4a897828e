"""Members of a new wheel, written one after another, then RECORD and the central directory."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from wheelkit.archive.output_file import OutFile
from wheelkit.archive.reader import WheelArchive
from wheelkit.archive.record import RecordEntry, format_record
from wheelkit.archive.zip_format import DEFLATED, STORED, DateTime, ZipMember
from wheelkit.archive.zip_writer import central_directory, is_wide, local_header

if TYPE_CHECKING:  # re-tagging a wheel needs neither threads nor libz
    from wheelkit.archive.file_member import FileContent

EPOCH: DateTime = (1980, 1, 1, 0, 0, 0)
"""The earliest timestamp of the zip format, for new members and reproducible output."""
_LEVEL = 6
_NEW_FILE = 0o100644 << 16
"""External attributes of a new member: a regular file, rw-r--r--."""


LateContent = Callable[[Mapping[str, RecordEntry]], bytes]
"""Returns a small member's content, given the RECORD rows of the members written before it."""


class MemberChange(NamedTuple):
    """One member of the new wheel: the old member if any, and its new content and mode if they change."""

    old: ZipMember | None = None
    new: bytes | FileContent | LateContent | None = None
    mode: int | None = None


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
        """Write RECORD under this name, then the central directory."""
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
        from wheelkit.archive.file_member import write_file

        fd = os.open(content.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            # The header is written twice: its numbers are known last, but its length must be right at once.
            # Deflate adds at most 5 bytes to each 16 KiB, so 1/1024 and 1 MiB are enough.
            wide = is_wide(size + size // 1024 + (1 << 20))
            draft = self._member(name, entry)._replace(size=size)
            self._out.write(local_header(draft, wide=wide))
            begin = self._out.position
            sums = write_file(name, content, fd, self._out, source=self._source, old=entry.old)
        finally:
            os.close(fd)
        member = draft._replace(crc32=sums.crc32, compressed_size=self._out.position - begin)
        self._out.patch(local_header(member, wide=wide), member.header_offset)
        self._done(member, sums.sha256)

    def _member(self, name: str, entry: MemberChange) -> ZipMember:
        old = entry.old
        attributes = old.external_attr if old else _NEW_FILE
        if entry.mode is not None:
            attributes = (0o100000 | entry.mode) << 16
        return ZipMember(
            name=name,
            method=DEFLATED,
            crc32=0,
            compressed_size=0,
            size=0,
            external_attr=attributes,
            date_time=self._date_time or (old.date_time if old else EPOCH),
            header_offset=self._out.position,
            data_offset=0,
        )

    def _done(self, member: ZipMember, digest: str) -> None:
        self._members.append(member)
        self.record[member.name] = RecordEntry(digest, member.size)
