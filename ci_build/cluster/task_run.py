"""One run of tasks: submissions, answers, repetitions, and progress per worker."""

from __future__ import annotations

import queue
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ci_build.cluster.dask import dask_module
from ci_build.cluster.identity import identity_of
from ci_build.cluster.messages import WorkerAnswer, load_answer, new_order
from ci_build.cluster.task_files import MOST_TRIES, ClusterStore
from ci_build.cluster.worker import execute
from core.errors import CiBuildError, MachineError, RequestError
from core.model import Progress
from core.report import ShownTasks
from core.tasks import Task, TaskResult

MEMORY = "memory_mb"
"""Resource of workers: megabytes for all tasks together."""
_BATCH = 200
_LOOK_SECONDS = 2.0
_AGAIN_SECONDS = 0.2
"""Time after which a lost answer is asked for again."""
_REPORT_SECONDS = 15.0
_RETIRE_SECONDS = 30.0
_KINDS = {kind.__name__: kind for kind in (CiBuildError, MachineError, RequestError)}


class ConnectionLostError(Exception):
    """The scheduler is gone; unfinished tasks have to be submitted again."""


@dataclass(kw_only=True, slots=True)
class _Pending:
    """A task without a result.

    Attributes:
        number: position in the order of the tasks.
        submissions: how often it was submitted.
        earlier: workers whose machines failed with it.
    """

    task: Task
    number: int
    submissions: int = 0
    earlier: list[str] = field(default_factory=list)


