"""A staged set as an index that installers can reach, whatever the bucket is."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from promotion.gates.common.gate import GateContext
from promotion.gates.install.installation import InstallationError
from promotion.index.pages import metadata_name
from promotion.index.serve import IndexServer, Served
from promotion.storage.directory_bucket import DirBucket


class StagedIndex:
    """The index of a staged set while its server is entered; `open_index` does that."""

    def __init__(self, root: Path, context: GateContext) -> None:
        self.server = IndexServer(root, on_request=self._answered)
        self._room = context
        self._served: list[Served] = []
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where the set's simple index is."""
        return self.server.url + self._room.staged.simple

    def _answered(self, answer: Served) -> None:
        with self._lock:
            self._served.append(answer)

    def _has_sent(self, key: str, size: int) -> bool:
        """Whether clients have got that many bytes of a file."""
        with self._lock:
            return sum(answer.sent for answer in self._served if answer.path == key) >= size

    def require(self, filenames: Iterable[str]) -> None:
        """Make sure that these wheels of the set were fetched whole.

        Raises:
            TrialError: one was not, so that whatever was installed came from elsewhere.
        """
        sizes = {wheel.filename: wheel.size for wheel in self._room.wheel_set.wheels}
        for filename in filenames:
            key = self._room.staged.file(filename)
            if not self.server.settle(partial(self._has_sent, key, sizes[filename])):
                raise InstallationError("install-elsewhere", f"{filename} did not come from the staged index.")


@contextlib.contextmanager
def open_index(context: GateContext) -> Iterator[StagedIndex]:
    """Serve the staged set on this machine; of a bucket that is no folder, what an installer needs is fetched first."""
    bucket = context.bucket
    root = bucket.root if isinstance(bucket, DirBucket) else _fetched(context)
    index = StagedIndex(root, context)
    with index.server:
        yield index


def _fetched(context: GateContext) -> Path:
    """A folder with the set's index and wheels, under their keys; made once in a run of gates."""
    root = context.shared / "bucket"
    for key in _needed(context):
        path = root / key
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            came = context.bucket.fetch(key, path.parent)
            if came != path:
                shutil.copyfile(came, path)
    return root


def _needed(context: GateContext) -> Iterator[str]:
    yield from context.bucket.list(context.staged.simple)
    for wheel in context.wheel_set.wheels:
        yield context.staged.file(wheel.filename)
        yield context.staged.file(metadata_name(wheel.filename))
