"""Writing the members of a new wheel one after the other, with RECORD and the central directory at the end."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from isal import isal_zlib

from ci_build.errors import ArchiveError
from ci_build.wheel.archive import WheelArchive
from ci_build.wheel.deflate import BlockIndex, scan_blocks
from ci_build.wheel.inflate import CHUNK, InflateError
from ci_build.wheel.outfile import OutFile
from ci_build.wheel.proof import write_proven
from ci_build.wheel.record import RecordEntry, format_record
from ci_build.wheel.splice import LEVEL, Fresh, Range, Raw, Splicer, plan_splice, scan_goal
from ci_build.wheel.zipformat import DEFLATED, STORED, DateTime, Member
from ci_build.wheel.zipwrite import central_directory, is_wide, local_header

EPOCH: DateTime = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip archive can hold; new members get it."""
_NEW_FILE = 0o100644 << 16
"""External attributes of a new member: a regular file, rw-r--r--."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """New content from a file; `changed` and `blocks` as `WheelRewrite.set_file` takes them."""

    path: Path
    changed: tuple[Range, ...] | None
    blocks: BlockIndex | None


Late = Callable[[Mapping[str, RecordEntry]], bytes]
"""Makes a small member from what RECORD will say of those that are written before it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One member of the new wheel: its old self, if it has one, and its new content and mode, if they change."""

    old: Member | None = None
    new: bytes | Content | Late | None = None
    mode: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sums:
    """What a zip archive and RECORD want to know of a file: CRC-32, and SHA-256 in hexadecimal."""

    crc32: int
    sha256: str


def file_sums(fd: int) -> Sums:
    """Read an open file once, from its beginning."""
    crc, digest, at = 0, hashlib.sha256(), 0
    buffer = memoryview(bytearray(CHUNK))
    while count := os.preadv(fd, [buffer], at):
        crc = isal_zlib.crc32(buffer[:count], crc)
        digest.update(buffer[:count])
        at += count
    return Sums(crc32=crc, sha256=digest.hexdigest())


class MemberWriter:
    """Appends members to a new archive.

    Attributes:
        record: what RECORD will say of the members so far.
    """

    def __init__(self, source: WheelArchive, out: OutFile, date_time: DateTime | None) -> None:
        self._source = source
        self._out = out
        self._date_time = date_time
        self._old_record = source.record()
        self._members: list[Member] = []
        self.record: dict[str, RecordEntry] = {}

    def add(self, name: str, entry: Entry) -> None:
        """Write one member.

        Raises:
            ArchiveError: the source is damaged, or a content file is not what it was said to be.
        """
        match entry.new:
            case None:
                self._copy(name, entry)
            case bytes() as data:
                self._small(name, data, entry)
            case Content() as content:
                self._file(name, content, entry)
            case late:
                self._small(name, late(self.record), entry)

    def finish(self, record: str) -> None:
        """Write RECORD under this name, and the central directory."""
        text = format_record([*self.record.items(), (record, RecordEntry(None, None))])
        self._small(record, text, Entry(old=self._source[f"{self._source.dist_info}/RECORD"]))
        self._out.write(central_directory(self._members, self._out.position))

    def _copy(self, name: str, entry: Entry) -> None:
        old = entry.old
        assert old is not None, "an entry has an old self or new content"
        recorded = self._old_record.get(old.name)
        digest = recorded.sha256 if recorded and recorded.sha256 else self._source.digest(old.name)
        member = replace(self._member(name, entry), method=old.method, crc32=old.crc32, size=old.size)
        member = replace(member, compressed_size=old.compressed_size)
        self._out.write(local_header(member))
        self._out.copy(self._source.fileno(), old.data_offset, old.compressed_size)
        self._done(member, digest)

    def _small(self, name: str, data: bytes, entry: Entry) -> None:
        packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -15)
        packed = packer.compress(data) + packer.flush()
        method, body = (DEFLATED, packed) if len(packed) < len(data) else (STORED, data)
        member = replace(
            self._member(name, entry), method=method, crc32=zlib.crc32(data), compressed_size=len(body), size=len(data)
        )
        self._out.write(local_header(member) + body)
        self._done(member, hashlib.sha256(data).hexdigest())

    def _file(self, name: str, content: Content, entry: Entry) -> None:
        fd = os.open(content.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            # The header is written twice: its numbers are known last, its length has to be right at once.
            # Deflate adds at most 5 bytes to each 16 KiB, so 1/1024 and a little is plenty.
            wide = is_wide(size + size // 1024 + CHUNK)
            draft = replace(self._member(name, entry), size=size)
            self._out.write(local_header(draft, wide=wide))
            pieces = self._plan(content, entry.old, size)
            begin, old_offset = self._out.position, entry.old.data_offset if entry.old else 0
            splicer = Splicer(self._out, old=self._source.fileno(), old_offset=old_offset, content=fd)
            with ThreadPoolExecutor(2) as pool:
                proofs = list(write_proven(pool, splicer, pieces, self._out, fd, size))
                sums = pool.submit(file_sums, fd).result()
                for proof in proofs:
                    proof.result()
        except InflateError as error:
            raise ArchiveError(
                f"{name} would not hold its new content: {error}.",
                hint="Give set_file every changed range, or none; if they are right, the source is damaged.",
            ) from error
        finally:
            os.close(fd)
        member = replace(draft, crc32=sums.crc32, compressed_size=self._out.position - begin)
        self._out.patch(local_header(member, wide=wide), member.header_offset)
        self._done(member, sums.sha256)

    def _plan(self, content: Content, old: Member | None, size: int) -> Sequence[Raw | Fresh]:
        blocks = content.blocks
        if old is not None and old.method == DEFLATED and content.changed is not None:
            goal = scan_goal(content.changed, old.size, size)
            if blocks is None or not (blocks.complete or blocks.reach >= goal):
                blocks = scan_blocks(self._source.pread, old.data_offset, old.compressed_size, until=goal)
            if blocks is not None:
                return plan_splice(blocks, content.changed, old.size, size, old.compressed_size)
        return (Fresh(0, size, last=True),)

    def _member(self, name: str, entry: Entry) -> Member:
        old = entry.old
        attributes = old.external_attr if old else _NEW_FILE
        if entry.mode is not None:
            attributes = (0o100000 | entry.mode) << 16
        return Member(
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

    def _done(self, member: Member, digest: str) -> None:
        self._members.append(member)
        self.record[member.name] = RecordEntry(digest, member.size)
