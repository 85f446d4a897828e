"""Sources of the files that the index server serves: a folder, or an S3 bucket."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from core.errors import BucketError
from promotion.storage.bucket import AbsentError, Bucket, ConflictError, check_key
from promotion.storage.directory_bucket import DirBucket

if TYPE_CHECKING:  # At run time, it would load boto3.
    from promotion.storage.s3_bucket import S3Bucket

_SMALL = 16 << 20
"""Size up to which files are read at once, and so always served whole."""
_RACES = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedFile:
    """An open file.

    Attributes:
        etag: HTTP etag, with quotes.
    """

    file: BinaryIO
    size: int
    etag: str


class ServedFiles(Protocol):
    """A source of files by their path in a URL, without the leading slash."""

    def open(self, path: str) -> ServedFile | None:
        """Open a file; None if there is none."""

    def is_folder(self, path: str) -> bool:
        """Return whether a path without a slash at the end is a folder that is served."""


class FolderFiles:
    """The files of a folder.

    Args:
        root: the folder. Links to files outside of it are not served.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def open(self, path: str) -> ServedFile | None:
        """Open a file; see `ServedFiles.open`."""
        target = self._resolved(path)
        if target is None or target.is_dir():
            return None
        try:
            file = target.open("rb")
        except OSError:
            return None
        stat = os.fstat(file.fileno())
        etag = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}-{stat.st_ino:x}"'
        return ServedFile(file=file, size=stat.st_size, etag=etag)

    def is_folder(self, path: str) -> bool:
        """Return whether a path is a folder; see `ServedFiles.is_folder`."""
        target = self._resolved(path)
        return target is not None and target.is_dir()

    def _resolved(self, path: str) -> Path | None:
        try:
            target = self._root.joinpath(*path.split("/")).resolve(strict=True)
        except OSError:  # such as an absent file, or a name that is too long
            return None
        return target if target.is_relative_to(self._root) else None


class StoreFiles:
    """The objects of an S3 bucket, which are read in ranges and never stored on this machine.

    Args:
        report: receiver of a sentence for each failed request to the store.
    """

    def __init__(
        self, bucket: S3Bucket, report: Callable[[str], None] = lambda _: None
    ) -> None:
        self._bucket = bucket
        self._report = report

    def open(self, path: str) -> ServedFile | None:
        """Open an object; see `ServedFiles.open`.

        Raises:
            BucketError: the store fails.
        """
        try:
            check_key(path)
        except BucketError:
            return None
        try:
            return self._open(path)
        except AbsentError:
            return None
        except BucketError as error:
            self._report(error.message)
            raise

    def is_folder(self, path: str) -> bool:
        """Return whether a page exists below a path; see `ServedFiles.is_folder`."""
        found = self.open(f"{path}/index.html")
        if found is not None:
            found.file.close()
        return found is not None

    def _open(self, key: str) -> ServedFile:
        for attempt in range(_RACES):
            reader = self._bucket.open(key)
            if reader.size > _SMALL:
                return ServedFile(file=reader, size=reader.size, etag=reader.etag)
            try:
                with reader:
                    data = reader.read(
                        reader.size
                    )  # without a size, it reads 8 KiB with each request
                    return ServedFile(
                        file=io.BytesIO(data), size=reader.size, etag=reader.etag
                    )
            except ConflictError:
                if attempt == _RACES - 1:
                    raise
        raise AssertionError


def served_files(bucket: Bucket, report: Callable[[str], None]) -> ServedFiles:
    """Return the files of a bucket.

    Raises:
        BucketError: the store cannot be reached, or refuses to read.
    """
    if isinstance(bucket, DirBucket):
        return FolderFiles(bucket.root)
    from promotion.storage.s3_bucket import S3Bucket  # Start-up time: it loads boto3.

    assert isinstance(bucket, S3Bucket)
    files = StoreFiles(bucket, report)
    files.open("v2/index.html")
    return files
