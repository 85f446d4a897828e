"""A bucket on which nothing happens: writes are told and remembered, so that the work goes on as if they were done."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from core.errors import BucketError
from core.units import human
from promotion.storage.bucket import AbsentError, Bucket, ConflictError, Data, ObjectInfo, check_key, sha256_of, size_of


class DryRunBucket:
    """Reads what another bucket holds, under what would have been written to it.

    Args:
        under: the bucket that stays as it is.
        tell: gets a line for each write.
    """

    def __init__(self, under: Bucket, tell: Callable[[str], None]) -> None:
        self._under, self._tell = under, tell
        self._lock = threading.Lock()
        self._written: dict[str, tuple[ObjectInfo, Data | str]] = {}
        """Key -> what is said of it, and its bytes, their file, or the key in the other bucket that has them."""
        self._removed: set[str] = set()

    def head(self, key: str) -> ObjectInfo | None:
        """What would be stored under a key."""
        if check_key(key) in self._written:
            return self._written[key][0]
        return None if key in self._removed else self._under.head(key)

    def get(self, key: str) -> bytes:
        """The whole of a small object."""
        with self.open(key) as file:
            return file.read()

    def read(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        """The whole of a small object, and what is known of it; see `Bucket.read`."""
        if key in self._written or key in self._removed:
            info = self.head(key)
            return None if info is None else (self.get(key), info)
        return self._under.read(key)

    def open(self, key: str) -> BinaryIO:
        """A seekable stream of an object's bytes."""
        held = self._written[key][1] if check_key(key) in self._written else key
        if isinstance(held, bytes):
            return io.BytesIO(held)
        if isinstance(held, Path):
            return held.open("rb")
        if held in self._removed and held == key:
            raise AbsentError(f"{key} is not in the bucket.")
        return self._under.open(held)

    def fetch(self, key: str, folder: Path) -> Path:
        """The object as a file in `folder`."""
        if key not in self._written and key not in self._removed:
            return self._under.fetch(key, folder)
        path = folder / key.rpartition("/")[2]
        with self.open(key) as file:
            path.write_bytes(file.read())
        return path

    def put_if_absent(self, key: str, data: Data, *, sha256: str) -> bool:
        """Tell of an object that would be created."""
        size = size_of(data)
        if (found := sha256_of(data)) != sha256:
            raise BucketError(f"The bytes for {key} hash to {found}, not to {sha256}.", hint="Build the set again.")
        return self._create("create", key, data, size, sha256)

    def put_if_match(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo:
        """Tell of an object that would be replaced."""
        stored = self.head(key)
        if (stored.etag if stored else None) != etag:
            raise ConflictError(f"{key} was changed by somebody else meanwhile.", hint="Run it again.")
        info = ObjectInfo(key=key, size=len(data), sha256=sha256_of(data), etag=f"dry-run-{sha256_of(data)}")
        self._written[key] = info, data
        self._tell(f"{'replace' if stored else 'create'} {key} ({human(len(data))})")
        return info

    def copy(self, source: str, target: str, *, sha256: str) -> bool:
        """Tell of an object that would be copied."""
        stored = self.head(source)
        if stored is None or stored.sha256 != sha256:
            found = "is absent" if stored is None else f"has sha256 {stored.sha256}"
            raise BucketError(f"{source} {found}, {sha256} was expected.", hint="Stage the set again.")
        held = self._written[source][1] if source in self._written else source
        return self._create(f"copy {source} to", target, held, stored.size, sha256)

    def list(self, prefix: str) -> Iterator[str]:
        """Keys below a prefix, sorted."""
        kept = {key for key in self._under.list(prefix) if key not in self._removed}
        with self._lock:
            written = {key for key in self._written if key.startswith(prefix)}
        yield from sorted(kept | written)

    def delete(self, key: str, *, sha256: str) -> bool:
        """Tell of an object that would be removed."""
        stored = self.head(key)
        if stored is None:
            return False
        if stored.sha256 != sha256:
            raise ConflictError(f"{key} has sha256 {stored.sha256}; {sha256} was to be removed.", hint="Run it again.")
        self._written.pop(key, None)
        self._removed.add(key)
        self._tell(f"remove {key} ({human(stored.size)})")
        return True

    def _create(self, word: str, key: str, held: Data | str, size: int, sha256: str) -> bool:
        stored = self.head(key)
        if stored is not None and stored.sha256 != sha256:
            raise ConflictError(
                f"{key} is stored with sha256 {stored.sha256} and shall not become {sha256}.",
                hint="One name never stands for two contents; give the new content another version.",
            )
        if stored is not None:
            return False
        info = ObjectInfo(key=check_key(key), size=size, sha256=sha256, etag=f"dry-run-{sha256}")
        with self._lock:
            self._written[key] = info, held
            self._tell(f"{word} {key} ({human(size)})")
        return True
