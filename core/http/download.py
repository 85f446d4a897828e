"""The bytes behind a URL, in order: parallel ranges where the server allows them, resumed wherever it fails.

What arrives is a prefix of the file at every moment, so that whoever keeps it on disk can go on from there after a
kill, and whoever unpacks it need not wait for the end. Ranges and validators are those of RFC 9110 (14 and 8.8).
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import urllib3
from urllib3.exceptions import HTTPError

from core.errors import InputError
from core.http.client import PASSING, Client, StoppedError, Tries, TryAgainError, canonical, judge
from core.process import without_credentials

PIECE = 4 << 20
"""Bytes asked for at once."""
AHEAD = 6
"""Pieces that may wait in memory for the one before them."""
_READ = 256 << 10


class Hash(Protocol):
    """A hash of hashlib."""

    def update(self, data: bytes | memoryview, /) -> None:
        """More bytes."""

    def digest(self) -> bytes:
        """Of the bytes so far."""

    def hexdigest(self) -> str:
        """The same as text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """Which state of a file a server speaks of.

    Attributes:
        size: in bytes; None where the server does not tell.
        etag, modified: its validators, or empty.
    """

    size: int | None
    etag: str = ""
    modified: str = ""

    def differs(self, other: Version) -> bool:
        """Whether the file was changed, as far as both tell."""
        pairs = ((self.size, other.size), (self.etag, other.etag), (self.modified, other.modified))
        return any(mine and theirs and mine != theirs for mine, theirs in pairs)


class ChangedError(InputError):
    """The file is not the one that was begun with; what was fetched of it is of no use."""


