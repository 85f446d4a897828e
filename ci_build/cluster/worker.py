"""A worker.

Runs one task after another, each in its own folder, and takes none from another
program.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci_build.cluster.identity import own_identity
from ci_build.cluster.kinds import KINDS
from ci_build.cluster.messages import Order, WorkerAnswer, load_order
from ci_build.cluster.task_files import ClusterStore, DamagedBlobError, Try
from core.errors import BucketError, CiBuildError, MachineError, RequestError
from core.os_errors import describe, machine_failure
from core.process import HostRunner, LineSink, ProcessResult, Watch
from core.process_groups import GroupGuard
from core.store import ContentStore
from core.tasks import TaskContext, WorkerUnfitError
from promotion.storage.bucket_url import open_bucket

_FULL = 16 << 20
"""Free bytes below which a disk counts as full."""
_LOOK_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSetup:
    """Settings of a worker process.

    Attributes:
        name: name for people, such as `node7-4242`.
        cache: folder for inputs, and for files of running tasks.
        environment: environment of the commands of tasks.
        report: receiver of one line for each task.
    """

    name: str
    cache: Path
    environment: Mapping[str, str]
    identity: str = field(default_factory=own_identity)
    report: LineSink = print


class WorkerState:
    """State of this worker process.

    Attributes:
        unfit: why this machine runs no more tasks; empty while it does.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self.setup = setup
        self.unfit = ""
        self.scratch = ContentStore(setup.cache / "running")
        self.guard = GroupGuard(setup.environment)
        self._stores: dict[str, ClusterStore] = {}
        self._lock = threading.Lock()

    def store(self, name: str) -> ClusterStore:
        """Return the store with this name."""
        with self._lock:
            if name not in self._stores:
                self._stores[name] = ClusterStore(open_bucket(name), self.setup.cache)
            return self._stores[name]


_STATE: list[WorkerState] = []
"""State of this process, if it is a worker; the functions of Dask are called without it."""


def become_worker(setup: WorkerSetup) -> WorkerState:
    """Make this process a worker, and remove the files of killed workers."""
    state = WorkerState(setup)
    state.scratch.sweep()
    _STATE[:] = [state]
    return state


def default_name() -> str:
    """Return the host and the process id."""
    return f"{socket.gethostname()}-{os.getpid()}"


def execute(text: str) -> str:
    """Run a task and return the answer; Dask calls this function on a worker."""
    # `distributed` is no requirement of the command line.
    from distributed import get_worker

    worker = get_worker()
    if not _STATE:
        why = "it was not started with `ci_build cluster worker`"
        return WorkerAnswer(
            worker=str(worker.name), address=worker.address, refused=why
        ).dump()
    state = _STATE[0]
    key = worker.get_current_task()

    def wanted() -> bool:
        task = worker.state.tasks.get(key)
        running = worker.status.name in ("running", "paused", "closing_gracefully")
        return (
            running and task is not None and task.state in ("executing", "long-running")
        )

    answer = answer_order(load_order(text), state, worker.address, wanted)
    return answer.dump()


