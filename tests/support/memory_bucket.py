"""A bucket in memory that copies quickly, and a bucket whose writes meet faults."""

from __future__ import annotations

import enum
import io
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, TypeVar

from core.digests import sha256_of
from core.errors import BucketError
from promotion.storage.bucket import (
    AbsentError,
    Bucket,
    Data,
    ObjectInfo,
    can_delete,
    check_digest,
    check_etag,
    check_key,
    check_same_bytes,
    check_source,
    object_info,
    size_of,
)

T = TypeVar("T")
Write = Callable[[str], None]


class MemoryBucket:
    """Objects in a dictionary; each access is atomic.

    Args:
        after_write: called with the key of each object that was created, replaced or
            removed.
    """

    identity = "memory"

    def __init__(self, after_write: Write = lambda _: None) -> None:
        self._objects: dict[str, tuple[bytes, ObjectInfo]] = {}
        self._lock = threading.RLock()
        self.after_write = after_write

    def copied(self) -> MemoryBucket:
        """Return another bucket with the same objects."""
        other = MemoryBucket()
        with self._lock:
            other._objects = dict(self._objects)
        return other

    def everything(self) -> dict[str, bytes]:
        """Return the content of all objects."""
        with self._lock:
            return {key: data for key, (data, _) in self._objects.items()}

    def damage(self, key: str, data: bytes | None) -> None:
        """Change or remove an object without any checks."""
        with self._lock:
            if data is None:
                del self._objects[key]
            else:
                self._store(key, data)

    def head(self, key: str) -> ObjectInfo | None:
        found = self.read(key)
        return found[1] if found else None

    def get(self, key: str) -> bytes:
        found = self.read(key)
        if found is None:
            raise AbsentError(f"{key} is not in the bucket.")
        return found[0]

    def read(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        with self._lock:
            return self._objects.get(check_key(key))

    def open(self, key: str) -> BinaryIO:
        return io.BytesIO(self.get(key))

    def fetch(self, key: str, folder: Path) -> Path:
        path = folder / key.rpartition("/")[2]
        path.write_bytes(self.get(key))
        return path

    def put_if_absent(
        self,
        key: str,
        data: Data,
        *,
        sha256: str,
    ) -> bool:
        size_of(data)
        held = data if isinstance(data, bytes) else data.read_bytes()
        check_digest(key, sha256_of(held), sha256)
        return self._create(key, held, sha256)

    def put_if_match(
        self,
        key: str,
        data: bytes,
        *,
        etag: str | None,
    ) -> ObjectInfo:
        with self._lock:
            check_etag(key, self.head(key), etag)
            info = self._store(key, data)
            self.after_write(key)
            return info

    def copy(
        self,
        source: str,
        target: str,
        *,
        sha256: str,
    ) -> bool:
        with self._lock:
            found = self.read(source)
            check_source(source, found[1] if found else None, sha256)
            return self._create(target, self.get(source), sha256)

    def list(self, folder: str) -> Iterator[str]:
        with self._lock:
            yield from sorted(key for key in self._objects if key.startswith(folder))

    def delete(self, key: str, *, sha256: str) -> bool:
        with self._lock:
            if not can_delete(key, self.head(key), sha256):
                return False
            del self._objects[key]
            self.after_write(key)
            return True

    def clock(self) -> datetime | None:
        return None

    def _create(
        self,
        key: str,
        data: bytes,
        sha256: str,
    ) -> bool:
        with self._lock:
            stored = self.head(key)
            if stored is None:
                self._store(key, data)
                self.after_write(key)
                return True
            return check_same_bytes(key, stored, sha256)

    def _store(self, key: str, data: bytes) -> ObjectInfo:
        info = object_info(check_key(key), data, sha256_of(data))
        self._objects[key] = data, info
        return info


class Fault(enum.Enum):
    """A fault of one write."""

    REFUSED = "the store fails and nothing is written"
    REPLY_LOST = "it is written, and the writer is told that it was not"
    KILLED = "it is written, and the writer dies"
    TWICE = "its reply is lost on the way and the client sends it again"
    LATE = "somebody else does the same work before it arrives"


class KilledError(BaseException):
    """Death of the writer; a BaseException, so that handlers of Exception do not run."""


class FaultyBucket:
    """A bucket that passes all calls to another one, where one write meets a fault.

    Args:
        under: the other bucket.
        fault: the fault.
        at: number of the write that meets the fault, from 0.
        other: for LATE, the work of another writer before the write.
    """

    def __init__(
        self,
        under: Bucket,
        fault: Fault,
        at: int,
        other: Callable[[], object] = lambda: None,
    ) -> None:
        self._under = under
        self.identity = under.identity
        self._fault = fault
        self._at = at
        self._other = other
        self.writes = 0
        self._counting = threading.Lock()

    def _write(self, write: Callable[[], T]) -> T:
        with self._counting:
            mine = self.writes == self._at
            self.writes = self.writes + 1
        if not mine:
            return write()
        if self._fault is Fault.REFUSED:
            raise BucketError("The store refuses: 503.", hint="Run it again.")
        if self._fault is Fault.LATE:
            self._other()
            return write()
        write()
        if self._fault is Fault.TWICE:
            return write()
        raise (
            KilledError
            if self._fault is Fault.KILLED
            else BucketError("The reply is lost.", hint="Run it again.")
        )

    def head(self, key: str) -> ObjectInfo | None:
        return self._under.head(key)

    def get(self, key: str) -> bytes:
        return self._under.get(key)

    def read(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        return self._under.read(key)

    def open(self, key: str) -> BinaryIO:
        return self._under.open(key)

    def fetch(self, key: str, folder: Path) -> Path:
        return self._under.fetch(key, folder)

    def list(self, folder: str) -> Iterator[str]:
        return self._under.list(folder)

    def clock(self) -> datetime | None:
        return self._under.clock()

    def put_if_absent(
        self,
        key: str,
        data: Data,
        *,
        sha256: str,
    ) -> bool:
        return self._write(lambda: self._under.put_if_absent(key, data, sha256=sha256))

    def put_if_match(
        self,
        key: str,
        data: bytes,
        *,
        etag: str | None,
    ) -> ObjectInfo:
        return self._write(lambda: self._under.put_if_match(key, data, etag=etag))

    def copy(
        self,
        source: str,
        target: str,
        *,
        sha256: str,
    ) -> bool:
        return self._write(lambda: self._under.copy(source, target, sha256=sha256))

    def delete(self, key: str, *, sha256: str) -> bool:
        return self._write(lambda: self._under.delete(key, sha256=sha256))
