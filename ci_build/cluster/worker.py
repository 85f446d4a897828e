"""Execution of tasks by a worker of Dask; `ci_build.cli.cluster_worker` sets it up."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any

from distributed import WorkerPlugin, get_worker

from ci_build.cluster.identity import own_identity
from core.errors import CiBuildError, MachineError, RequestError
from core.frozen import frozen
from core.os_errors import describe, machine_failure
from core.process import HostRunner
from core.tasks import TaskContext, TaskFunction

MEMORY = "memory_mb"
"""Resource of workers: megabytes for all tasks together."""
ENDED = "ci_build-worker-ended"
"""Topic of Dask's events about workers whose machine failed."""
_FULL = 16 << 20
"""Free bytes below which a disk counts as full."""
_END_SECONDS = 10.0
"""Time in which the commands of a worker that ends are stopped."""


Files = dict[str, tuple[bytes, int]]
"""Path below a result's folder -> content and mode of a file."""


@frozen
class TaskOutcome:
    """Result of a task on its way to the client.

    Attributes:
        value: JSON value of the function.
        error: failure of the task itself; empty after success.
        kind: class of the error.
    """

    worker: str
    seconds: float
    value: Any = None
    files: Files = field(default_factory=dict)
    error: str = ""
    kind: type[CiBuildError] = CiBuildError


class TaskWorker(WorkerPlugin):  # type: ignore[misc] # Dask has no type annotations.
    """Functions of tasks, and the events that stop running tasks.

    Args:
        functions: kind of a task -> its function.
        cache: folder of this machine that stays between tasks.
        environment: environment of the commands of tasks.
        memory_mb: memory of all tasks together.
    """

    def __init__(
        self,
        functions: Mapping[str, TaskFunction],
        *,
        cache: Path,
        environment: Mapping[str, str],
        memory_mb: int,
    ) -> None:
        self.functions = functions
        self.cache = cache
        self.environment = environment
        self.memory_mb = memory_mb
        self._stops: dict[str, threading.Event] = {}

    def setup(self, worker: Any) -> None:  # noqa: ANN401 - a class of Dask
        """Offer the resources that the tasks of this program need."""
        offered = {own_identity(): 1.0, MEMORY: float(self.memory_mb)}
        worker.state.total_resources.update(offered)
        worker.state.available_resources.update(offered)

    def transition(self, key: str, start: str, finish: str, **_: object) -> None:
        """Stop a task that was cancelled, which Dask releases while it runs."""
        if (start, finish) == ("executing", "released") and key in self._stops:
            self._stops[key].set()

    async def teardown(self, worker: Any) -> None:  # noqa: ANN401, ARG002 - a class of Dask
        """Stop all tasks; without this, their commands would outlive the worker."""
        deadline = time.monotonic() + _END_SECONDS
        for stop in list(self._stops.values()):
            stop.set()
        while self._stops and time.monotonic() < deadline:
            await asyncio.sleep(0.05)

    @contextmanager
    def stop_event(self, key: str) -> Iterator[threading.Event]:
        """Provide the event that stops a task."""
        self._stops[key] = threading.Event()
        try:
            yield self._stops[key]
        finally:
            del self._stops[key]


def execute(order: str) -> TaskOutcome:
    """Run a task on a worker and return its outcome.

    Args:
        order: JSON list of the kind, the arguments, and the places of inputs by name.

    Raises:
        MachineError: this machine cannot run tasks. The worker ends, so that Dask's
            repetition runs on another one.
    """
    kind, arguments, inputs = json.loads(order)
    worker = get_worker()
    own: TaskWorker = worker.plugins[TaskWorker.__name__]
    started = time.monotonic()

    def outcome(**values: Any) -> TaskOutcome:  # noqa: ANN401 - fields of TaskOutcome
        seconds = round(time.monotonic() - started, 3)
        return TaskOutcome(worker=str(worker.name), seconds=seconds, **values)

    with (
        tempfile.TemporaryDirectory(dir=worker.local_directory) as folder,
        own.stop_event(worker.get_current_task()) as stop,
    ):
        try:
            value, files = _run(own, kind, arguments, inputs, Path(folder), stop)
        except Exception as error:
            if stop.is_set():
                return outcome(error=f"It was cancelled: {error}")
            if failure := _machine_failure(error, Path(folder)):
                text = f"worker {worker.name} ends: {failure}"
                worker.log_event(ENDED, text)
                worker.loop.add_callback(worker.close_gracefully, reason=failure)
                raise MachineError(text) from None
            if not isinstance(error, CiBuildError):
                text = traceback.format_exc()
                return outcome(error=f"Internal error in {kind}: {text}")
            wrong = isinstance(error, RequestError)
            return outcome(
                error=str(error), kind=RequestError if wrong else CiBuildError
            )
    return outcome(value=value, files=files)


def _run(
    own: TaskWorker,
    kind: str,
    arguments: Mapping[str, Any],
    inputs: Mapping[str, str],
    folder: Path,
    stop: threading.Event,
) -> tuple[Any, Files]:
    """Return the value of a task's function, and the files that it left."""
    for place in inputs.values():
        if not Path(place).exists():
            raise MachineError(
                f"{place} does not exist on this machine.",
                hint="All machines must see --cluster-store at the same path.",
            )
    made = folder / "made"
    scratch = folder / "scratch"
    made.mkdir()
    scratch.mkdir()
    context = TaskContext(
        folder=made,
        scratch=scratch,
        cache=own.cache,
        inputs={name: Path(place) for name, place in inputs.items()},
        runner=HostRunner(own.environment).with_stop_event(stop),
        stop=stop,
    )
    value = own.functions[kind](arguments, context)
    files: Files = {}
    for path in sorted(made.rglob("*")):
        if path.is_file() and not path.is_symlink():
            mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            files[path.relative_to(made).as_posix()] = (path.read_bytes(), mode)
    return value, files


def _machine_failure(error: Exception, folder: Path) -> str:
    """Return the failure of this machine that caused an error; empty if there is none."""
    if isinstance(error, MachineError):
        return str(error)
    if failure := machine_failure(error):
        return describe(failure)
    free = shutil.disk_usage(folder).free
    # A compiler that could not write its output reports it in its own words.
    return f"The disk of {folder} has {free >> 20} MB left." if free < _FULL else ""