def answer_order(
    order: Order, state: WorkerState, address: str, wanted: Callable[[], bool]
) -> WorkerAnswer:
    """Run a task and return the answer.

    Args:
        wanted: returns whether the scheduler still wants the result.
    """
    name = state.setup.name
    started = time.monotonic()

    def answer(**values: Any) -> WorkerAnswer:  # noqa: ANN401 - fields of WorkerAnswer
        return WorkerAnswer(
            worker=name,
            address=address,
            seconds=round(time.monotonic() - started, 3),
            **values,
        )

    if order.identity != state.setup.identity:
        return answer(
            refused=f"it runs {state.setup.identity}, the client runs {order.identity}"
        )
    if state.unfit:
        return answer(refused=state.unfit)
    try:
        store = state.store(order.store)
        begun = store.begin_try(order.name, order.earlier, name)
        if not isinstance(begun, Try):
            return answer(lost=begun)
        try:
            with state.scratch.scratch() as folder, cancellation(wanted) as stop:
                try:
                    value, files = _run(order, state, store, folder, stop)
                except Exception as error:
                    if not stop.is_set():
                        raise
                    return answer(
                        error=f"It was cancelled: {error}"
                    )  # says nothing about this machine
        finally:
            store.end_try(begun)
        return answer(value=value, files=files)
    except WorkerUnfitError as error:
        state.unfit = str(error)
        return answer(refused=state.unfit)
    except MachineError as error:
        state.unfit = str(error)
        return answer(machine=state.unfit)
    except DamagedBlobError as error:  # neither the task nor this machine is the cause
        return answer(error=str(error), kind=MachineError.__name__)
    except Exception as error:
        reason = _machine_failure(error, state.setup.cache)
        if not reason and isinstance(
            error, BucketError
        ):  # other machines may see the store, or have credentials
            reason = f"It cannot use the store {order.store}: {error.message}"
        if reason:
            state.unfit = reason
            return answer(machine=reason)
        known = isinstance(error, CiBuildError)
        text = (
            str(error)
            if known
            else f"Internal error in {order.kind}: {traceback.format_exc()}"
        )
        kind = RequestError if isinstance(error, RequestError) else CiBuildError
        return answer(error=text, kind=kind.__name__)


def _run(
    order: Order,
    state: WorkerState,
    store: ClusterStore,
    folder: Path,
    stop: threading.Event,
) -> tuple[Any, dict[str, list[Any]]]:
    """Return the value of a task's function, and its files after they were stored."""
    made = folder / "made"
    scratch = folder / "scratch"
    made.mkdir()
    scratch.mkdir()
    context = TaskContext(
        folder=made,
        scratch=scratch,
        cache=state.setup.cache,
        inputs={
            name: store.obtain(sha256, tree=tree)
            for name, (sha256, tree) in order.inputs.items()
        },
        runner=CancellableRunner(state.setup.environment, stop, state.guard),
        stop=stop,
    )
    value = KINDS[order.kind](order.arguments, context)
    files = {
        path.relative_to(made).as_posix(): [
            store.keep(path),
            bool(path.stat().st_mode & 0o100),
        ]
        for path in sorted(made.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
    return value, files


@contextmanager
def cancellation(wanted: Callable[[], bool]) -> Iterator[threading.Event]:
    """Provide an event that is set when a task is no longer wanted."""
    stop = threading.Event()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK_SECONDS):
            if not wanted():
                stop.set()
                return

    thread = threading.Thread(target=watch, name="cancellation", daemon=True)
    thread.start()
    try:
        yield stop
    finally:
        done.set()


class CancellableRunner(HostRunner):
    """Runner whose commands end with their groups on cancellation or kill."""

    def __init__(
        self, environment: Mapping[str, str], stop: threading.Event, guard: GroupGuard
    ) -> None:
        super().__init__(environment)
        self._stop = stop
        self._guard = guard

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        check: bool = True,
        timeout: float | None = None,
        on_line: LineSink | None = None,
        on_error_line: LineSink | None = None,
        watch: Watch | None = None,
        keep: int | None = None,
    ) -> ProcessResult:
        """Run one command; see `HostRunner.run`."""
        started: set[int] = set()

        def look(pid: int) -> str:
            if pid not in started:
                started.add(pid)
                self._guard.add(pid)
            return (
                "was cancelled"
                if self._stop.is_set()
                else watch(pid)
                if watch is not None
                else ""
            )

        try:
            return super().run(
                argv,
                env=env,
                cwd=cwd,
                check=check,
                timeout=timeout,
                on_line=on_line,
                on_error_line=on_error_line,
                watch=look,
                keep=keep,
            )
        finally:
            for pid in started:
                self._guard.remove(pid)


def _machine_failure(error: BaseException, folder: Path) -> str:
    """Return the failure of this machine that caused an error, such as a full disk.

    Empty if there is none.
    """
    if failure := machine_failure(error):
        return describe(failure)
    free = shutil.disk_usage(folder).free
    # A compiler that could not write its output reports it in its own words.
    return f"The disk of {folder} has {free >> 20} MB left." if free < _FULL else ""
