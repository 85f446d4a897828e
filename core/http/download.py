"""Downloads in parallel ranges if the server supports ranges, resumed after every failure.

The bytes arrive in order, so that a caller can resume a file on disk after a crash, or
unpack an archive during its download. Ranges and validators follow RFC 9110 (sections
14 and 8.8).
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import urllib3
from urllib3.exceptions import ProtocolError

from core.errors import InputError
from core.http.client import (
    TRANSIENT,
    Client,
    Session,
    StoppedError,
    Tries,
    canonical,
)

PIECE = 4 << 20
"""Bytes of one range request."""
AHEAD = 6
"""Maximum number of pieces that are requested or wait in memory."""
_READ = 256 << 10


class Hash(Protocol):
    """A hash of hashlib."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add bytes."""

    def digest(self) -> bytes:
        """Return the digest of the bytes so far."""

    def hexdigest(self) -> str:
        """Return the digest of the bytes so far as hexadecimal text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileVersion:
    """Version of a file on a server.

    Attributes:
        size: size in bytes; None if the server does not send the size.
        etag, modified: validators of the file (ETag, Last-Modified); empty if the
            server does not send them.
    """

    size: int | None
    etag: str = ""
    modified: str = ""

    def differs(self, other: FileVersion) -> bool:
        """Return whether a property that is known of both versions differs."""
        pairs = (
            (self.size, other.size),
            (self.etag, other.etag),
            (self.modified, other.modified),
        )
        return any(mine and theirs and mine != theirs for mine, theirs in pairs)

    def to_json(self, **more: str) -> str:
        """Return the JSON text for a file in a cache; `more` adds fields."""
        return json.dumps({**more, **asdict(self)})


def load_version(path: Path) -> tuple[FileVersion | None, str]:
    """Read a file with the text of `FileVersion.to_json`.

    Returns:
        The version, or None if the file is missing or invalid; and the recorded sha256,
        or empty.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        sha256 = str(body.pop("sha256", ""))
        return FileVersion(**body), sha256
    except (OSError, ValueError, TypeError, AttributeError):
        return None, ""


class ChangedError(InputError):
    """A file on a server changed during its download."""