class TaskRun:
    """State of a run; it survives connections.

    Args:
        name: name of the run, unique in the store.
        patience: seconds without any worker for the remaining tasks after which the run
            ends.
        expects_workers: returns whether workers are still to come, for which the run
            waits longer.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        store: ClusterStore,
        store_name: str,
        identity: str,
        name: str,
        work: Path,
        progress: Progress,
        patience: float,
        expects_workers: Callable[[], bool] = lambda: False,
    ) -> None:
        self.pending = {
            task.key: _Pending(task=task, number=number)
            for number, task in enumerate(tasks)
        }
        self._total = len(self.pending)
        self._store = store
        self._store_name = store_name
        self._identity = identity
        self._name = name
        self._work = work
        self._progress = progress
        self._patience = patience
        self._expects_workers = expects_workers
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._futures: dict[str, tuple[str, Any]] = {}
        self._unread: list[Any] = []
        self._workers: dict[str, str] = {}
        self._finished: Counter[str] = Counter()
        self._lines = ShownTasks(progress)
        self._told: set[str] = set()
        self._reported = self._served = time.monotonic()
        self._looked = float("-inf")

    def results(self, client: Any) -> Iterator[TaskResult]:  # noqa: ANN401 - a class of Dask
        """Submit the pending tasks and yield their results.

        Raises:
            ConnectionLostError: the scheduler is gone.
            MachineError: no worker may run the remaining tasks.
        """
        self._futures.clear()
        self._unread.clear()
        self._submit(client, [*self.pending])
        try:
            yield from self._until_done(client)
        finally:
            self._lines.show({}, "tasks")

    def _until_done(self, client: Any) -> Iterator[TaskResult]:  # noqa: ANN401 - a class of Dask
        while self.pending:
            self._look(client)
            again = []
            for key, answer in self._answers(client):
                result = self._result(client, key, answer)
                if result is None:
                    again.append(key)
                else:
                    del self.pending[key]
                    yield result
            self._submit(client, again)

    def cancel(self, client: Any) -> None:  # noqa: ANN401 - a class of Dask
        """Cancel what still runs; workers end the processes of cancelled tasks."""
        futures = [future for _, future in self._futures.values()]
        if futures:
            self._progress.step(f"cancelling {len(futures)} tasks of the cluster")
            with suppress(
                Exception
            ):  # the scheduler cancels the tasks of a client that is gone
                client.cancel(futures, force=True)

    def _submit(self, client: Any, keys: Sequence[str]) -> None:  # noqa: ANN401 - a class of Dask
        groups: defaultdict[tuple[tuple[str, float], ...], list[_Pending]] = (
            defaultdict(list)
        )
        for key in keys:
            pending = self.pending[key]
            pending.submissions += 1
            groups[tuple(self._requirements(pending.task).items())].append(pending)
        for requirements, group in groups.items():
            for start in range(0, len(group), _BATCH):
                part = group[start : start + _BATCH]
                futures = client.map(
                    execute,
                    [self._order(pending) for pending in part],
                    key=[self._dask_key(pending) for pending in part],
                    resources=dict(requirements),
                    # Earlier tasks first; repeated ones before all others.
                    priority=1 if part[0].submissions > 1 else -part[0].number,
                    pure=False,
                )
                for pending, future in zip(part, futures, strict=True):
                    self._futures[future.key] = (pending.task.key, future)
                    future.add_done_callback(self._done.put)

    def _requirements(self, task: Task) -> dict[str, float]:
        memory = {MEMORY: float(task.memory_mb)} if task.memory_mb else {}
        # A worker of another program does not offer this resource, so that it gets no
        # task.
        return {self._identity: 1e-9, **memory, **task.resources}

    def _name_of(self, pending: _Pending) -> str:
        """Return the name under which the store counts tries of the task."""
        return f"{self._name}/{pending.task.key}"

    def _dask_key(self, pending: _Pending) -> str:
        """Return a name that Dask groups by the kind, and sorts in the order of the tasks."""
        return f"{pending.task.kind}-{pending.number:07d}-{self._name}-{pending.submissions}"

    def _order(self, pending: _Pending) -> str:
        return new_order(
            pending.task,
            identity=self._identity,
            store=self._store_name,
            name=self._name_of(pending),
            earlier=pending.earlier,
        ).dump()

    def _answers(
        self,
        client: Any,  # noqa: ANN401
    ) -> Iterator[tuple[str, WorkerAnswer | BaseException]]:
        """Yield answers, and errors of Dask, that have come since the last call.

        Wait for a short time for the first.

        Raises:
            ConnectionLostError: the scheduler is gone.
        """
        futures = self._unread
        self._unread = []
        with suppress(queue.Empty):
            futures.append(
                self._done.get(timeout=_AGAIN_SECONDS if futures else _LOOK_SECONDS)
            )
            while len(futures) < _BATCH:
                futures.append(self._done.get_nowait())
        futures = [
            future
            for future in futures
            if self._futures.get(future.key, (0, None))[1] is future
        ]
        if (
            any(future.status == "cancelled" for future in futures)
            or client.status == "closed"
        ):
            raise ConnectionLostError
        texts = _gather(
            client, [future.key for future in futures if future.status == "finished"]
        )
        for future in futures:
            if future.key in texts:
                key = self._futures.pop(future.key)[0]
                future.release()  # a worker with data that someone wants cannot leave
                yield key, load_answer(texts[future.key])
            elif future.status == "error":
                yield self._futures.pop(future.key)[0], future.exception()
            else:  # its worker was lost with the answer, and the scheduler runs the task again
                self._unread.append(future)

    def _result(
        self,
        client: Any,  # noqa: ANN401
        key: str,
        answer: WorkerAnswer | BaseException,
    ) -> TaskResult | None:
        """Return the result of a task; None if it has to run again."""
        pending = self.pending[key]
        if isinstance(answer, BaseException):
            if not isinstance(answer, dask_module("distributed").KilledWorker):
                error = f"Dask could not run it: {answer}"
                return self._failed(
                    pending, WorkerAnswer(worker="", address="", error=error)
                )
            # The scheduler counts workers that were lost while the task only waited on
            # them; the store knows the rest.
            lost = (*pending.earlier, *self._store.tries(self._name_of(pending)))
            return self._lost(pending, lost) if len(lost) >= MOST_TRIES else None
        if answer.lost:
            return self._lost(pending, answer.lost)
        if answer.refused or answer.machine:
            if answer.machine:
                pending.earlier.append(f"{answer.worker} ({answer.machine})")
            self._retire(client, answer)
            return (
                self._lost(pending, pending.earlier)
                if len(pending.earlier) >= MOST_TRIES
                else None
            )
        self._finished[answer.worker] += 1
        if answer.error:
            return self._failed(pending, answer)
        number = self._total - len(self.pending) + 1
        text = (
            f"[{number}/{self._total}] {pending.task.label} ({answer.worker},"
            f" {answer.seconds:.1f} s)"
        )
        self._progress.step(text)
        folder = self._folder(key)
        for name, (sha256, executable) in (answer.files or {}).items():
            self._store.copy_to(sha256, folder / name)
            (folder / name).chmod(0o755 if executable else 0o644)
        return TaskResult(
            task=pending.task,
            value=answer.value,
            folder=folder,
            worker=answer.worker,
            seconds=answer.seconds,
        )

    def _folder(self, key: str) -> Path:
        folder = self._work / key
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _failed(self, pending: _Pending, answer: WorkerAnswer) -> TaskResult:
        self._progress.step(
            f"{pending.task.label}"
            f" failed{' on ' + answer.worker if answer.worker else ''}"
        )
        return TaskResult(
            task=pending.task,
            folder=self._folder(pending.task.key),
            error=answer.error,
            kind=_KINDS[answer.kind],
            worker=answer.worker,
            seconds=answer.seconds,
        )

    def _lost(self, pending: _Pending, workers: Sequence[str]) -> TaskResult:
        error = (
            f"{pending.task.label} was lost with {len(workers)} workers and was given"
            f" up: {', '.join(workers)}."
        )
        self._progress.step(error)
        return TaskResult(
            task=pending.task,
            folder=self._folder(pending.task.key),
            error=error,
            kind=MachineError,
        )

    def _retire(self, client: Any, answer: WorkerAnswer) -> None:  # noqa: ANN401 - a class of Dask
        """Remove a worker from the cluster, so that it does not get the same task again."""
        self._tell(
            f"worker {answer.worker} gets no more tasks:"
            f" {answer.refused or answer.machine}"
        )
        with suppress(OSError):
            client.sync(
                client.scheduler.retire_workers,
                workers=[answer.address],
                close_workers=True,
                remove=True,
                callback_timeout=_RETIRE_SECONDS,
            )

    def _tell(self, text: str) -> None:
        """Report something once."""
        if text not in self._told:
            self._told.add(text)
            self._progress.step(text)

    def _look(self, client: Any) -> None:  # noqa: ANN401 - a class of Dask
        """Report workers that come, go or are refused, and the progress of each, from time to time.

        Raises:
            ConnectionLostError: the scheduler is gone.
            MachineError: no worker may run the remaining tasks.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        try:
            workers = client.scheduler_info(n_workers=-1)["workers"]
            running = client.processing()
        except Exception as error:
            raise ConnectionLostError from error
        fit = {
            address: str(worker["name"])
            for address, worker in workers.items()
            if identity_of(worker["resources"]) == self._identity
        }
        for address in self._workers.keys() - fit.keys():
            self._progress.step(
                f"worker {self._workers[address]} is gone; tasks that it had run again"
            )
        self._workers = fit
        refused = [
            f"{worker['name']}"
            f" ({identity_of(worker['resources']) or 'no ci_build worker'})"
            for address, worker in workers.items()
            if address not in fit
        ]
        for text in refused:
            self._tell(f"worker {text} is refused: this program is {self._identity}")
        self._check_service(
            now, [workers[address]["resources"] for address in fit], refused
        )
        counts = {
            address: (self._finished[name], len(running.get(address, ())))
            for address, name in fit.items()
        }
        rows = {
            address: (f"worker {fit[address]}", done, done + left)
            for address, (done, left) in counts.items()
        }
        self._lines.show(rows, "tasks")
        if fit and now - self._reported > _REPORT_SECONDS:
            self._reported = now
            parts = [
                f"{name}: {counts[address][0]} done, {counts[address][1]} assigned"
                for address, name in sorted(fit.items(), key=lambda item: item[1])
            ]
            self._progress.step("; ".join(parts))

    def _check_service(
        self, now: float, offers: Sequence[dict[str, float]], refused: Sequence[str]
    ) -> None:
        """Raise MachineError if no worker can run any of the remaining tasks for a long time."""
        needs = {
            tuple(sorted(self._requirements(pending.task).items()))
            for pending in self.pending.values()
        }
        unmet = [
            need for need in needs if not any(_meets(offer, need) for offer in offers)
        ]
        for need in unmet:
            wants = ", ".join(
                f"{name}={amount:g}" for name, amount in need if name != self._identity
            )
            self._tell(f"waiting for a worker{' with ' + wants if wants else ''}")
        if self._expects_workers() or len(unmet) < len(needs):
            self._served = now
        elif now - self._served > self._patience:
            others = f" Refused: {', '.join(refused)}." if refused else ""
            raise MachineError(
                f"No worker of the cluster could run the remaining {len(self.pending)}"
                f" tasks for {self._patience:g} s." + others,
                hint=(
                    "Start workers with `ci_build cluster worker` from the same"
                    " checkout."
                ),
            )


def _gather(client: Any, keys: list[str]) -> dict[str, str]:  # noqa: ANN401 - a class of Dask
    """Return the answers that can be read now.

    `Client.gather` would wait until lost ones were computed again.

    Raises:
        ConnectionLostError: the scheduler is gone.
    """
    while keys:
        try:
            response = client.sync(client.scheduler.gather, keys=keys)
        except Exception as error:
            raise ConnectionLostError from error
        if response["status"] == "OK":
            return dict(response["data"])
        keys = [key for key in keys if key not in response["keys"]]
    return {}


def _meets(offer: dict[str, float], need: Sequence[tuple[str, float]]) -> bool:
    return all(offer.get(name, 0) >= amount for name, amount in need)
