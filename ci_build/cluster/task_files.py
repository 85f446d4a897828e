"""Files of tasks in a folder or bucket that all machines share.

By digest, created once, verified when read.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from core.digests import file_sha256
from core.errors import BucketError, InputError
from core.store import ContentStore
from core.tasks import TaskInput, write_tree
from core.unpack.decompress import chunks_of
from core.unpack.extract import extract
from promotion.storage.bucket import AbsentError, Bucket, ConflictError, sha256_of

MOST_TRIES = 3
"""Number of workers that may be lost with a task before the task is given up."""


class DamagedBlobError(BucketError):
    """A file of the store has other bytes than its digest says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Try:
    """Record of a worker that runs a task."""

    key: str
    sha256: str


class ClusterStore:
    """Inputs, results and tries of tasks.

    Args:
        bucket: bucket that all machines share.
        cache: folder of this machine for copies.
    """

    def __init__(self, bucket: Bucket, cache: Path) -> None:
        self._bucket = bucket
        self._cache = cache
        self._files = ContentStore(cache / "files")
        self._trees = ContentStore(cache / "trees")
        self._verified: dict[str, tuple[Path, os.stat_result]] = {}
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def send(self, given: TaskInput) -> None:
        """Store an input unless the store has it.

        Raises:
            InputError: the input changed after its digest was computed.
        """
        key = _blob(given.sha256)
        if self._bucket.head(key) is not None:
            return
        if not given.tree:
            self._put(given.path, given)
            return
        self._cache.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._cache, prefix=".tree-") as archive:
            write_tree(given.path, archive.file)
            archive.flush()
            self._put(Path(archive.name), given)

    def _put(self, data: Path, given: TaskInput) -> None:
        if file_sha256(data) != given.sha256:
            raise InputError(
                f"{given.path} changed while the tasks were prepared.",
                hint="Run the command again.",
            )
        self._bucket.put_if_absent(_blob(given.sha256), data, sha256=given.sha256)

    def keep(self, path: Path) -> str:
        """Store a file of a result and return its digest."""
        given = TaskInput(path=path, sha256=file_sha256(path))
        self.send(given)
        return given.sha256

    def obtain(self, sha256: str, *, tree: bool) -> Path:
        """Return a read-only file, or an unpacked folder, with this digest.

        Raises:
            DamagedBlobError: the store has other bytes.
            BucketError: the store does not have them, or fails.
        """
        with self._locks[sha256]:
            return self._tree(sha256) if tree else self._file(sha256)

    def copy_to(self, sha256: str, path: Path) -> None:
        """Write the file with this digest."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as folder:
            _check(fetched := self._bucket.fetch(_blob(sha256), Path(folder)), sha256)
            shutil.copyfile(fetched, path)

    def _file(self, sha256: str) -> Path:
        known = self._verified.get(sha256)
        # A file that changed since it was verified is verified again.
        if (
            known is not None
            and known[0].exists()
            and _unchanged(known[1], known[0].stat())
        ):
            return known[0]
        path = self._files.folder(sha256)
        if (
            not path.exists() or file_sha256(path) != sha256
        ):  # this machine may have damaged its copy
            with self._files.scratch() as scratch:
                _check(fetched := self._bucket.fetch(_blob(sha256), scratch), sha256)
                if fetched.is_relative_to(scratch):
                    fetched.replace(path)
                else:
                    path = fetched
        self._verified[sha256] = (path, path.stat())
        return path

    def _tree(self, sha256: str) -> Path:
        final = self._trees.folder(sha256)
        if not final.is_dir():
            with (
                self._trees.scratch() as scratch,
                self._file(sha256).open("rb") as file,
            ):
                (scratch / "tree").mkdir()
                extract(chunks_of(file), "tar", scratch / "tree")
                self._trees.publish(scratch / "tree", sha256)
        return final

    def begin_try(
        self, name: str, earlier: Sequence[str], worker: str
    ) -> Try | tuple[str, ...]:
        """Record that a worker runs a task.

        Return the workers that were lost with the task if they were too many.

        The record outlives the worker, the scheduler and the client, so that a task
        which kills its workers ends.

        Args:
            name: name of the task in its run.
            earlier: workers whose machines failed with the task before, as far as the
                client knows.
        """
        body = json.dumps({"worker": worker, "try": os.urandom(8).hex()}).encode()
        for number in range(1, MOST_TRIES - len(earlier) + 1):
            with suppress(ConflictError):
                self._bucket.put_if_absent(
                    _try(name, number), body, sha256=sha256_of(body)
                )
                return Try(key=_try(name, number), sha256=sha256_of(body))
        return (*earlier, *self.tries(name))

    def end_try(self, ended: Try) -> None:
        """Remove the record of a try that came to an end, so that only lost workers keep theirs."""
        with suppress(
            BucketError
        ):  # a record too many only counts if the task runs again
            self._bucket.delete(ended.key, sha256=ended.sha256)

    def tries(self, name: str) -> tuple[str, ...]:
        """Return the workers that run a task, or were lost with it."""
        workers = []
        for number in range(1, MOST_TRIES + 1):
            with suppress(AbsentError):
                workers.append(
                    str(json.loads(self._bucket.get(_try(name, number)))["worker"])
                )
        return tuple(workers)


def _blob(sha256: str) -> str:
    return f"cluster/blobs/{sha256[:2]}/{sha256}"


def _try(name: str, number: int) -> str:
    return f"cluster/tries/{name}.{number}"


def _unchanged(old: os.stat_result, new: os.stat_result) -> bool:
    return (old.st_ino, old.st_size, old.st_mtime_ns) == (
        new.st_ino,
        new.st_size,
        new.st_mtime_ns,
    )


def _check(path: Path, sha256: str) -> None:
    """Raise DamagedBlobError unless a file of the store has this digest."""
    if (found := file_sha256(path)) != sha256:
        text = f"{_blob(sha256)} of the cluster's store has sha256 {found}."
        raise DamagedBlobError(text, hint="Remove it, and run the command again.")
