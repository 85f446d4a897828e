"""Serve a staged set as an index for installers, from any kind of bucket."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from promotion.gates.common.gate import GateContext
from promotion.gates.install.installation import InstallationError
from promotion.index.pages import metadata_name
from promotion.index.serve import IndexServer, Served
from promotion.storage.directory_bucket import DirBucket


class StagedIndex:
    """A running index of a staged set; see `open_index`."""

    def __init__(self, root: Path, context: GateContext) -> None:
        self.server = IndexServer(root, on_request=self._record)
        self._room = context
        self._served: list[Served] = []
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Return the URL of the set's simple index."""
        return self.server.url + self._room.staged.simple

    def _record(self, served: Served) -> None:
        with self._lock:
            self._served.append(served)

    def _has_sent(self, key: str, size: int) -> bool:
        """Report whether clients have received that many bytes of a file."""
        with self._lock:
            return sum(served.sent for served in self._served if served.path == key) >= size

    def require(self, filenames: Iterable[str]) -> None:
        """Verify that clients downloaded these wheels of the set completely.

        Raises:
            InstallationError: a wheel was not downloaded, so the installed one has another origin.
        """
        sizes = {wheel.filename: wheel.size for wheel in self._room.wheel_set.wheels}
        for filename in filenames:
            key = self._room.staged.file(filename)
            if not self._has_sent(key, sizes[filename]):
                raise InstallationError("install-elsewhere", f"{filename} did not come from the staged index.")


@contextlib.contextmanager
def open_index(context: GateContext) -> Iterator[StagedIndex]:
    """Serve the staged set on this machine; files of a remote bucket are downloaded first."""
    bucket = context.bucket
    root = bucket.root if isinstance(bucket, DirBucket) else _fetched(context)
    index = StagedIndex(root, context)
    with index.server:
        yield index


def _fetched(context: GateContext) -> Path:
    """Download the set's index and wheels once in a run of gates, under their keys."""
    root = context.shared / "bucket"
    for key in _needed(context):
        path = root / key
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            fetched = context.bucket.fetch(key, path.parent)
            if fetched != path:
                shutil.copyfile(fetched, path)
    return root


def _needed(context: GateContext) -> Iterator[str]:
    yield from context.bucket.list(context.staged.simple)
    for wheel in context.wheel_set.wheels:
        yield context.staged.file(wheel.filename)
        yield context.staged.file(metadata_name(wheel.filename))
