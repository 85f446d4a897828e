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
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import urllib3
from urllib3.exceptions import HTTPError, ProtocolError

from core.errors import InputError
from core.http.client import TRANSIENT, Client, Session, StoppedError, canonical

if TYPE_CHECKING:  # it imports this module
    from core.http.part import PartFile

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

    def chunks(
        self, start: int, sha256: Hash, part: PartFile | None = None
    ) -> Iterator[memoryview]:
        """Return the bytes from `start` on, in order; closing the iterator cancels the download.

        Each chunk is valid until the next one is requested.

        Args:
            sha256: hash of the bytes before `start`; it is updated with these bytes.
            part: storage of the received bytes; bytes that it has are not requested
                again.

        Raises:
            InputError: the file does not exist, or all tries failed.
            ChangedError: the file changed.
            MachineError: the received bytes cannot be stored.
        """
        if start and start == self.version.size:
            return
        retries = self._session.retries
        status = 0
        with self._session:
            while not status:
                try:
                    # A request for one byte shows whether the server supports ranges;
                    # if not, it sends the whole file.
                    with self._get(start, start + 1) as response:
                        for chunk in (
                            self._whole(response, start, sha256, part)
                            if response.status == 200
                            else ()
                        ):
                            start += len(chunk)
                            retries = self._session.retries
                            yield chunk
                        status = response.status
                except TRANSIENT as error:
                    retries = retries.failed(error)
            if status == 416 and self.version.size != start:
                raise self._changed(
                    f"it has {self.version.size} bytes, but {start} were downloaded"
                )
            if status == 206:
                yield from self._ranges(start, sha256, part)

    def probe(self) -> FileVersion:
        """Return the version of the file on the server; at most one byte is read."""
        retries = self._session.retries
        with self._session:
            while True:
                try:
                    with self._get(0, 1):
                        return self.version
                except TRANSIENT as error:
                    retries = retries.failed(error)

    def cancel(self) -> None:
        """Stop the download, and wake every thread that waits for bytes."""
        self._stop.set()
        with self._lock:
            for response in self._open:
                with suppress(Exception):  # the response has just ended
                    response.shutdown()

    def _ranges(
        self, start: int, sha256: Hash, part: PartFile | None
    ) -> Iterator[memoryview]:
        """Download pieces in parallel, and return them in order.

        Buffers are reused, because allocating memory costs as much time as hashing it.
        """
        assert self.version.size is not None
        longest = PIECE
        if part is not None:
            part.begin(self.version)
            longest = part.piece
        free: list[memoryview] = []
        waiting: deque[tuple[Future[None], memoryview, int]] = deque()
        with (
            ThreadPoolExecutor(self._connections, "fetch") as pool,
            ThreadPoolExecutor(1, "hash") as hasher,
        ):
            try:
                while waiting or start < self.version.size:
                    while len(waiting) < AHEAD and start < self.version.size:
                        size = min(longest - start % longest, self.version.size - start)
                        buffer = free.pop() if free else memoryview(bytearray(longest))
                        waiting.append(
                            (
                                pool.submit(self._piece, start, buffer[:size], part),
                                buffer,
                                size,
                            )
                        )
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

    def _piece(self, start: int, into: memoryview, part: PartFile | None) -> None:
        """Fill a buffer with the bytes from `start` on.

        Each try resumes where the last one ended.
        """
        retries = self._session.retries
        size = len(into)
        done = part.read(start, into) if part is not None else 0
        while done < size:
            try:
                with self._get(start + done, start + size) as response:
                    if response.status != 206:
                        raise ProtocolError("the server no longer supports ranges")
                    while done < size and (data := _read(response, size - done, part)):
                        if part is not None:
                            part.write(start + done, data)
                        into[done : done + len(data)] = data
                        done += len(data)
                        retries = self._session.retries
                    if done < size:
                        raise ProtocolError("the response ended too early")
            except TRANSIENT as error:
                retries = retries.failed(error)

    def _whole(
        self,
        response: urllib3.BaseHTTPResponse,
        start: int,
        sha256: Hash,
        part: PartFile | None,
    ) -> Iterator[memoryview]:
        """Read a response that begins at byte 0.

        Compare the bytes before `start` and return the rest.
        """
        if part is not None:
            part.begin(self.version)
        again = hashlib.sha256()
        at = 0
        while data := _read(response, start - at if at < start else _READ, part):
            at += len(data)
            if at > start:
                if part is not None:
                    part.write(at - len(data), data)
                sha256.update(data)
                yield memoryview(data)
                continue
            again.update(data)
            if at == start and again.digest() != sha256.digest():
                raise self._changed("the bytes that were downloaded before differ now")
        if at < start or (self.version.size or 0) > at:
            raise ProtocolError(f"the response ended after {at} bytes")

    @contextmanager
    def _get(self, start: int, end: int) -> Iterator[urllib3.BaseHTTPResponse]:
        """Request the bytes from `start` up to but excluding `end`.

        Returns:
            A response with status 200 and the whole file, 206 and exactly these bytes,
            or 416 if the file is shorter.
        """
        answer = self._session.open(
            self.url, {"Range": f"bytes={start}-{end - 1}"}, accept=(416,)
        )
        response: urllib3.BaseHTTPResponse = answer.raw
        with self._lock:
            self._open.add(response)
        try:
            if self._stop.is_set():
                raise StoppedError
            content_range = response.headers.get("Content-Range", "")
            if response.status == 416:
                match = re.fullmatch(r"bytes \*/(\d+)", content_range)
                self._note_version(response, int(match[1]) if match else None)
            elif response.status == 206:
                match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", content_range)
                if match is None or int(match[1]) != start:
                    raise ProtocolError(
                        f"the server returned the range {content_range!r}"
                    )
                self._note_version(response, int(match[3]))
            else:
                size = response.headers.get("Content-Length", "")
                self._note_version(response, int(size) if size.isdecimal() else None)
            yield response
        finally:
            with self._lock:
                self._open.discard(response)
            # The connection is reused if at most one byte of the response is unread.
            if response.status == 206 and (response.length_remaining or 0) <= 1:
                with suppress(HTTPError, OSError):
                    response.drain_conn()
                    response.release_conn()
            else:
                response.close()

    def _note_version(
        self, response: urllib3.BaseHTTPResponse, size: int | None
    ) -> None:
        headers = response.headers
        now = FileVersion(
            size=size,
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


def _read(
    response: urllib3.BaseHTTPResponse, most: int, part: PartFile | None
) -> bytes:
    """Return bytes of a body.

    If they are stored, without waiting for more bytes than the connection has.
    """
    read = response.read if part is None else response.read1
    return read(min(_READ, most), decode_content=False)
