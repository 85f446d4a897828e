"""Tasks on a worker: outcomes, and failures of the task and of the machine."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ci_build.cli import cluster_worker
from ci_build.cluster import worker as cluster_tasks
from ci_build.cluster.identity import identity_of, own_identity
from ci_build.cluster.worker import TaskOutcome, TaskWorker, execute
from core.errors import CiBuildError, KernelError, MachineError, RequestError
from core.tasks import TaskContext, WorkerUnfitError

Function = Callable[[Any, TaskContext], Any]


class Bench:
    """A worker of Dask without a scheduler."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.functions: dict[str, Function] = {}
        own = TaskWorker(
            self.functions, cache=folder / "cache", environment={}, memory_mb=1
        )
        self.plugin = own
        self.worker = Mock(
            local_directory=str(folder / "dask"), plugins={TaskWorker.__name__: own}
        )
        self.worker.name = "w"
        (folder / "dask").mkdir()
        monkeypatch.setattr(cluster_tasks, "get_worker", lambda: self.worker)

    def run(self, function: Function, **inputs: str) -> TaskOutcome:
        self.functions["test"] = function
        return execute(json.dumps(["test", {"a": 1}, inputs]))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def failing(error: Exception) -> Function:
    def function(_: Any, __: TaskContext) -> Any:
        raise error

    return function


def test_outcome_has_value_and_files_and_leaves_nothing(
    bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("hello")

    def function(arguments: Any, context: TaskContext) -> Any:
        (context.folder / "out").write_text(context.inputs["in"].read_text() * 2)
        (context.scratch / "rest").write_text("x")
        return arguments

    outcome = bench.run(function, **{"in": str(tmp_path / "in")})
    assert outcome.value == {"a": 1}
    assert outcome.worker == "w"
    assert outcome.error == ""
    assert outcome.files == {"out": (b"hellohello", 0o644)}
    assert [*(tmp_path / "dask").iterdir()] == []


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (KernelError("No output.", hint="Look."), CiBuildError, "No output. Look."),
        (RequestError("Unknown variable."), RequestError, "Unknown variable."),
        (ZeroDivisionError(), CiBuildError, "Internal error in test: Traceback"),
    ],
)
def test_failure_of_task_is_not_one_of_the_machine(
    bench: Bench, error: Exception, kind: type[CiBuildError], text: str
) -> None:
    outcome = bench.run(failing(error))
    assert outcome.error.startswith(text)
    assert outcome.kind is kind
    assert not bench.worker.loop.add_callback.called


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), MachineError("No Python 3.12.")],
)
def test_failure_of_machine_ends_the_worker(bench: Bench, error: Exception) -> None:
    with pytest.raises(MachineError, match=str(error.args[-1])):
        bench.run(failing(error))
    assert bench.worker.loop.add_callback.called


def test_input_that_the_machine_does_not_see_ends_the_worker(bench: Bench) -> None:
    with pytest.raises(MachineError, match="/absent does not exist"):
        bench.run(lambda _, __: None, given="/absent")


def test_cancelled_task_says_nothing_about_the_machine(bench: Bench) -> None:
    def function(_: Any, context: TaskContext) -> Any:
        key = bench.worker.get_current_task()
        bench.plugin.transition(key, "executing", "released")
        assert context.stop.is_set()
        raise WorkerUnfitError("it has no toolchain: `pip` was stopped.")

    assert bench.run(function).error.startswith("It was cancelled: it has no toolchain")
    assert not bench.worker.loop.add_callback.called


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
    monkeypatch.setitem(cluster_worker._trees, "/rocm", Mock(sha256="1" * 64))
    with pytest.raises(WorkerUnfitError, match="differs from the client"):
        cluster_worker._compile_programs(
            {"rocm": {"folder": "/rocm", "sha256": "2" * 64}}, Mock()
        )
