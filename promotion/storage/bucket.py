"""The Bucket protocol: an object store for sets, evidence and indexes.

Objects are immutable, except for pages and status files, which are replaced by compare-and-swap.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from core.digests import file_sha256
from core.errors import BucketError

Data = bytes | Path
"""Bytes to store, or their file."""

_KEY = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._+!~-]*/)*[A-Za-z0-9_][A-Za-z0-9._+!~-]*")


class ConflictError(BucketError):
    """The key has other bytes than expected: read it again and decide again."""


class AbsentError(BucketError):
    """The key does not exist."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectInfo:
    """Properties of a stored object.

    Attributes:
        size: bytes.
        sha256: of the stored bytes, 64 hexadecimal digits, as computed by the store and never as claimed by a caller.
        etag: opaque value for `put_if_match`.
    """

    key: str
    size: int
    sha256: str
    etag: str


class Bucket(Protocol):
    """An object store with create-only writes and compare-and-swap. Keys are plain relative paths.

    Every method raises BucketError for an invalid key and for a failing store.
    """

    def head(self, key: str) -> ObjectInfo | None:
        """Return the properties of an object, or None."""

    def get(self, key: str) -> bytes:
        """Return the bytes of a small object, or raise AbsentError."""

    def read(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        """Return the bytes of a small object and the properties of exactly these bytes, or None."""

    def open(self, key: str) -> BinaryIO:
        """Return a seekable stream of an object, for reading parts of it, or raise AbsentError."""

    def fetch(self, key: str, folder: Path) -> Path:
        """Return the object as a read-only file with its own name: in `folder`, or where the store keeps it."""

    def put_if_absent(self, key: str, data: Data, *, sha256: str) -> bool:
        """Create an object; storing the same bytes again does nothing.

        Args:
            sha256: expected digest of the stored bytes, checked before the object appears.

        Returns:
            Whether this call created the object.

        Raises:
            ConflictError: the key has other bytes.
            BucketError: `data` has another digest than `sha256`.
        """

    def put_if_match(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo:
        """Replace an object that still has this etag; None means that it must not exist yet.

        Raises:
            ConflictError: the object has another etag.
        """

    def copy(self, source: str, target: str, *, sha256: str) -> bool:
        """Create `target` with the bytes of `source` without transferring them through this program.

        Returns:
            Whether this call created the object; the same bytes at the target are no error.

        Raises:
            BucketError: `source` is absent or has another digest than `sha256`.
            ConflictError: `target` has other bytes.
        """

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the keys below a prefix that ends with a slash, sorted."""

    def delete(self, key: str, *, sha256: str) -> bool:
        """Remove an object that has this digest.

        Returns:
            Whether the object existed.

        Raises:
            ConflictError: the object has other bytes.
        """


def fetch_to(bucket: Bucket, key: str, path: Path) -> None:
    """Store an object as a file with the name of its key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fetched = bucket.fetch(key, path.parent)
    if fetched != path:
        shutil.copyfile(fetched, path)


def check_key(key: str) -> str:
    """Return a key that is safe as a path and in a URL, or raise BucketError."""
    if _KEY.fullmatch(key) is None:
        raise BucketError(f"{key!r} is not a valid key.", hint="Use a relative path of letters, digits and ._+!~-.")
    return key


def changed_meanwhile(key: str) -> ConflictError:
    """Return the error of a lost compare-and-swap."""
    return ConflictError(f"{key} was changed by another process meanwhile.", hint="Run it again.")


def check_etag(key: str, stored: ObjectInfo | None, etag: str | None) -> None:
    """Raise ConflictError unless an object has this etag; None means that it must not exist."""
    if (stored.etag if stored else None) != etag:
        raise changed_meanwhile(key)


def check_digest(key: str, found: str, sha256: str) -> None:
    """Raise BucketError when the bytes to store have another digest than promised."""
    if found != sha256:
        hint = "Check the disk and build the set again."
        raise BucketError(f"The bytes for {key} have sha256 {found}, not {sha256}.", hint=hint)


def can_delete(key: str, stored: ObjectInfo | None, sha256: str) -> bool:
    """Return whether an object exists; ConflictError when it has other bytes than these."""
    if stored is not None and stored.sha256 != sha256:
        raise ConflictError(f"{key} has sha256 {stored.sha256}; {sha256} was to be removed.", hint="Run it again.")
    return stored is not None


def check_same_bytes(key: str, stored: ObjectInfo | None, sha256: str) -> bool:
    """Raise ConflictError when a key has other bytes than these; returns False because nothing was created."""
    if stored is None:
        raise ConflictError(f"{key} was removed during this write.", hint="Run it again.")
    if stored.sha256 != sha256:
        raise ConflictError(
            f"{key} is stored with sha256 {stored.sha256}, not {sha256}.",
            hint="Stored files are never replaced. Give the new content another version.",
        )
    return False


def check_source(key: str, stored: ObjectInfo | None, sha256: str) -> ObjectInfo:
    """Return the source of a copy, or raise BucketError when it has other bytes."""
    if stored is None or stored.sha256 != sha256:
        state = "is absent" if stored is None else f"has sha256 {stored.sha256}"
        raise BucketError(f"{key} {state}; {sha256} was expected.", hint="Stage the set again.")
    return stored


def object_info(key: str, data: bytes, etag: str) -> ObjectInfo:
    """Return the properties of bytes that were just read."""
    return ObjectInfo(key=key, size=len(data), sha256=sha256_of(data), etag=etag)


def sha256_of(data: Data) -> str:
    """Return the SHA-256 of bytes or of a file as 64 hexadecimal digits."""
    if isinstance(data, bytes):
        return hashlib.sha256(data).hexdigest()
    return file_sha256(data)


def size_of(data: Data) -> int:
    """Return the size of the bytes to store; BucketError when their file cannot be read."""
    if isinstance(data, bytes):
        return len(data)
    try:
        return data.stat().st_size
    except OSError as error:
        raise BucketError(f"{data} cannot be read: {error.strerror}.", hint="Build the set again.") from error
