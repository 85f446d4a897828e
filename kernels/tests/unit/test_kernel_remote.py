"""Steps of kernels as tasks: what is sent, and what a worker refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from core.errors import CiBuildError, KernelError, MachineError
from core.process import HostRunner
from core.tasks import Task, TaskContext, TaskResult, WorkerUnfitError
from kernels.compiled_store import KernelStore
from kernels.compiler_steps import SRC, CompileStep
from kernels.graph import Graph
from kernels.remote_steps import compile_step, run_steps
from kernels.tests.unit.test_kernel_graph import IdleRunner
from kernels.toolchains import Toolchain

CHAIN = Toolchain(
    name="rocm",
    digest="d" * 64,
    places={"rocm": "/opt/rocm"},
    environment={},
    ninja=Path("ninja"),
    origin={"rocm": "/opt/rocm", "image": ""},
)


def step(label: str, *words: str, after: tuple[str, ...] = ()) -> CompileStep:
    return CompileStep(
        label=label,
        argv=("cc", *words, "-o", "{out}"),
        name="unit.o",
        inputs={"a.h": "1"},
        seconds=1.0,
        memory_mb=300,
        module="m",
        target="gfx942",
        after=after,
        checks={"target": "gfx942"},
    )


class FakeTasks:
    """Machines whose results are written here."""

    def __init__(self, *errors: tuple[str, type[CiBuildError]]) -> None:
        self.tasks: list[Task] = []
        self._errors = errors

    def run(self, tasks: Sequence[Task], work: Path) -> Iterator[TaskResult]:
        self.tasks += tasks
        errors: Sequence[tuple[str, type[CiBuildError]]] = self._errors or [
            ("", CiBuildError)
        ] * len(tasks)
        for task, (error, kind) in zip(tasks, errors, strict=True):
            folder = work / task.label
            folder.mkdir()
            (folder / "unit.o").write_text(task.label)
            value = {"seconds": 7.5, "memory_mb": 200}
            yield TaskResult(
                task=task, folder=folder, value=value, error=error, kind=kind
            )


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    source = tmp_path / "aiter"
    (source / "csrc").mkdir(parents=True)
    (source / "csrc" / "a.h").write_text("a")
    (source / "huge.bin").write_text("not locked")
    steps = (
        step("one", "{src}/x.cc"),
        step("two", "-I", "{source}/csrc"),
        step("link", after=("one", "two")),
    )
    places = {"src": SRC, "source": source}
    return Graph(steps, CHAIN, KernelStore(tmp_path / "store"), places, ["csrc/a.h"])


def test_steps_without_inputs_from_others_become_tasks(
    graph: Graph, tmp_path: Path
) -> None:
    tasks = FakeTasks()
    run_steps(graph, tasks, tmp_path / "work")
    one, two = tasks.tasks
    assert (one.label, two.label, one.memory_mb) == ("one", "two", 300)
    assert one.arguments["digest"] == CHAIN.digest
    assert [*one.inputs] == []
    assert [*two.inputs] == ["source"]
    # Only locked files of the source are sent, and no machine's path is part of a task.
    (tmp_path / "aiter" / "huge.bin").write_text("other")
    again = FakeTasks()
    run_steps(
        Graph(
            graph.steps, CHAIN, KernelStore(tmp_path / "b"), graph.folders, graph.locked
        ),
        again,
        tmp_path / "w",
    )
    assert [task.arguments for task in again.tasks] == [one.arguments, two.arguments]
    # Results are stored as if they had been made here.
    stored = graph.store.find(graph.keys["two"])
    assert stored is not None
    assert (stored.path.read_text(), stored.cost.seconds, stored.cost.memory_mb) == (
        "two",
        7.5,
        200,
    )
    assert [step.label for step in graph.missing()] == ["link"]
    nothing = FakeTasks()
    run_steps(graph, nothing, tmp_path / "work")
    assert nothing.tasks == []


def test_failed_tasks_are_reported_together(graph: Graph, tmp_path: Path) -> None:
    lost = ("two was lost with 3 workers.", MachineError)
    tasks = FakeTasks(("exit code 1", CiBuildError), lost)
    with pytest.raises(
        KernelError, match=r"(?s)2 of 3 steps failed:\n  exit code 1\n  two was lost"
    ) as failed:
        run_steps(graph, tasks, tmp_path / "work")
    assert "Run a failed command by itself" in str(failed.value)
    assert len(graph.missing()) == 3


def test_lost_tasks_are_a_failure_of_the_machines(graph: Graph, tmp_path: Path) -> None:
    tasks = FakeTasks(
        ("", CiBuildError), ("two was lost with 3 workers.", MachineError)
    )
    with pytest.raises(
        MachineError, match=r"1 of 3 steps failed:\n  two was lost with 3 workers\."
    ):
        run_steps(graph, tasks, tmp_path / "work")
    assert {step.label for step in graph.missing()} == {"two", "link"}


@pytest.fixture
def context(tmp_path: Path) -> TaskContext:
    for name in ("made", "scratch", "cache"):
        (tmp_path / name).mkdir()
    return TaskContext(
        folder=tmp_path / "made",
        scratch=tmp_path / "scratch",
        cache=tmp_path / "cache",
        inputs={},
        runner=HostRunner({}),
        stop=threading.Event(),
    )


def test_worker_with_another_toolchain_is_unfit(
    graph: Graph, context: TaskContext
) -> None:
    arguments = {
        "step": asdict(graph.steps[0]),
        "key": graph.keys["one"],
        "digest": CHAIN.digest,
    }
    with pytest.raises(
        WorkerUnfitError, match=r"its toolchain rocm is e{16}, the client's is d{16}"
    ):
        compile_step(arguments, context, replace(CHAIN, digest="e" * 64))


def test_step_that_fails_on_worker_is_an_error(
    graph: Graph, context: TaskContext
) -> None:
    arguments = {
        "step": asdict(graph.steps[0]),
        "key": graph.keys["one"],
        "digest": CHAIN.digest,
    }
    idle: Any = IdleRunner(1)
    with pytest.raises(KernelError, match="one: exit code 1"):
        compile_step(arguments, replace(context, runner=idle), CHAIN)


def test_worker_reuses_a_result_and_refuses_another_key(
    graph: Graph, context: TaskContext, tmp_path: Path
) -> None:
    arguments = {
        "step": asdict(graph.steps[0]),
        "key": graph.keys["one"],
        "digest": CHAIN.digest,
    }
    own = Graph(
        graph.steps,
        CHAIN,
        KernelStore(context.cache / "kernels" / "store"),
        graph.folders,
        graph.locked,
    )
    run_steps(own, FakeTasks(), tmp_path / "work")
    assert compile_step(arguments, context, CHAIN) == {
        "seconds": 7.5,
        "memory_mb": 200,
    }
    assert (context.folder / "unit.o").read_text() == "one"
    changed = {**arguments, "step": {**asdict(graph.steps[0]), "name": "other.o"}}
    with pytest.raises(KernelError, match=r"has the key .* on this worker"):
        compile_step(changed, context, CHAIN)
