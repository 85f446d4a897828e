"""The client of a cluster: submission of tasks, and their results."""

from __future__ import annotations

import json
import logging
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import distributed

from ci_build.cluster.cluster_request import SLURM, ClusterRequest
from ci_build.cluster.identity import identity_of, own_identity
from ci_build.cluster.worker import ENDED, MEMORY, TaskOutcome, execute
from core.errors import CiBuildError, MachineError
from core.model import Progress
from core.process import ignore_interrupts
from core.tasks import Task, TaskResult

_CONNECT_SECONDS = 10
_CHECK_SECONDS = 5.0
"""Time between two checks of the workers."""
_RETRIES = 2
"""Repetitions of a task whose machine failed."""


@contextmanager
def open_cluster(
    request: ClusterRequest, progress: Progress, *, patience: float = 300.0
) -> Iterator[Cluster]:
    """Provide a connected cluster.

    Certificates are those of Dask's configuration (`distributed.comm.tls`).

    Args:
        patience: seconds without a worker for the remaining tasks after which a run
            ends.

    Raises:
        MachineError: no scheduler answers.
        RequestError: Slurm refuses the jobs.
    """
    # This program reports failures itself.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    stack = ExitStack()
    try:
        if request.address == SLURM:
            # Start-up time: dask-jobqueue is only needed for Slurm.
            from ci_build.cluster.slurm import slurm_jobs

            jobs = stack.enter_context(slurm_jobs(request, progress))
            client = distributed.Client(jobs, set_as_default=False)
            # Replaces jobs that reached their time limit or were cancelled.
            keep = partial(jobs.scale, jobs=request.jobs)
            cluster = Cluster(client, request.store, progress, keep=keep)
        else:
            client = _connect(request.address)
            cluster = Cluster(client, request.store, progress, patience=patience)
        stack.callback(client.close, timeout=5)
        yield cluster
    finally:
        with ignore_interrupts():
            stack.close()


def _connect(address: str) -> Any:  # noqa: ANN401 - a class of Dask
    try:
        return distributed.Client(
            address, timeout=_CONNECT_SECONDS, set_as_default=False
        )
    except (OSError, ValueError, TypeError) as error:
        raise MachineError(
            f"The scheduler {address} cannot be reached: {error}.",
            hint="Check --cluster, and Dask's configuration of TLS.",
        ) from error