class RemoteFile:
    """One file of a server, to be read once.

    Attributes:
        version: what the server said first, or what a caller knows from before.
    """

    def __init__(self, client: Client, url: str) -> None:
        self.url = canonical(url)
        self.version = Version(size=None)
        self._client = client
        self._name = without_credentials(url)
        self._stop = threading.Event()
        self._open: set[urllib3.BaseHTTPResponse] = set()
        self._lock = threading.Lock()

    def chunks(self, start: int, sha256: Hash) -> Iterator[memoryview]:
        """The bytes from `start` on, in order; closing the iterator ends what is under way.

        Each chunk is good until the next one is asked for.

        Args:
            sha256: has seen the bytes before, and sees these.

        Raises:
            InputError: the file is not there, or does not come in spite of all patience.
            ChangedError: it is not the same file any more.
        """
        if start and start == self.version.size:
            return
        tries = self._tries()
        while True:
            try:
                # One byte tells whether there are ranges; where there are none the answer is the whole file.
                response = self._get(start, start + 1)
                break
            except PASSING as error:
                tries.failed(error)
        if response.status == 200:
            yield from self._whole(response, start, sha256)
            return
        self._done(response)
        if response.status == 416 and self.version.size != start:
            raise self._changed(f"it has {self.version.size} bytes, and {start} were fetched")
        if response.status == 206:
            yield from self._ranges(start, sha256)

    def probe(self) -> Version:
        """Ask which state it is in, for one byte at most."""
        tries = self._tries()
        while True:
            try:
                self._done(self._get(0, 1))
            except PASSING as error:
                tries.failed(error)
            else:
                return self.version

    def _ranges(self, start: int, sha256: Hash) -> Iterator[memoryview]:
        """Pieces side by side, handed on in order, and hashed meanwhile.

        Memory that was read is filled again: new memory costs as much time as hashing does.
        """
        assert self.version.size is not None
        free: list[memoryview] = []
        waiting: deque[tuple[Future[None], memoryview, int]] = deque()
        with ThreadPoolExecutor(self._client.connections, "fetch") as pool, ThreadPoolExecutor(1, "hash") as hasher:
            try:
                while waiting or start < self.version.size:
                    while len(waiting) < AHEAD and start < self.version.size:
                        size = min(PIECE, self.version.size - start)
                        buffer = free.pop() if free else memoryview(bytearray(PIECE))
                        waiting.append((pool.submit(self._piece, start, buffer[:size]), buffer, size))
                        start += size
                    piece, buffer, size = waiting.popleft()
                    piece.result()
                    hashed = hasher.submit(sha256.update, buffer[:size])
                    for at in range(0, size, _READ):
                        yield buffer[at : min(at + _READ, size)]
                    hashed.result()
                    free.append(buffer)
            finally:
                self.halt()
                pool.shutdown(wait=True, cancel_futures=True)

    def _piece(self, start: int, into: memoryview) -> None:
        """Fill it with the bytes from `start` on; each try goes on where the last one ended."""
        tries, done, size = self._tries(), 0, len(into)
        while done < size:
            try:
                response = self._get(start + done, start + size)
                try:
                    if response.status != 206:
                        raise TryAgainError("it gives no ranges any more")
                    while done < size and (data := response.read(min(_READ, size - done), decode_content=False)):
                        into[done : done + len(data)] = data
                        done += len(data)
                        tries.progress()
                    if done < size:
                        raise TryAgainError("it ended too early")
                finally:
                    self._done(response)
            except PASSING as error:
                tries.failed(error)

    def _whole(self, response: urllib3.BaseHTTPResponse, start: int, sha256: Hash) -> Iterator[memoryview]:
        """From a server that always starts at 0: what was handed on before is compared, the rest is handed on."""
        tries = self._tries()
        while True:
            again, at = hashlib.sha256(), 0
            try:
                while data := response.read(min(_READ, start - at) if at < start else _READ, decode_content=False):
                    at += len(data)
                    if at > start:
                        sha256.update(data)
                        start = at
                        tries.progress()
                        yield memoryview(data)
                        continue
                    again.update(data)
                    if at == start and again.digest() != sha256.digest():
                        raise self._changed("what was fetched before is different now")
                if at < start or (self.version.size or 0) > at:
                    raise TryAgainError(f"it ended after {at} bytes")
                return
            except PASSING as error:
                tries.failed(error)
            finally:
                self._done(response)
            while True:
                try:
                    response = self._get(0, None)
                    break
                except PASSING as error:
                    tries.failed(error)

    def _get(self, start: int, end: int | None) -> urllib3.BaseHTTPResponse:
        """Ask for the bytes from `start` up to and without `end`; for all of them where it is None.

        Returns:
            200 with the whole file, 206 with exactly these bytes to come, or 416: it is not that long.
        """
        headers = {} if end is None else {"Range": f"bytes={start}-{end - 1}"}
        response = self._client.request(self.url, headers)
        with self._lock:
            self._open.add(response)
        try:
            if self._stop.is_set():
                raise StoppedError
            told = response.headers.get("Content-Range", "")
            if response.status == 416:
                found = re.fullmatch(r"bytes \*/(\d+)", told)
                self._same(response, int(found[1]) if found else None)
                return response
            judge(response, self._name)
            if response.status == 206:
                found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", told)
                if found is None or int(found[1]) != start:
                    raise TryAgainError(f"it answers with the range {told!r}")
                self._same(response, int(found[3]))
            else:
                size = response.headers.get("Content-Length", "")
                self._same(response, int(size) if size.isdecimal() else None)
        except BaseException:
            self._done(response)
            raise
        return response

    def _done(self, response: urllib3.BaseHTTPResponse) -> None:
        """Read as far as it was wanted; the connection serves again if nothing is left in it."""
        with self._lock:
            self._open.discard(response)
        if response.status == 206 and (response.length_remaining or 0) <= 1:
            with suppress(HTTPError, OSError):
                response.drain_conn()
                response.release_conn()
                return
        response.close()

    def halt(self) -> None:
        """Nobody wants the rest: wake every thread that waits for bytes."""
        self._stop.set()
        with self._lock:
            for response in self._open:
                with suppress(Exception):  # it has just ended by itself
                    response.shutdown()

    def _tries(self) -> Tries:
        return Tries(self._name, self._client, self._stop)

    def _same(self, response: urllib3.BaseHTTPResponse, size: int | None) -> None:
        """Note which state of the file an answer is of, and refuse another one than before."""
        headers = response.headers
        now = Version(size=size, etag=headers.get("ETag", ""), modified=headers.get("Last-Modified", ""))
        if self.version.differs(now):
            raise self._changed("the server has another version now")
        if self.version.size is None:
            self.version = now

    def _changed(self, what: str) -> ChangedError:
        return ChangedError(f"{self._name} was changed while it was fetched: {what}.", hint="Fetch it again.")
