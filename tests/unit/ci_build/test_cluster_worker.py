"""Answers of a worker.

Results, refusals, failures of the machine, and tries that the store counts.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ci_build.cluster import cluster_processes as serve
from ci_build.cluster import kinds
from ci_build.cluster.cluster_request import ClusterRequest
from ci_build.cluster.identity import identity_of, own_identity
from ci_build.cluster.messages import (
    Order,
    WorkerAnswer,
    load_answer,
    load_order,
    new_order,
)
from ci_build.cluster.task_files import ClusterStore, Try
from ci_build.cluster.worker import WorkerSetup, WorkerState, answer_order
from core.errors import InputError, KernelError, MachineError
from core.tasks import Task, TaskContext, TaskInput, WorkerUnfitError
from promotion.storage.directory_bucket import DirBucket

PROGRAM = "program:1-3.11.7-x86_64"


class Bench:
    """A worker, and a store."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = monkeypatch
        self.state = self.worker("w")
        self.store = ClusterStore(DirBucket(folder / "store"), folder / "client")

    def worker(self, name: str) -> WorkerState:
        setup = WorkerSetup(
            name=name,
            cache=self.folder / name,
            environment={},
            identity=PROGRAM,
            report=lambda _: None,
        )
        setup.cache.mkdir()
        return WorkerState(setup)

    def order(
        self, function: Callable[[Any, TaskContext], Any], **inputs: TaskInput
    ) -> Order:
        self._patch.setitem(kinds.KINDS, "test", function)
        task = Task(kind="test", label="t", arguments={"a": 1}, inputs=inputs)
        for given in inputs.values():
            self.store.send(given)
        return new_order(
            task,
            identity=PROGRAM,
            store=str(self.folder / "store"),
            name="run/t",
            earlier=[],
        )

    def answer(self, order: Order, state: WorkerState | None = None) -> WorkerAnswer:
        text = answer_order(
            load_order(order.dump()), state or self.state, "tcp://w:1", lambda: True
        ).dump()
        return load_answer(text)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_answer_has_value_and_files_and_leaves_nothing(
    bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("hello")

    def function(arguments: Any, context: TaskContext) -> Any:
        (context.folder / "out").write_text(context.inputs["in"].read_text() * 2)
        (context.scratch / "rest").write_text("x")
        return arguments

    answer = bench.answer(
        bench.order(function, **{"in": TaskInput.of(tmp_path / "in")})
    )
    assert (answer.value, answer.worker, answer.address, answer.error) == (
        {"a": 1},
        "w",
        "tcp://w:1",
        "",
    )
    ((name, (sha256, executable)),) = (answer.files or {}).items()
    bench.store.copy_to(sha256, tmp_path / "result")
    assert (name, executable, (tmp_path / "result").read_text()) == (
        "out",
        False,
        "hellohello",
    )
    assert [*(tmp_path / "w" / "running").iterdir()] == []


def failing(error: Exception) -> Callable[[Any, TaskContext], Any]:
    def function(_: Any, __: TaskContext) -> Any:
        raise error

    return function


def test_failure_of_task_is_not_one_of_the_machine(bench: Bench) -> None:
    answer = bench.answer(
        bench.order(failing(KernelError("No compiler output.", hint="Look.")))
    )
    assert (answer.error, answer.machine, answer.refused) == (
        "No compiler output. Look.",
        "",
        "",
    )
    assert answer.kind == "CiBuildError"
    answer = bench.answer(
        replace(bench.order(failing(ZeroDivisionError())), name="run/u")
    )
    assert answer.error.startswith("Internal error in test: Traceback")
    assert bench.state.unfit == ""


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), MachineError("No Python 3.12.")],
)
def test_failure_of_machine_ends_the_worker(bench: Bench, error: Exception) -> None:
    order = bench.order(failing(error))
    assert str(error.args[-1]).rstrip(".") in bench.answer(order).machine
    assert bench.answer(replace(order, name="run/u")).refused == bench.state.unfit != ""


def test_cancelled_task_says_nothing_about_the_machine(bench: Bench) -> None:
    def function(_: Any, context: TaskContext) -> Any:
        assert context.stop.wait(20)
        raise WorkerUnfitError(
            "it has no toolchain pypi: `pip` was cancelled and was stopped."
        )

    order = bench.order(function)
    answer = answer_order(
        load_order(order.dump()), bench.state, "tcp://w:1", lambda: False
    )
    assert answer.error.startswith("It was cancelled: it has no toolchain")
    assert bench.state.unfit == ""


