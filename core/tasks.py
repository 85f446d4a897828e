"""Tasks that may run on other machines, and the protocol of the programs that run them."""

from __future__ import annotations

import hashlib
import json
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol, cast

from core.digests import file_sha256
from core.errors import CiBuildError, MachineError
from core.process import HostRunner


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskInput:
    """A file or a folder that a task reads.

    Attributes:
        path: the file or folder on this machine.
        sha256: digest of the file, or of the folder's archive (see `write_tree`).
        tree: whether it is a folder.
    """

    path: Path
    sha256: str
    tree: bool = False

    @classmethod
    def of(cls, path: Path) -> TaskInput:
        """Return the input for a file or a folder, with its digest."""
        if not path.is_dir():
            return cls(path=path, sha256=file_sha256(path))
        digest = _HashingWriter()
        write_tree(path, cast("IO[bytes]", digest))
        return cls(path=path, sha256=digest.sha256.hexdigest(), tree=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One piece of work for any machine.

    Attributes:
        kind: name of the function that runs it, in the table of
            `ci_build.cluster.kinds`.
        label: name for people; it is no part of the key.
        arguments: JSON values.
        inputs: name -> file or folder; it is sent by digest.
        resources: required resources of a worker, such as {"gfx942": 1}.
        memory_mb: megabytes of memory that the task needs; 0 for a negligible amount.
    """

    kind: str
    label: str
    arguments: Mapping[str, Any]
    inputs: Mapping[str, TaskInput] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)
    memory_mb: int = 0

    @property
    def key(self) -> str:
        """The SHA-256 of everything that the result depends on; tasks with equal keys run once."""
        inputs = {
            name: [given.sha256, given.tree] for name, given in self.inputs.items()
        }
        parts = {
            "kind": self.kind,
            "arguments": self.arguments,
            "inputs": inputs,
            "resources": dict(self.resources),
        }
        return hashlib.sha256(
            json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()
        ).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskResult:
    """Result of a task.

    Attributes:
        value: JSON value that the function returned; None after an error.
        folder: folder on this machine with the files that the function left.
        worker: name of the worker that ran the task.
        error: error of the task; empty after success.
        kind: class of the error: MachineError if the task was lost with its workers or
            the store has damaged files, RequestError for wrong options.
    """

    task: Task
    value: Any = None
    folder: Path
    worker: str = ""
    seconds: float = 0.0
    error: str = ""
    kind: type[CiBuildError] = CiBuildError


class Tasks(Protocol):
    """Runner of tasks, on one machine or many."""

    def run(self, tasks: Sequence[Task], work: Path) -> Iterator[TaskResult]:
        """Run tasks and yield each result as it comes.

        Closing the iterator cancels the remaining tasks.

        Tasks that come first start first. A failed task is a result with an error, and
        does not stop the others.

        Args:
            work: folder that receives a subfolder with the files of each result; the
                caller may move the files.

        Raises:
            MachineError: no worker can be reached.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskContext:
    """The context of a task's function, besides its arguments.

    Attributes:
        folder: empty folder for files; those that the function leaves there are part of
            the result.
        scratch: empty folder, removed afterwards.
        cache: folder of this worker that stays between tasks.
        inputs: name -> read-only file or folder.
        runner: runner of commands that ends them when the task is cancelled.
        stop: event that is set when the task is cancelled.
    """

    folder: Path
    scratch: Path
    cache: Path
    inputs: Mapping[str, Path]
    runner: HostRunner
    stop: threading.Event


class WorkerUnfitError(MachineError):
    """A worker may not run a task, because it has another toolchain.

    Raised by the function of a task.
    """


TaskFunction = Callable[[Mapping[str, Any], TaskContext], Any]
"""Arguments and context of a task -> JSON value.

A CiBuildError is the task's own failure and is not tried again.
"""


def write_tree(folder: Path, out: IO[bytes]) -> None:
    """Write a folder as an uncompressed tar archive whose bytes depend on its files.

    Names, contents, executable bits.

    Empty folders are left out.
    """
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(
            path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()
        ):
            entry = archive.gettarinfo(path, path.relative_to(folder).as_posix())
            if entry.islnk():  # a second name of a file is a copy of it
                entry.type = tarfile.REGTYPE
                entry.linkname = ""
                entry.size = path.stat().st_size
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = 0
            entry.mode = 0o755 if entry.mode & 0o100 else 0o644
            if entry.isreg():
                with path.open("rb") as file:
                    archive.addfile(entry, file)
            else:
                archive.addfile(entry)


class _HashingWriter:
    """A binary file that keeps only the digest of the written bytes."""

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        return len(data)
