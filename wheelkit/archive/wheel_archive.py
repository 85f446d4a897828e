"""Strict reader of wheel archives.

An archive that two zip readers could interpret differently is an error.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from isal import isal_zlib

from core.errors import ArchiveError
from core.os_errors import writes_to
from wheelkit.archive.filename import WheelName, canonical
from wheelkit.archive.inflate import CHUNK, InflateError, inflate, packed_chunks
from wheelkit.archive.output_file import reserve
from wheelkit.archive.record import RecordEntry, parse_record
from wheelkit.archive.zip_check import locate_members
from wheelkit.archive.zip_format import (
    STORED,
    ZipMember,
    full_pread,
    read_central,
    read_end,
)

# Modules that re-tagging a wheel does not need are imported where they are used.
if TYPE_CHECKING:
    from email.message import Message

    from core.model import Progress

Sink = Callable[[bytes], object]
INLINE = 1 << 20
"""Members up to this many bytes are hashed without a thread."""
_WAITING = 8
"""Maximum number of chunks that wait for a sink; with chunks of 1 MiB, this bounds the memory."""
_AGAIN = "Download the wheel again."


class WheelArchive:
    """An open wheel; a context manager. Its methods may be called from several threads.

    Args:
        name: the final file name, if the file still has a temporary one.

    Attributes:
        path: path of the archive.
        name: parsed file name of the wheel.
        members: files in the order of the central directory, without directory entries.
        size: size of the archive in bytes.

    Raises:
        ArchiveError: the archive is invalid (PEP 427, PEP 491); the message lists every
            problem.
    """

    def __init__(self, path: Path, *, name: WheelName | None = None) -> None:
        self.path = Path(path)
        self.name = name or WheelName.parse(self.path.name)
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ArchiveError(f"Cannot open {self.path}: {error.strerror}.") from error
        try:
            self.size = os.fstat(self._fd).st_size
            self.members = self._read_members()
            self._by_name = {member.name: member for member in self.members}
        except BaseException:
            self.close()
            raise

    def _read_members(self) -> tuple[ZipMember, ...]:
        problems: list[str] = []
        try:
            end = read_end(self.pread, self.size)
            directory = self.pread(end.directory_size, end.directory_offset)
            entries = read_central(directory, end.members, problems)
        except ArchiveError as error:
            messages = [error.message, *problems]
            raise ArchiveError(
                f"{self.name}: {' '.join(messages)}", hint=error.hint or _AGAIN
            ) from error
        located = locate_members(entries, end, self.pread, problems)
        members = tuple(member for member in located if not member.name.endswith("/"))
        self.dist_info = self._find_dist_info(entries, problems)
        if problems:
            listed = "".join(f"\n  - {problem}" for problem in problems)
            count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
            raise ArchiveError(
                f"{self.name} is refused for {count}:{listed}\n",
                hint="Download the wheel again, or report it to its builder.",
            )
        return members

    def _find_dist_info(self, entries: list[ZipMember], problems: list[str]) -> str:
        """Find the only .dist-info directory and check its name against the file name (PEP 427)."""
        tops = {entry.name.partition("/")[0] for entry in entries if "/" in entry.name}
        names = sorted(top for top in tops if top.endswith(".dist-info"))
        if len(names) != 1:
            problems.append(
                f"the wheel has {len(names)} .dist-info directories instead of one"
                f" {names or ''}".rstrip()
            )
            return names[0] if names else ""
        project, _, version = names[0].removesuffix(".dist-info").partition("-")
        if canonical(project) != self.name.canonical or version != self.name.version:
            problems.append(f"{names[0]} does not match the file name")
        return names[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; closing it twice is allowed."""
        fd = self._fd
        self._fd = -1
        if fd >= 0:
            os.close(fd)

    def fileno(self) -> int:
        """Return the file's descriptor, for raw copies."""
        return self._fd

    def pread(self, size: int, offset: int) -> bytes:
        """Read raw bytes of the archive; return fewer bytes at its end."""
        return full_pread(self._fd, size, offset)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> ZipMember:
        try:
            return self._by_name[name]
        except KeyError:
            raise ArchiveError(f"{self.name} has no member {name}.") from None

    def head(self, name: str) -> bytes:
        """Return the first bytes of a member, at most 1 MiB; raises as `chunks` does."""
        return next(iter(self.chunks(name)), b"")

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the uncompressed bytes of a member, at most 1 MiB at a time.

        Raises:
            ArchiveError: the member is damaged. A wrong size or CRC is raised no later
                than after the last chunk.
        """
        member = self[name]
        crc = size = 0
        read = self._stored if member.method == STORED else self._inflated
        problem = ""
        for chunk in read(member):
            size += len(chunk)
            if size > member.size:
                break
            crc = isal_zlib.crc32(chunk, crc)
            yield chunk
        if size > member.size:
            problem = f"is larger than the declared {member.size} bytes"
        elif size < member.size:
            problem = f"has {size} bytes instead of the declared {member.size}"
        elif crc != member.crc32:
            problem = f"has CRC {crc:08x} instead of the declared {member.crc32:08x}"
        if problem:
            raise self._damaged(member, f"the content {problem}")

    def read(self, name: str, limit: int = 64 << 20) -> bytes:
        """Return all bytes of a member.

        Raises:
            ArchiveError: the member is damaged, or has more than `limit` bytes.
        """
        if self[name].size > limit:
            raise ArchiveError(
                f"{name} in {self.name} has {self[name].size} bytes; the limit is"
                f" {limit}."
            )
        return b"".join(self.chunks(name))

    def digest(self, name: str, *sinks: Sink) -> str:
        """Return the SHA-256 of a member in hexadecimal.

        Pass every chunk to `sinks`, each in its own thread.
        """
        digest = hashlib.sha256()
        if self[name].size <= INLINE:
            for chunk in self.chunks(name):
                for sink in (digest.update, *sinks):
                    sink(chunk)
        else:
            _pump(self.chunks(name), digest.update, *sinks)
        return digest.hexdigest()

    def extract(self, name: str, out: Path, *, progress: Progress | None = None) -> str:
        """Write a member to `out`; inflating, hashing and writing overlap.

        Returns:
            SHA-256 of the content in hexadecimal.

        Raises:
            ArchiveError: the member is damaged; `out` is removed.
        """
        with self._output(name, out, progress) as write:
            return self.digest(name, write)

    def unpack(self, name: str, out: Path, *, progress: Progress | None = None) -> None:
        """Write a member to `out`, without the slow SHA-256 of `extract`.

        Raises:
            ArchiveError: the member is damaged; `out` is removed.
        """
        with self._output(name, out, progress) as write:
            for chunk in self.chunks(name):
                write(chunk)

    @contextmanager
    def _output(
        self, name: str, out: Path, progress: Progress | None
    ) -> Iterator[Sink]:
        """Provide a function that writes a member's next chunk to `out`."""
        total = self[name].size
        done = 0
        out.unlink(missing_ok=True)
        try:
            with writes_to(out), out.open("wb", buffering=0) as file:
                reserve(file.fileno(), 0, total)

                def write(chunk: bytes) -> None:
                    nonlocal done
                    rest = memoryview(chunk)
                    while rest:
                        rest = rest[file.write(rest) :]
                    done += len(chunk)
                    if progress is not None:
                        progress.advance(done, total)

                yield write
        except BaseException:
            out.unlink(missing_ok=True)
            raise

    def record(self) -> dict[str, RecordEntry]:
        """Return RECORD as a mapping from path to hash and size.

        Raises:
            ArchiveError: RECORD is missing or malformed, or lists a path twice.
        """
        rows, problems = parse_record(self._info("RECORD"))
        counts = Counter(path for path, _ in rows)
        problems += [
            f"{path} is listed twice" for path, count in counts.items() if count > 1
        ]
        if problems:
            raise ArchiveError(
                f"RECORD of {self.name} is malformed: {'; '.join(problems)}."
            )
        return dict(rows)

    def headers(self, name: str) -> Message:
        """Return METADATA (core metadata specification) or WHEEL (PEP 427)."""
        import email  # Start-up time: re-tagging a wheel does not need it.

        return email.message_from_string(self._info(name))

    def _info(self, name: str) -> str:
        path = f"{self.dist_info}/{name}"
        try:
            text = self.read(path).decode()
        except UnicodeDecodeError as error:
            raise ArchiveError(f"{path} in {self.name} is not UTF-8.") from error
        if text.startswith("\ufeff"):  # it would hide the first field
            raise ArchiveError(f"{path} in {self.name} has a byte order mark.")
        return text

    def _stored(self, member: ZipMember) -> Iterator[bytes]:
        for at in range(member.data_offset, member.data_end, CHUNK):
            yield self.pread(min(CHUNK, member.data_end - at), at)

    def _inflated(self, member: ZipMember) -> Iterator[bytes]:
        try:
            yield from inflate(
                packed_chunks(self.pread, member.data_offset, member.compressed_size)
            )
        except InflateError as error:
            raise self._damaged(member, str(error)) from error

    def _damaged(self, member: ZipMember, what: str) -> ArchiveError:
        return ArchiveError(
            f"{member.name} in {self.name} is damaged: {what}.", hint=_AGAIN
        )


def _pump(chunks: Iterable[bytes], *sinks: Sink) -> None:
    """Pass every chunk to every sink, in order.

    Hashing, writing and inflating overlap because they release the GIL.

    Raises:
        BaseException: the error of the producer or of the first failing sink.
    """
    # Start-up time: re-tagging a wheel needs no threads.
    from concurrent.futures import Future, ThreadPoolExecutor

    threads = [ThreadPoolExecutor(1) for _ in sinks]
    waiting: deque[Future[object]] = deque()
    try:
        for chunk in chunks:
            waiting.extend(
                thread.submit(sink, chunk)
                for thread, sink in zip(threads, sinks, strict=True)
            )
            while len(waiting) > _WAITING * len(sinks):
                waiting.popleft().result()
        for future in waiting:
            future.result()
    finally:
        for thread in threads:
            thread.shutdown(cancel_futures=True)
