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
    origin={"rocm": "/opt/rocm"},
)


def step(
    label: str,
    *words: str,
    after: tuple[str, ...] = (),
) -> CompileStep:
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
        self._errors = list(errors)

    def run(
        self,
        tasks: Sequence[Task],
        work: Path,
    ) -> Iterator[TaskResult]:
        self.tasks += tasks
        failures = self._errors or [("", CiBuildError)] * len(tasks)
        for task, (error, kind) in zip(
            tasks,
            failures,
            strict=True,
        ):
            folder = work / task.label
            folder.mkdir()
            (folder / "unit.o").write_text(task.label)
            yield TaskResult(
                task=task,
                folder=folder,
                value=None,
                error=error,
                kind=kind,
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
    assert one.label == "one"
    assert two.label == "two"
    assert one.memory_mb == 300
    assert one.arguments["digest"] == CHAIN.digest
    assert [*one.inputs] == []
    assert [*two.inputs] == ["source"]
    # Only locked files of the source are sent, and no machine's path is part of a task.
    (tmp_path / "aiter" / "huge.bin").write_text("other")
    again = FakeTasks()
    store = KernelStore(tmp_path / "b")
    other = Graph(graph.steps, CHAIN, store, graph.folders, graph.locked)
    run_steps(other, again, tmp_path / "w")
    assert [task.arguments for task in again.tasks] == [one.arguments, two.arguments]
    # Results are stored as if they had been made here.
    stored = graph.store.find(graph.keys["two"])
    assert stored is not None
    assert stored.path.read_text() == "two"
    assert [step.label for step in graph.missing()] == ["link"]


LOST = ("two was lost with 3 workers.", MachineError)


def test_failed_tasks_are_reported_together(graph: Graph, tmp_path: Path) -> None:
    tasks = FakeTasks(("exit code 1", CiBuildError), LOST)
    said = (
        r"(?s)2 of 3 steps failed:\n  exit code 1\n  two was lost.*Run a failed command"
    )
    with pytest.raises(KernelError, match=said):
        run_steps(graph, tasks, tmp_path / "work")
    assert len(graph.missing()) == 3


def test_lost_tasks_are_a_failure_of_the_machines(graph: Graph, tmp_path: Path) -> None:
    tasks = FakeTasks(("", CiBuildError), LOST)
    with pytest.raises(MachineError, match=r"1 of 3 steps failed:\n  two was lost"):
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


@pytest.fixture
def arguments(graph: Graph) -> dict[str, Any]:
    step = asdict(graph.steps[0])
    return {
        "step": step,
        "key": graph.keys["one"],
        "digest": CHAIN.digest,
    }


def test_worker_with_another_toolchain_is_unfit(
    arguments: dict[str, Any], context: TaskContext
) -> None:
    said = r"its toolchain rocm is e{16}, the client's is d{16}"
    with pytest.raises(WorkerUnfitError, match=said):
        compile_step(arguments, context, replace(CHAIN, digest="e" * 64))


def test_step_that_fails_on_worker_is_an_error(
    arguments: dict[str, Any], context: TaskContext
) -> None:
    idle: Any = IdleRunner(1)
    with pytest.raises(KernelError, match=r"(?s)one .*exit code 1"):
        compile_step(arguments, replace(context, runner=idle), CHAIN)


def test_worker_reuses_a_result_and_refuses_another_key(
    graph: Graph,
    arguments: dict[str, Any],
    context: TaskContext,
    tmp_path: Path,
) -> None:
    store = KernelStore(context.cache / "kernels" / "store")
    own = Graph(graph.steps, CHAIN, store, graph.folders, graph.locked)
    run_steps(own, FakeTasks(), tmp_path / "work")
    compile_step(arguments, context, CHAIN)
    assert (context.folder / "unit.o").read_text() == "one"
    arguments["step"]["name"] = "other.o"
    with pytest.raises(KernelError, match=r"has the key .* on this worker"):
        compile_step(arguments, context, CHAIN)
