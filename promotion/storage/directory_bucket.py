"""A bucket in a folder."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from core.digests import sha256_of
from core.errors import BucketError, BusyError
from core.store import hold_lock
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
    check_small,
    check_source,
    object_info,
)

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV})
_NO_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors of file systems between which the kernel copies no bytes."""
_CHUNK = 1 << 30
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_LOCK_SECONDS = 60.0
"""Maximum time to wait for another process that replaces an object."""
_IMMUTABLE = 0o444
_REPLACEABLE = 0o644


class DirBucket(Bucket):
    """A bucket in a folder that survives crashes and concurrent processes on one machine.

    An object appears with all its bytes on disk or not at all: it is written under a
    temporary name beside its key, flushed, and linked to its key, which fails when the
    key exists. Temporary names start with a dot; keys never do.

    Args:
        root: the folder, which is created with the first object.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.identity = str(self.root)

    def exists(self) -> bool:
        """Return whether the folder exists."""
        return self.root.is_dir()

    def path(self, key: str) -> Path:
        """Return the path of an object, whether or not it exists.

        Raises:
            BucketError: the key is invalid, or leads through a symbolic link, whose
                target can change at any time.
        """
        path = str(self.root)
        for part in check_key(key).split("/"):
            path = f"{path}/{part}"
            if os.path.islink(path):  # noqa: PTH114 - every access of every object does this
                raise BucketError(
                    f"{key} is a symbolic link, or lies below one, in the bucket"
                    f" {self.root}.",
                    hint="Replace the link by the file itself.",
                )
        return Path(path)

    def head(self, key: str) -> ObjectInfo | None:
        """Return the properties of an object; the digest is computed from the bytes each time."""
        try:
            with _disk(key), self.path(key).open("rb", buffering=0) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                stat = os.fstat(file.fileno())
                modified = datetime.fromtimestamp(stat.st_mtime, UTC)
                return ObjectInfo(
                    key=key,
                    size=stat.st_size,
                    sha256=digest,
                    etag=digest,
                    modified=modified,
                )
        except AbsentError:
            return None

    def read(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        """Return the bytes of a small object and its properties; see `Bucket.read`."""
        try:
            with _disk(key), self.open(key) as file:
                check_small(key, os.fstat(file.fileno()).st_size)
                data = file.read()
        except AbsentError:
            return None
        return data, object_info(key, data, sha256_of(data))

    def open(self, key: str) -> BinaryIO:
        """Return a seekable stream of an object."""
        with _disk(key):
            return self.path(key).open("rb")

    def fetch(self, key: str, folder: Path) -> Path:  # noqa: ARG002 - a folder needs no copy
        """Return the object's own file."""
        self.open(key).close()
        return self.path(key)

    def put_if_absent(self, key: str, data: Data, *, sha256: str) -> bool:
        """Create an object; see `Bucket.put_if_absent`."""
        with _disk(key):
            if self.head(key) is not None:
                return self._same_bytes(key, sha256)
            with self._temporary(key, data, mode=_IMMUTABLE) as temporary:
                check_digest(key, sha256_of(temporary), sha256)
                return self._claim(temporary, key, sha256)

    def put_if_match(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo:
        """Replace an object; see `Bucket.put_if_match`. Readers see the old or the new bytes."""
        path = self.path(key)
        with (
            _disk(key),
            self._temporary(key, data, mode=_REPLACEABLE) as temporary,
            self._locked(),
        ):
            check_etag(key, self.head(key), etag)
            temporary.replace(path)
            _sync_folder(path.parent)
        return object_info(key, data, sha256_of(data))

    def copy(self, source: str, target: str, *, sha256: str) -> bool:
        """Create `target` with the bytes of `source`; see `Bucket.copy`.

        The two files share no inode, so damage of one does not reach the other. The
        kernel copies the bytes, and shares blocks if the file system supports it.
        """
        check_source(source, self.head(source), sha256)
        return self.put_if_absent(target, self.path(source), sha256=sha256)

    def list(self, folder: str) -> Iterator[str]:
        """Yield the sorted keys below a folder, without temporary and lock files."""
        keys: list[str] = []
        with _disk(folder):
            top = self.path(folder.rstrip("/"))
            for parent, folders, names in os.walk(top, onerror=_raise_unless_absent):
                place = Path(parent)
                # A link to a folder counts as an object, so that no listing omits it.
                names += [name for name in folders if (place / name).is_symlink()]
                folders[:] = [name for name in folders if not name.startswith(".")]
                for name in names:
                    if not name.startswith("."):
                        keys.append((place / name).relative_to(self.root).as_posix())
        yield from sorted(keys)

    def delete(self, key: str, *, sha256: str) -> bool:
        """Remove an object if it has this digest; see `Bucket.delete`."""
        if self.head(key) is None:
            return False
        with _disk(key), self._locked():
            if not can_delete(key, self.head(key), sha256):
                return False
            self.path(key).unlink()
            _sync_folder(self.path(key).parent)
        return True

    def _same_bytes(self, key: str, sha256: str) -> bool:
        """Return False because no object was created.

        ConflictError if the key has another digest.
        """
        check_same_bytes(key, self.head(key), sha256)
        _sync_folder(self.path(key).parent)
        return False

    def _claim(self, temporary: Path, key: str, sha256: str) -> bool:
        """Link a file to a free key atomically; compare the bytes when the key exists."""
        path = self.path(key)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return self._same_bytes(key, sha256)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            with self._locked():
                if self.head(key) is not None:
                    return self._same_bytes(key, sha256)
                temporary.rename(path)
        _sync_folder(path.parent)
        return True

    @contextlib.contextmanager
    def _temporary(self, key: str, data: Data, *, mode: int) -> Iterator[Path]:
        """Write a flushed temporary file beside a key, removed unless it was renamed."""
        folder = self.path(key).parent
        _make_folders(folder)
        descriptor, name = tempfile.mkstemp(prefix=".new-", dir=folder)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
                _write(file, data)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude other processes that replace objects of this bucket."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(hold_lock(self.root / ".lock", _LOCK_SECONDS))
            except TimeoutError as error:
                raise BusyError(
                    f"The bucket {self.root} is still locked by another process after"
                    f" {_LOCK_SECONDS:g} s.",
                    hint="Wait for that process to end, then run the command again.",
                ) from error
            yield


@contextlib.contextmanager
def _disk(key: str) -> Iterator[None]:
    """Raise BucketError for errors of the file system."""
    try:
        yield
    except _ABSENT as error:
        raise AbsentError(
            f"{key} is not in the bucket.", hint="Stage the set again."
        ) from error
    except OSError as error:
        raise BucketError(
            f"The bucket cannot read or write {key}: {error.strerror or error}.",
            hint="Check the disk.",
        ) from error


def _raise_unless_absent(error: OSError) -> None:
    """Raise an error of a listing, which would otherwise be incomplete.

    A prefix without objects has no folder.
    """
    if not isinstance(error, _ABSENT):
        raise error


def _make_folders(folder: Path) -> None:
    """Create a folder and its parents durably."""
    missing = [
        *itertools.takewhile(
            lambda parent: not parent.exists(), (folder, *folder.parents)
        )
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for parent in missing:
        _sync_folder(parent.parent)


def _write(file: BinaryIO, data: Data) -> None:
    """Write bytes, or copy a file within the kernel to share blocks if possible."""
    if isinstance(data, bytes):
        file.write(data)
        return
    try:
        source = data.open("rb")
    except OSError as error:
        raise BucketError(
            f"{data} cannot be read: {error.strerror}.", hint="Build the set again."
        ) from error
    with source:
        try:
            while os.copy_file_range(source.fileno(), file.fileno(), _CHUNK):
                pass
        except OSError as error:
            if error.errno not in _NO_COPY:
                raise
            shutil.copyfileobj(source, file)


def _sync_folder(folder: Path) -> None:
    """Flush the directory entries of a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
