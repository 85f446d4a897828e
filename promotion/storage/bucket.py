"""The Bucket protocol: an object store for sets, evidence and indexes.

Objects are immutable, except for pages and status files, which are replaced by
compare-and-swap.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Protocol

from core.digests import sha256_of
from core.errors import BucketError
from core.frozen import frozen

Data = bytes | Path
"""Bytes to store, or their file."""

_KEY = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._+!~-]*/)*[A-Za-z0-9_][A-Za-z0-9._+!~-]*")


class ConflictError(BucketError):
    """The key has another object than expected. Callers read the key again before they retry."""


class AbsentError(BucketError):
    """The key does not exist."""


@frozen
class ObjectInfo:
    """Properties of a stored object.

    Attributes:
        size: size in bytes.
        sha256: digest of the stored bytes, 64 hexadecimal digits, computed by the store
            or from the bytes.
        etag: opaque value for `put_if_match`.
        modified: time when the object was written, if the store was asked for it.
    """

    key: str
    size: int
    sha256: str
    etag: str
    modified: datetime = field(default=datetime.max.replace(tzinfo=UTC), compare=False)


MOST_READ = 64 << 20
"""Bytes of the largest object that is read as a whole: JSON, pages and texts."""


def check_small(key: str, size: int) -> None:
    """Raise BucketError for an object that is too large to be read as a whole."""
    if size > MOST_READ:
        raise BucketError(
            f"{key} has {size} bytes; at most {MOST_READ} are read.",
            hint="Somebody else wrote this object; remove it.",
        )


class Bucket(Protocol):
    """An object store with create-only writes and compare-and-swap. Keys are plain relative paths.

    Every method raises BucketError for an invalid key and for a failing store.

    Attributes:
        identity: name of the bucket in signed ledgers, so that the ledger of another
            bucket is refused: the path of a folder, or s3://NAME/PREFIX.
    """

    identity: str

    def head(self, key: str) -> ObjectInfo | None:
        """Return the properties of an object, or None if it does not exist."""

    def get(self, key: str) -> bytes:
        """Return the bytes of a small object, or raise AbsentError.

        BucketError if the object is larger than MOST_READ.
        """
        stored = self.read(key)
        if stored is None:
            raise AbsentError(
                f"{key} is not in the bucket.", hint="Stage the set again."
            )
        return stored[0]

    def read(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        """Return the bytes of a small object and the properties of exactly these bytes.

        None if it is absent.
        """

    def open(self, key: str) -> BinaryIO:
        """Return a seekable stream of an object, for reading parts of it, or raise AbsentError."""

    def fetch(self, key: str, folder: Path) -> Path:
        """Return a read-only file with the object.

        A copy in `folder`, named after the key, or the store's own file.
        """

    def put_if_absent(self, key: str, data: Data, *, sha256: str) -> bool:
        """Create an object; storing the same bytes again does nothing.

        Args:
            sha256: expected digest of the stored bytes, checked before the object
                appears.

        Returns:
            Whether this call created the object.

        Raises:
            ConflictError: the key exists with other bytes.
            BucketError: `data` has another digest than `sha256`.
        """

    def put_if_match(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo:
        """Replace an object if it still has this etag; None requires that it does not exist.

        Raises:
            ConflictError: the object has another etag.
        """

    def copy(self, source: str, target: str, *, sha256: str) -> bool:
        """Create `target` with the bytes of `source` within the store.

        Returns:
            Whether this call created the object. False if `target` already has the same
            bytes.

        Raises:
            BucketError: `source` is absent or has another digest than `sha256`.
            ConflictError: `target` has other bytes.
        """

    def list(self, folder: str) -> Iterator[str]:
        """Yield the keys below a folder, which has a slash at the end, sorted."""

    def clock(self) -> datetime | None:
        """Return the time of the store's clock, or None if it has no clock of its own."""
        return None

    def delete(self, key: str, *, sha256: str) -> bool:
        """Remove an object if it has this digest.

        Returns:
            Whether the object existed.

        Raises:
            ConflictError: the object has other bytes.
        """


def fetch_to(bucket: Bucket, key: str, path: Path) -> None:
    """Write an object to a file; the name of the file must be the last part of the key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fetched = bucket.fetch(key, path.parent)
    if fetched != path:
        shutil.copyfile(fetched, path)


def check_key(key: str) -> str:
    """Return a key that is safe as a path and in a URL, or raise BucketError."""
    if _KEY.fullmatch(key) is None:
        raise BucketError(
            f"{key!r} is not a valid key.",
            hint="Use a relative path of letters, digits and ._+!~-.",
        )
    return key


def changed_meanwhile(key: str) -> ConflictError:
    """Return the error of a lost compare-and-swap."""
    return ConflictError(
        f"{key} was changed by another process during this write.",
        hint="Run the command again.",
    )


def check_etag(key: str, stored: ObjectInfo | None, etag: str | None) -> None:
    """Raise ConflictError unless an object has this etag; None requires that it does not exist."""
    if (stored.etag if stored else None) != etag:
        raise changed_meanwhile(key)


def check_digest(key: str, found: str, sha256: str) -> None:
    """Raise BucketError if the bytes to store have another digest than declared."""
    if found != sha256:
        hint = "Check the disk and build the set again."
        raise BucketError(
            f"The bytes for {key} have sha256 {found}, not {sha256}.", hint=hint
        )


def can_delete(key: str, stored: ObjectInfo | None, sha256: str) -> bool:
    """Return whether there is an object to remove; ConflictError if it has another digest."""
    if stored is not None and stored.sha256 != sha256:
        raise ConflictError(
            f"Cannot remove {key}: its sha256 is {stored.sha256}, not {sha256}.",
            hint="Run the command again.",
        )
    return stored is not None


def check_same_bytes(key: str, stored: ObjectInfo | None, sha256: str) -> bool:
    """Raise ConflictError unless a key has this digest.

    Return False because no object was created.
    """
    if stored is None:
        raise ConflictError(
            f"{key} was removed by another process during this write.",
            hint="Run the command again.",
        )
    if stored.sha256 != sha256:
        raise ConflictError(
            f"{key} is stored with sha256 {stored.sha256}, not {sha256}.",
            hint=(
                "Stored files are never replaced. Give the new content another version."
            ),
        )
    return False


def check_source(key: str, stored: ObjectInfo | None, sha256: str) -> ObjectInfo:
    """Return the properties of the source of a copy.

    BucketError if it is absent or has another digest.
    """
    if stored is None or stored.sha256 != sha256:
        state = "is absent" if stored is None else f"has sha256 {stored.sha256}"
        raise BucketError(
            f"{key} {state}; sha256 {sha256} was expected.", hint="Stage the set again."
        )
    return stored


def object_info(key: str, data: bytes, etag: str) -> ObjectInfo:
    """Return the properties of bytes that were just read."""
    return ObjectInfo(key=key, size=len(data), sha256=sha256_of(data), etag=etag)


def size_of(data: Data) -> int:
    """Return the size of the bytes to store; BucketError when their file cannot be read."""
    if isinstance(data, bytes):
        return len(data)
    try:
        return data.stat().st_size
    except OSError as error:
        raise BucketError(
            f"{data} cannot be read: {error.strerror}.", hint="Build the set again."
        ) from error