class Cluster:
    """Tasks on the workers of a Dask scheduler; implements `core.tasks.Tasks`.

    Dask repeats the tasks of lost workers (`distributed.scheduler.allowed-failures`).

    Args:
        client: client of Dask.
        store: folder that all machines see.
        patience: seconds without a worker for the remaining tasks after which a run
            ends; None for workers that wait in the queue of a batch system.
        keep: called with each check of the workers, to replace lost ones.
    """

    def __init__(
        self,
        client: Any,  # noqa: ANN401 - a class of Dask
        store: Path,
        progress: Progress,
        *,
        patience: float | None = None,
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._store = store
        self._progress = progress
        self._patience = patience
        self._keep = keep
        self._reported: set[str] = set()
        self._checked = 0.0
        """Time of the last check of the workers."""
        self._served = 0.0
        """Time at which a worker could last run one of the tasks."""
        client.subscribe_topic(ENDED, lambda event: self._report(str(event[1])))

    def run(self, tasks: Sequence[Task], work: Path) -> Iterator[TaskResult]:
        """Run tasks; see `core.tasks.Tasks`."""
        self._served = time.monotonic()
        pending: dict[Any, Task] = {}
        with _shared_inputs(tasks, self._store) as inputs:
            try:
                pending |= self._submit(tasks, inputs)
                finished = distributed.as_completed(
                    list(pending), loop=self._client.loop
                )
                while pending:
                    if not finished.has_ready():
                        self._check_workers(list(pending.values()))
                        time.sleep(0.05)
                        continue
                    future = next(finished)
                    task = pending[future]
                    result = _result(future, task, work)
                    del pending[future]
                    number = len(tasks) - len(pending)
                    self._progress.step(
                        f"[{number}/{len(tasks)}] {task.label} ({result.worker},"
                        f" {result.seconds:.1f} s)"
                    )
                    yield result
            finally:
                with ignore_interrupts():
                    self._client.cancel(list(pending), force=True)

    def _submit(
        self, tasks: Sequence[Task], inputs: Mapping[Path, Path]
    ) -> dict[Any, Task]:
        """Return the future of each task."""
        run = secrets.token_hex(4)
        futures = {}
        for number, task in enumerate(tasks):
            places = {name: str(inputs[path]) for name, path in task.inputs.items()}
            future = self._client.submit(
                execute,
                # Dask would look for futures in the values of a mapping.
                json.dumps([task.kind, task.arguments, places]),
                key=f"{task.kind}-{number:06d}-{run}",
                resources=_requirements(task),
                priority=-number,
                retries=_RETRIES,
                pure=False,
            )
            futures[future] = task
        return futures

    def _check_workers(self, tasks: Sequence[Task]) -> None:
        """Report refused and missing workers, every few seconds.

        Raises:
            MachineError: the scheduler is gone, or no worker can run the tasks.
        """
        now = time.monotonic()
        if now - self._checked < _CHECK_SECONDS:
            return
        self._checked = now
        self._keep()
        try:
            workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        except (OSError, TimeoutError) as error:
            raise _lost_scheduler() from error
        for worker in workers:
            identity = identity_of(worker["resources"])
            if identity != own_identity():
                self._report(
                    f"worker {worker['name']} is refused: it runs"
                    f" {identity or 'no ci_build'}, this program is {own_identity()}"
                )
        needs = {_described(task): _requirements(task) for task in tasks}
        unmet = []
        for text, need in needs.items():
            if not any(_meets(worker["resources"], need) for worker in workers):
                unmet.append(text)
                self._report(f"waiting for a worker with {text}")
        if len(unmet) < len(needs):
            self._served = now
        elif self._patience is not None and now - self._served > self._patience:
            raise MachineError(
                f"No worker could run the remaining {len(tasks)} tasks for"
                f" {self._patience:g} s; needed: {'; '.join(unmet)}.",
                hint="Start workers from the same checkout; see docs/cluster.md.",
            )

    def _report(self, text: str) -> None:
        """Report something once."""
        if text not in self._reported:
            self._reported.add(text)
            self._progress.step(text)


@contextmanager
def _shared_inputs(tasks: Sequence[Task], store: Path) -> Iterator[dict[Path, Path]]:
    """Copy the inputs of tasks to the shared folder for the time of a run.

    Inputs below the shared folder are used in place.
    """
    store.mkdir(parents=True, exist_ok=True)
    places: dict[Path, Path] = {}
    with tempfile.TemporaryDirectory(prefix="inputs-", dir=store) as name:
        # Workers may run as another user.
        Path(name).chmod(0o755)
        for task in tasks:
            for path in task.inputs.values():
                if path in places:
                    continue
                if path.absolute().is_relative_to(store):
                    places[path] = path.absolute()
                    continue
                place = Path(name, str(len(places)), path.name)
                place.parent.mkdir()
                if path.is_dir():
                    shutil.copytree(path, place, symlinks=True)
                else:
                    shutil.copyfile(path, place)
                places[path] = place
        yield places


def _requirements(task: Task) -> dict[str, float]:
    """Return the resources of Dask that a worker needs for a task."""
    # A worker of another version does not offer this resource, so that it gets no task.
    needs = {own_identity(): 1e-9, **task.resources}
    if task.memory_mb:
        needs[MEMORY] = float(task.memory_mb)
    return needs


def _described(task: Task) -> str:
    """Return the requirements of a task for people."""
    words = ["this version"]
    words += [f"{name}={amount:g}" for name, amount in task.resources.items()]
    if task.memory_mb:
        words.append(f"{task.memory_mb} MB of memory")
    return ", ".join(words)


def _meets(offer: Mapping[str, float], need: Mapping[str, float]) -> bool:
    return all(offer.get(name, 0) >= amount for name, amount in need.items())


def _result(future: Any, task: Task, work: Path) -> TaskResult:  # noqa: ANN401 - a class of Dask
    """Return the result of a finished task, and write its files.

    Raises:
        MachineError: the scheduler is gone.
    """
    folder = Path(tempfile.mkdtemp(prefix="result-", dir=work))
    try:
        outcome: TaskOutcome = future.result()
    except distributed.client.FutureCancelledError as error:
        raise _lost_scheduler() from error
    except Exception as error:
        # The machines of all tries failed, or were lost with the task.
        return TaskResult(task=task, folder=folder, error=str(error), kind=MachineError)
    future.release()
    for name, (data, mode) in outcome.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)
    return TaskResult(
        task=task,
        value=outcome.value,
        folder=folder,
        worker=outcome.worker,
        seconds=outcome.seconds,
        error=outcome.error,
        kind=outcome.kind,
    )


def _lost_scheduler() -> CiBuildError:
    return MachineError(
        "The connection to the scheduler was lost.",
        hint="Run the command again; it reuses finished results.",
    )