class RemoteFile:
    """A file on a server that is read once.

    Attributes:
        version: version in the server's first answer, or the version that a resuming
            caller has set.
    """

    def __init__(self, client: Client, url: str) -> None:
        self.url = canonical(url)
        self.version = FileVersion(size=None)
        self._connections = client.connections
        self._stop = threading.Event()
        self._session = Session(url, client, self._stop)
        self._open: set[urllib3.BaseHTTPResponse] = set()
        self._lock = threading.Lock()

    def chunks(self, start: int, sha256: Hash) -> Generator[memoryview]:
        """Return the bytes from `start` on, in order; closing the iterator cancels the download.

        Each chunk is valid until the next one is requested.

        Args:
            sha256: hash of the bytes before `start`; it is updated with these bytes.

        Raises:
            InputError: the file does not exist, or all tries failed.
            ChangedError: the file changed.
        """
        if start and start == self.version.size:
            return
        tries = self._session.tries()
        status = 0
        with self._session:
            while not status:
                try:
                    # A request for one byte shows whether the server supports ranges;
                    # if not, it sends the whole file.
                    with self._get(start, start + 1, tries) as response:
                        if response.status == 200:
                            for chunk in self._whole(response, start, sha256):
                                start += len(chunk)
                                tries.reset()
                                yield chunk
                        status = response.status
                except TRANSIENT as error:
                    tries.failed(error)
            if status == 416 and self.version.size != start:
                raise self._changed(
                    f"it has {self.version.size} bytes, but {start} were downloaded"
                )
            if status == 206:
                yield from self._ranges(start, sha256)

    def probe(self) -> FileVersion:
        """Return the version of the file on the server; at most one byte is read."""
        tries = self._session.tries()
        with self._session:
            while True:
                try:
                    with self._get(0, 1, tries):
                        return self.version
                except TRANSIENT as error:
                    tries.failed(error)

    def cancel(self) -> None:
        """Stop the download, and wake every thread that waits for bytes."""
        self._stop.set()
        with self._lock:
            for response in self._open:
                with suppress(Exception):  # the response has just ended
                    response.shutdown()

    def _ranges(self, start: int, sha256: Hash) -> Iterator[memoryview]:
        """Download pieces in parallel, and return them in order.

        Buffers are reused, because allocating memory costs as much time as hashing it.
        """
        assert self.version.size is not None
        free: list[memoryview] = []
        waiting: deque[tuple[Future[None], memoryview, int]] = deque()
        with (
            ThreadPoolExecutor(self._connections, "fetch") as pool,
            ThreadPoolExecutor(1, "hash") as hasher,
        ):
            try:
                while waiting or start < self.version.size:
                    while len(waiting) < AHEAD and start < self.version.size:
                        size = min(PIECE, self.version.size - start)
                        buffer = free.pop() if free else memoryview(bytearray(PIECE))
                        piece = pool.submit(self._piece, start, buffer[:size])
                        waiting.append((piece, buffer, size))
                        start += size
                    piece, buffer, size = waiting.popleft()
                    piece.result()
                    hashed = hasher.submit(sha256.update, buffer[:size])
                    for at in range(0, size, _READ):
                        yield buffer[at : min(at + _READ, size)]
                    hashed.result()
                    free.append(buffer)
            finally:
                self.cancel()
                pool.shutdown(wait=True, cancel_futures=True)

    def _piece(self, start: int, into: memoryview) -> None:
        """Fill a buffer with the bytes from `start` on.

        Each try resumes where the last one ended.
        """
        tries = self._session.tries()
        size = len(into)
        done = 0
        while done < size:
            try:
                with self._get(start + done, start + size, tries) as response:
                    if response.status != 206:
                        raise ProtocolError("the server no longer supports ranges")
                    while data := _read(response, size - done):
                        into[done : done + len(data)] = data
                        done += len(data)
                        tries.reset()
                if done < size:
                    raise ProtocolError("the response ended too early")
            except TRANSIENT as error:
                tries.failed(error)

    def _whole(
        self, response: urllib3.BaseHTTPResponse, start: int, sha256: Hash
    ) -> Iterator[memoryview]:
        """Read a response that begins at byte 0.

        Compare the bytes before `start` and return the rest.
        """
        again = hashlib.sha256()
        at = 0
        while at < start and (data := _read(response, start - at)):
            at += len(data)
            again.update(data)
        if at == start and start and again.digest() != sha256.digest():
            raise self._changed("the bytes that were downloaded before differ now")
        while data := _read(response, _READ):
            at += len(data)
            sha256.update(data)
            yield memoryview(data)
        if at < start or (self.version.size or 0) > at:
            raise ProtocolError(f"the response ended after {at} bytes")

    @contextmanager
    def _get(
        self, start: int, end: int, tries: Tries
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """Request the bytes from `start` up to but excluding `end`.

        Returns:
            A response with status 200 and the whole file, 206 and exactly these bytes,
            or 416 if the file is shorter.
        """
        wanted = {"Range": f"bytes={start}-{end - 1}"}
        answer = self._session.open(self.url, wanted, (416,), tries)
        response: urllib3.BaseHTTPResponse = answer.raw
        with self._lock:
            self._open.add(response)
        try:
            if self._stop.is_set():
                raise StoppedError
            self._check_version(response, start)
            yield response
        finally:
            with self._lock:
                self._open.discard(response)
            # The connection is reused if at most one byte of the response is unread.
            if response.status == 206 and (response.length_remaining or 0) <= 1:
                response.drain_conn()
            response.close()

    def _check_version(self, response: urllib3.BaseHTTPResponse, start: int) -> None:
        headers = response.headers
        content_range = headers.get("Content-Range", "")
        size = headers.get("Content-Length", "")
        if response.status == 416:
            match = re.fullmatch(r"bytes \*/(\d+)", content_range)
            size = match[1] if match else ""
        elif response.status == 206:
            match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", content_range)
            if match is None or int(match[1]) != start:
                raise ProtocolError(f"the server returned the range {content_range!r}")
            size = match[3]
        now = FileVersion(
            size=int(size) if size.isdecimal() else None,
            etag=headers.get("ETag", ""),
            modified=headers.get("Last-Modified", ""),
        )
        if self.version.differs(now):
            raise self._changed("the server has another version now")
        if self.version.size is None:
            self.version = now

    def _changed(self, what: str) -> ChangedError:
        return ChangedError(
            f"{self._session.name} changed during the download: {what}.",
            hint="Fetch it again.",
        )


def _read(response: urllib3.BaseHTTPResponse, most: int) -> bytes:
    return response.read(min(_READ, most), decode_content=False) if most else b""
