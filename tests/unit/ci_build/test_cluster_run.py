"""Runs of tasks with a scheduler that loses workers, answers and connections."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ci_build.cluster import task_run
from ci_build.cluster.messages import WorkerAnswer
from ci_build.cluster.task_files import ClusterStore, Try
from ci_build.cluster.task_run import ConnectionLostError, TaskRun
from core.errors import CiBuildError, MachineError, RequestError
from core.tasks import Task
from promotion.storage.directory_bucket import DirBucket
from tests.support.silent import Steps

PROGRAM = "program:1-3.11.7-x86_64"
ANSWER = WorkerAnswer(worker="w", address="tcp://w:1", value=1)


@dataclass(eq=False)
class FakeFuture:
    """A future of Dask, which calls back once."""

    key: str
    order: dict[str, Any]
    status: str

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        callback(self)

    def release(self) -> None:
        self.status = "cancelled"


@dataclass
class FakeClient:
    """A client of Dask whose futures are done at once.

    Attributes:
        done: status of new futures.
        unreadable: keys of answers that were lost with their worker.
        on_look: called whenever the run looks at the workers.
    """

    done: str = "finished"
    on_look: Callable[[FakeClient], None] = lambda _: None
    status: str = "running"
    futures: list[FakeFuture] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)
    answer: WorkerAnswer = ANSWER
    workers: dict[str, Any] = field(
        default_factory=lambda: {
            "tcp://w:1": {"name": "w", "resources": {PROGRAM: 1.0}}
        }
    )

    @property
    def scheduler(self) -> FakeClient:
        return self

    def map(
        self, _: object, orders: Sequence[str], *, key: Sequence[str], **__: object
    ) -> list[FakeFuture]:
        made = [
            FakeFuture(name, json.loads(order), self.done)
            for name, order in zip(key, orders, strict=True)
        ]
        self.futures += made
        return made

    def sync(self, function: Callable[..., Any], **words: Any) -> Any:
        return function(**words)

    def gather(self, keys: Sequence[str]) -> dict[str, Any]:
        if lost := [key for key in keys if key in self.unreadable]:
            return {"status": "error", "keys": lost}
        return {
            "status": "OK",
            "data": {key: self.answer.dump() for key in keys},
        }

    def scheduler_info(self, **_: object) -> dict[str, Any]:
        self.on_look(self)
        return {"workers": self.workers}

    def processing(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def store(tmp_path: Path) -> ClusterStore:
    return ClusterStore(DirBucket(tmp_path / "store"), tmp_path / "cache")


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Steps:
    for name in ("_LOOK_SECONDS", "_AGAIN_SECONDS"):
        monkeypatch.setattr(task_run, name, 0.01)
    return Steps()


def new_run(
    store: ClusterStore,
    lines: Steps,
    tmp_path: Path,
    *,
    count: int = 1,
    patience: float = 60.0,
) -> TaskRun:
    tasks = [
        Task(kind="test", label=f"t{number}", arguments={"n": number})
        for number in range(count)
    ]
    return TaskRun(
        tasks,
        store=store,
        store_name=str(tmp_path / "store"),
        identity=PROGRAM,
        name="run",
        work=tmp_path / "work",
        progress=lines,
        patience=patience,
    )


def test_lost_answer_is_read_when_it_was_computed_again(
    store: ClusterStore, lines: Steps, tmp_path: Path
) -> None:
    states = iter(["finished", "lost", "lost", "finished"])

    def look(client: FakeClient) -> None:
        client.futures[1].status = state = next(states)
        client.unreadable = (
            {client.futures[1].key} if state == "finished" and not read else set()
        )

    client = FakeClient(on_look=look)
    read = list[str]()
    for result in new_run(store, lines, tmp_path, count=3).results(client):
        read.append(result.task.label)
    # The others are read meanwhile, the lost one was not submitted again, and the
    # connection was kept.
    assert (read, len(client.futures)) == (["t0", "t2", "t1"], 3)


def test_tries_of_earlier_connections_count(
    store: ClusterStore, lines: Steps, tmp_path: Path
) -> None:
    """A task that kills its workers may kill three, however often connections drop."""
    run = new_run(store, lines, tmp_path)
    begun = []
    for worker in ("a", "b", "c", "d"):
        client = FakeClient(done="cancelled")
        with pytest.raises(ConnectionLostError):
            list(run.results(client))
        order = client.futures[0].order
        begun.append(store.begin_try(order["name"], order["earlier"], worker))
    assert [isinstance(one, Try) for one in begun] == [True, True, True, False]
    assert begun[-1] == ("a", "b", "c")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"error": "The compiler failed."}, CiBuildError),
        ({"error": "Unknown variable.", "kind": "RequestError"}, RequestError),
        ({"lost": ("a", "b", "c")}, MachineError),
    ],
)
def test_results_keep_the_kind_of_error(
    store: ClusterStore,
    lines: Steps,
    tmp_path: Path,
    answer: dict[str, Any],
    kind: type[CiBuildError],
) -> None:
    client = FakeClient(answer=WorkerAnswer(worker="w", address="tcp://w:1", **answer))
    (result,) = new_run(store, lines, tmp_path).results(client)
    assert (result.kind, bool(result.error)) == (kind, True)


def test_run_ends_when_no_worker_can_repeat_a_lost_answer(
    store: ClusterStore, lines: Steps, tmp_path: Path
) -> None:
    def look(client: FakeClient) -> None:
        client.workers = {}
        client.unreadable = {client.futures[0].key}

    with pytest.raises(MachineError, match="could run the remaining 1 tasks for"):
        list(
            new_run(store, lines, tmp_path, patience=0.1).results(
                FakeClient(on_look=look)
            )
        )
