"""Where bytes live: the Bucket protocol.

Objects are immutable except for the few that are replaced by compare-and-swap (index pages, status files).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from core.digests import file_sha256
from core.errors import BucketError

Data = bytes | Path
"""Bytes to store, or the file that holds them."""

_KEY = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._+!~-]*/)*[A-Za-z0-9_][A-Za-z0-9._+!~-]*")


class ConflictError(BucketError):
    """The key holds other bytes than the caller expected: read again and decide again."""


class AbsentError(BucketError):
    """Nothing is stored under the key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectInfo:
    """What a bucket knows about one object.

    Attributes:
        size: bytes.
        sha256: of the stored bytes, 64 hexadecimal digits; what the store itself vouches for, never a caller's claim.
        etag: what `put_if_match` compares; opaque.
    """

    key: str
    size: int
    sha256: str
    etag: str


class Bucket(Protocol):
    """An object store with create-only writes and compare-and-swap; keys are plain relative paths.

    Every method raises BucketError for a key that is not one, and for a store that fails.
    """

    def head(self, key: str) -> ObjectInfo | None:
        """What is stored under a key, or None."""

    def get(self, key: str) -> bytes:
        """The whole of a small object; AbsentError when there is none."""

    def read(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        """The whole of a small object and what the bucket knows of exactly these bytes, or None."""

    def open(self, key: str) -> BinaryIO:
        """A seekable stream of an object's bytes, for reading parts of it; AbsentError when there is none."""

    def fetch(self, key: str, folder: Path) -> Path:
        """The object as a read-only file under its own name: in `folder`, or where the store keeps it already."""

    def put_if_absent(self, key: str, data: Data, *, sha256: str) -> bool:
        """Create an object; the same bytes again are a no-op.

        Args:
            key: where it shall be.
            data: the bytes, or a file that holds them.
            sha256: what the stored bytes must hash to; checked before the object appears.

        Returns:
            Whether the object was created now.

        Raises:
            ConflictError: other bytes are stored under the key.
            BucketError: `data` does not hash to `sha256`.
        """

    def put_if_match(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo:
        """Replace an object that still has this etag; None means that it must not exist yet.

        Raises:
            ConflictError: it has another one by now.
        """

    def copy(self, source: str, target: str, *, sha256: str) -> bool:
        """Create `target` with the bytes of `source` without moving them through this program.

        Returns:
            Whether the object was created now; the same bytes already there are a no-op.

        Raises:
            BucketError: `source` is absent or does not hash to `sha256`.
            ConflictError: `target` holds other bytes.
        """

    def list(self, prefix: str) -> Iterator[str]:
        """Keys below a prefix that ends with a slash, sorted."""

    def delete(self, key: str, *, sha256: str) -> bool:
        """Remove an object that has this digest.

        Returns:
            Whether there was one.

        Raises:
            ConflictError: it holds other bytes.
        """


def check_key(key: str) -> str:
    """Return a key that is safe as a path and as a URL, or raise BucketError."""
    if _KEY.fullmatch(key) is None:
        raise BucketError(f"{key!r} cannot be a key in a bucket.", hint="Keys are relative paths of plain names.")
    return key


def object_info(key: str, data: bytes, etag: str) -> ObjectInfo:
    """What is known of bytes that were just read."""
    return ObjectInfo(key=key, size=len(data), sha256=sha256_of(data), etag=etag)


def sha256_of(data: Data) -> str:
    """SHA-256 of bytes or of a file, 64 hexadecimal digits."""
    if isinstance(data, bytes):
        return hashlib.sha256(data).hexdigest()
    return file_sha256(data)


def size_of(data: Data) -> int:
    """How many bytes there are to store; BucketError when their file cannot be read."""
    if isinstance(data, bytes):
        return len(data)
    try:
        return data.stat().st_size
    except OSError as error:
        raise BucketError(f"{data} cannot be read: {error.strerror}.", hint="Build the set again.") from error
