"""Tasks that may run on other machines, and the protocol of the programs that run them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

from core.errors import CiBuildError, MachineError
from core.frozen import frozen
from core.process import HostRunner


@frozen
class Task:
    """One piece of work for any machine.

    Attributes:
        kind: name of the function that runs it, in `ci_build.cli.cluster_worker`.
        label: name for people, unique in a run.
        arguments: JSON values.
        inputs: name -> file or folder.
        resources: required resources of a worker, such as {"gfx942": 1}.
        memory_mb: megabytes of memory that the task needs; 0 for a negligible amount.
    """

    kind: str
    label: str
    arguments: Mapping[str, Any]
    inputs: Mapping[str, Path] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)
    memory_mb: int = 0


@frozen
class TaskResult:
    """Result of a task.

    Attributes:
        value: JSON value that the function returned; None after an error.
        folder: folder on this machine with the files that the function left.
        worker: name of the worker that ran the task.
        error: error of the task; empty after success.
        kind: class of the error: MachineError if the task was lost with its workers,
            RequestError for wrong options.
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

        Closing the iterator cancels the remaining tasks. Tasks that come first start
        first. A failed task is a result with an error, and does not stop the others.

        Args:
            work: folder that receives a subfolder with the files of each result; the
                caller may move the files.

        Raises:
            MachineError: no worker can be reached.
        """


@frozen
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
    """A worker may not run a task, because it has another toolchain or ROCm."""


TaskFunction = Callable[[Mapping[str, Any], TaskContext], Any]
"""Arguments and context of a task -> JSON value.

A MachineError ends the worker, and the task runs on another one. Any other CiBuildError
is the task's own failure and is not tried again.
"""
