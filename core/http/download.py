"""Downloads as one stream, resumed after every failure.

The bytes arrive in order, so that a caller can resume a file on disk after a crash, or
unpack an archive during its download. Ranges and validators follow RFC 9110 (sections
8.8, 13.1.5 and 14).
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import urllib3
from urllib3.exceptions import ProtocolError

from core.errors import InputError
from core.frozen import frozen
from core.http.client import TRANSIENT, Client, Session, StoppedError, canonical

_READ = 256 << 10


class Hash(Protocol):
    """A hash of hashlib."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Add bytes."""

    def digest(self) -> bytes:
        """Return the digest of the bytes so far."""

    def hexdigest(self) -> str:
        """Return the digest of the bytes so far as hexadecimal text."""


@frozen
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
        self._stop = threading.Event()
        self._session = Session(url, client, self._stop)
        self._response: urllib3.BaseHTTPResponse | None = None

    def chunks(self, start: int, sha256: Hash) -> Generator[memoryview]:
        """Return the bytes from `start` on, in order; closing the iterator cancels the download.

        Args:
            sha256: hash of the bytes before `start`; it is updated with these bytes.

        Raises:
            InputError: the file does not exist, or all tries failed.
            ChangedError: the file changed.
        """
        if start and start == self.version.size:
            return
        with self._session:
            while True:
                try:
                    with self._get(f"bytes={start}-" if start else "") as response:
                        self._check_version(response, start)
                        for chunk in self._rest(response, start, sha256):
                            start += len(chunk)
                            self._session.reset()
                            yield chunk
                    return
                except TRANSIENT as error:
                    self._session.failed(error)

    def probe(self) -> FileVersion:
        """Return the version of the file on the server; at most one byte is read."""
        with self._session:
            while True:
                try:
                    with self._get("bytes=0-0") as response:
                        self._check_version(response, 0)
                        return self.version
                except TRANSIENT as error:
                    self._session.failed(error)

    def cancel(self) -> None:
        """Stop the download, and wake the thread that waits for bytes."""
        self._stop.set()
        if response := self._response:
            with suppress(Exception):  # the response has just ended
                response.shutdown()

    def _rest(
        self, response: urllib3.BaseHTTPResponse, start: int, sha256: Hash
    ) -> Iterator[memoryview]:
        """Return the bytes from `start` on.

        A server without ranges sends the whole file: the bytes before `start` are
        compared.
        """
        at = start
        if response.status == 416 and self.version.size != start:
            raise self._changed(
                f"it has {self.version.size} bytes, but {start} were downloaded"
            )
        if response.status == 200 and start:
            at = 0
            again = hashlib.sha256()
            while data := _read(response, start - at):
                at += len(data)
                again.update(data)
            if at == start and again.digest() != sha256.digest():
                raise self._changed("the bytes that were downloaded before differ now")
        end = self.version.size or sys.maxsize
        while data := _read(response, end - at):
            at += len(data)
            sha256.update(data)
            yield memoryview(data)
        if at < max(start, self.version.size or 0):
            raise ProtocolError(f"the response ended after {at} bytes")

    @contextmanager
    def _get(self, wanted: str) -> Iterator[urllib3.BaseHTTPResponse]:
        """Request a range, or the whole file.

        Returns:
            A response with status 200 and the whole file, 206 and a range, or 416 if
            the file is shorter.
        """
        headers = {"Range": wanted} if wanted else {}
        # A weak validator must not be sent here.
        if wanted and self.version.etag.startswith('"'):
            headers["If-Range"] = self.version.etag
        response: urllib3.BaseHTTPResponse
        response = self._session.open(self.url, headers, (416,)).raw
        self._response = response
        try:
            # `cancel` may have come before it could see the response.
            if self._stop.is_set():
                raise StoppedError
            yield response
        finally:
            self._response = None
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
    return response.read(min(_READ, most), decode_content=False) if most > 0 else b""