def test_refusals_are_no_tries(bench: Bench) -> None:
    order = bench.order(
        failing(WorkerUnfitError("its toolchain rocm is a, the client's is b."))
    )
    other = replace(order, identity="program:2-3.11.7-x86_64")
    assert (
        bench.answer(other).refused
        == f"it runs {PROGRAM}, the client runs program:2-3.11.7-x86_64"
    )
    assert bench.state.unfit == ""
    answer = bench.answer(order)
    assert (answer.refused, answer.machine) == (
        "its toolchain rocm is a, the client's is b.",
        "",
    )


def test_third_lost_worker_is_the_last_and_is_named(bench: Bench) -> None:
    ran: list[str] = []

    def function(_: Any, __: TaskContext) -> Any:
        ran.append("x")

    order = bench.order(function)
    # Killed workers begin a task and never end it.
    for name in ("a", "b", "c"):
        assert isinstance(bench.store.begin_try(order.name, (), name), Try)
    assert bench.answer(order).lost == bench.store.tries(order.name) == ("a", "b", "c")
    # Workers whose machines failed, which only the client knows, count too.
    again = replace(order, name="run/u", earlier=["x (full)", "y"])
    bench.store.begin_try(again.name, again.earlier, "a")
    assert bench.answer(again).lost == ("x (full)", "y", "a")
    assert ran == []


def test_only_lost_workers_count_as_tries(bench: Bench) -> None:
    """An answer may be lost, and the scheduler may restart, without the task being the cause."""
    functions = [
        lambda _, __: 1,
        failing(KernelError("The compiler failed.")),
        failing(MachineError("Full.")),
    ]
    for function in functions:
        order = bench.order(function)
        states = [bench.worker(f"{function}-{n}") for n in range(4)]
        answers = [bench.answer(order, state) for state in states]
        assert {answer.lost for answer in answers} == {()}
        assert bench.store.tries(order.name) == ()
    first, _ = (bench.store.begin_try("run/v", (), name) for name in ("a", "b"))
    assert isinstance(first, Try)
    bench.store.end_try(first)
    # The place of a try that ended is free for another worker, and the other record
    # stays.
    assert bench.store.tries("run/v") == ("b",)
    bench.store.begin_try("run/v", (), "c")
    assert bench.store.tries("run/v") == ("c", "b")


def test_damaged_input_is_refused(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("hello")
    order = bench.order(lambda _, __: None, **{"in": TaskInput.of(tmp_path / "in")})
    (blob,) = (tmp_path / "store" / "cluster" / "blobs").glob("*/*")
    blob.chmod(0o644)
    blob.write_text("hullo")
    found = bench.answer(order)
    assert (
        f"cluster/blobs/{blob.parent.name}/{blob.name} of the cluster's store has sha256"
        in found.error
    )
    assert (found.kind, found.machine) == ("MachineError", ""), (
        "the task is not blamed, and the worker goes on"
    )


def test_input_that_changed_is_refused(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("hello")
    given = TaskInput.of(tmp_path / "in")
    (tmp_path / "in").write_text("changed")
    with pytest.raises(InputError, match="changed while the tasks were prepared"):
        bench.store.send(given)


def test_identity_covers_every_file_of_the_program(tmp_path: Path) -> None:
    names = (
        "core/x.py",
        "kernels/src/a.h",
        "promotion/policy.toml",
        "build/requirements.lock",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    before = own_identity.__wrapped__(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "x.md").write_text("1")
    assert own_identity.__wrapped__(tmp_path) == before
    for name in names:
        (tmp_path / name).write_text("2")
        assert own_identity.__wrapped__(tmp_path) != before
        (tmp_path / name).write_text("1")
    assert identity_of({"memory_mb": 1.0, before: 1.0}) == before
    assert identity_of({"memory_mb": 1.0}) == ""
    assert os.uname().machine in before


def test_worker_with_another_rocm_is_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kinds._trees, "/rocm", Mock(sha256="1" * 64))
    with pytest.raises(WorkerUnfitError, match="differs from the client"):
        kinds._site({"rocm": {"folder": "/rocm", "sha256": "2" * 64}}, Mock())


def test_worker_ends_without_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "dask_module", Mock())
    monkeypatch.setattr(serve, "quiet", Mock())
    monkeypatch.setattr(serve, "_worker", Mock(side_effect=OSError("refused")))
    monkeypatch.setattr(
        "asyncio.sleep", Mock(side_effect=AssertionError("it waits on"))
    )
    setup = WorkerSetup(
        name="w", cache=tmp_path, environment={}, identity=PROGRAM, report=Mock()
    )
    offer = serve.WorkerOffer(jobs=1, memory_mb=1, patience=-1.0)
    with pytest.raises(MachineError, match="cannot be reached"):
        serve.run_worker(ClusterRequest(address="tcp://h:1", store="s"), setup, offer)
