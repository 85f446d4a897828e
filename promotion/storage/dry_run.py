"""A bucket for dry runs, which reports and remembers writes instead of doing them."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from core.digests import sha256_of
from core.units import human
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


class DryRunBucket(Bucket):
    """A view of a bucket with the reported writes applied.

    Args:
        under: the underlying bucket, which stays unchanged.
        report: receiver of one line for each write.
    """

    def __init__(self, under: Bucket, report: Callable[[str], None]) -> None:
        self._under = under
        self.identity = under.identity
        self._report = report
        self._lock = threading.Lock()
        self._written: dict[str, tuple[ObjectInfo, Data | str]] = {}
        """Key -> properties, and the bytes, their file, or their key in the underlying bucket."""
        self._removed: set[str] = set()

    def head(self, key: str) -> ObjectInfo | None:
        """Return the properties that an object would have after the reported writes."""
        if check_key(key) in self._written:
            return self._written[key][0]
        return None if key in self._removed else self._under.head(key)

    def read(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        """Return the bytes of a small object and its properties; see `Bucket.read`."""
        if key not in self._written and key not in self._removed:
            return self._under.read(key)
        info = self.head(key)
        if info is None:
            return None
        with self.open(key) as file:
            return file.read(), info

    def open(self, key: str) -> BinaryIO:
        """Return a seekable stream of an object."""
        held = self._written[key][1] if check_key(key) in self._written else key
        if isinstance(held, bytes):
            return io.BytesIO(held)
        if isinstance(held, Path):
            return held.open("rb")
        if held in self._removed and held == key:
            raise AbsentError(f"{key} is not in the bucket.")
        return self._under.open(held)

    def fetch(self, key: str, folder: Path) -> Path:
        """Return the object as a file in `folder`."""
        if key not in self._written and key not in self._removed:
            return self._under.fetch(key, folder)
        path = folder / key.rpartition("/")[2]
        with self.open(key) as file:
            path.write_bytes(file.read())
        return path

    def put_if_absent(self, key: str, data: Data, *, sha256: str) -> bool:
        """Report the creation of an object."""
        size = size_of(data)
        check_digest(key, sha256_of(data), sha256)
        return self._create("create", key, data, size, sha256)

    def put_if_match(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo:
        """Report the replacement of an object."""
        stored = self.head(key)
        check_etag(key, stored, etag)
        info = object_info(key, data, f"dry-run-{sha256_of(data)}")
        self._written[key] = info, data
        self._report(f"{'replace' if stored else 'create'} {key} ({human(len(data))})")
        return info

    def copy(self, source: str, target: str, *, sha256: str) -> bool:
        """Report the copy of an object."""
        stored = check_source(source, self.head(source), sha256)
        held = self._written[source][1] if source in self._written else source
        return self._create(f"copy {source} to", target, held, stored.size, sha256)

    def list(self, folder: str) -> Iterator[str]:
        """Yield the keys below a folder, sorted."""
        with self._lock:
            written = {key for key in self._written if key.startswith(folder)}
        yield from sorted(({*self._under.list(folder)} - self._removed) | written)

    def delete(self, key: str, *, sha256: str) -> bool:
        """Report the removal of an object."""
        stored = self.head(key)
        if stored is None or not can_delete(key, stored, sha256):
            return False
        self._written.pop(key, None)
        self._removed.add(key)
        self._report(f"remove {key} ({human(stored.size)})")
        return True

    def _create(
        self, action: str, key: str, held: Data | str, size: int, sha256: str
    ) -> bool:
        stored = self.head(key)
        if stored is not None:
            return check_same_bytes(key, stored, sha256)
        info = ObjectInfo(
            key=check_key(key), size=size, sha256=sha256, etag=f"dry-run-{sha256}"
        )
        with self._lock:
            self._written[key] = info, held
            self._report(f"{action} {key} ({human(size)})")
        return True
