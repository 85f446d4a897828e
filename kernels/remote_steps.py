"""Steps of a kernel build as tasks for other machines.

Their inputs, and their execution by a worker.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from core.errors import KernelError, MachineError
from core.tasks import Task, TaskContext, TaskResult, Tasks, WorkerUnfitError
from kernels.aiter_sources import located
from kernels.compiled_store import KernelStore
from kernels.compiler_steps import SRC, CompileStep
from kernels.graph import Graph
from kernels.step_run import run_step
from kernels.toolchains import Toolchain

KIND = "kernel-step"
_SOURCE = "source"


def run_steps(
    graph: Graph,
    tasks: Tasks,
    work: Path,
) -> None:
    """Run the missing steps that need no other step's result as tasks, and store results.

    Args:
        work: folder for results on their way into the store.

    Raises:
        KernelError: steps failed; the message has the target, command and compiler
            output of each.
        MachineError: all failed steps failed because of their workers; other results
            are kept.
    """
    missing = graph.missing()
    steps = {step.label: step for step in missing if not step.after}
    if not steps:
        return
    work.mkdir(parents=True, exist_ok=True)
    failed: list[TaskResult] = []
    with tempfile.TemporaryDirectory(prefix=".tasks-", dir=work) as name:
        inputs = _inputs(graph, list(steps.values()), Path(name, "inputs"))
        work_items = [_task(graph, step, inputs) for step in steps.values()]
        for result in tasks.run(work_items, Path(name)):
            if result.error:
                failed.append(result)
                continue
            step = steps[result.task.label]
            _keep(graph.store, graph.keys[step.label], step, result.folder)
    if failed:
        errors = "\n  ".join(result.error for result in failed)
        text = f"{len(failed)} of {len(missing)} steps failed:\n  {errors}"
        if all(result.kind is MachineError for result in failed):
            raise MachineError(
                text, hint="\nCorrect the workers, and run the command again."
            )
        raise KernelError(text, hint="\nRun a failed command by itself for details.")


def _task(
    graph: Graph,
    step: CompileStep,
    inputs: Mapping[str, Path],
) -> Task:
    return Task(
        kind=KIND,
        label=step.label,
        arguments={
            "step": asdict(step),
            "key": graph.keys[step.label],
            "toolchain": graph.toolchain.name,
            "digest": graph.toolchain.digest,
            **graph.toolchain.origin,
        },
        inputs={name: path for name, path in inputs.items() if _names(step, name)},
        memory_mb=step.memory_mb,
    )


def _names(step: CompileStep, folder: str) -> bool:
    """Return whether the command of a step names a folder."""
    return any(f"{{{folder}}}" in word for word in step.argv)


def _inputs(
    graph: Graph,
    steps: Sequence[CompileStep],
    folder: Path,
) -> dict[str, Path]:
    """Return the folders that the commands of some steps name, except those that every worker has.

    Of the upstream source, only the locked files are sent.
    """
    inputs = {}
    for name, path in graph.folders.items():
        if path.resolve() == SRC.resolve():
            continue
        if any(_names(step, name) for step in steps):
            inputs[name] = path
    if _SOURCE in inputs:
        inputs[_SOURCE] = _locked_part(inputs[_SOURCE], graph.locked, folder)
    return inputs


def _locked_part(
    source: Path,
    files: Sequence[str],
    folder: Path,
) -> Path:
    """Return a folder with only these files of a source."""
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(located(source, name), folder / name)
    return folder


def _keep(
    store: KernelStore,
    key: str,
    step: CompileStep,
    made: Path,
) -> None:
    """Store the result of a task; the rename needs a folder of the store's file system."""
    with store.scratch() as scratch:
        fresh = scratch / "made"
        fresh.mkdir()
        shutil.copy(made / step.name, fresh / step.name)
        store.keep(key, fresh, step.name)


def compile_step(
    arguments: Mapping[str, Any],
    context: TaskContext,
    toolchain: Toolchain,
) -> None:
    """Run one step on a worker, or reuse its result, and leave the file as the task's result.

    Args:
        toolchain: the worker's toolchain of the kind that the client uses.

    Raises:
        WorkerUnfitError: the worker has another toolchain.
        KernelError: the compiler failed; the message has its command and output.
    """
    if toolchain.digest != arguments["digest"]:
        raise WorkerUnfitError(
            f"its toolchain {toolchain.name} is {toolchain.digest[:16]}, the client's"
            f" is {arguments['digest'][:16]}."
        )
    step = step_of(arguments["step"])
    store = KernelStore(context.cache / "kernels" / "store")
    graph = Graph([step], toolchain, store, {"src": SRC, **context.inputs})
    key = graph.keys[step.label]
    if key != arguments["key"]:
        raise KernelError(
            f"{step.label} has the key {key} on this worker, not {arguments['key']}."
        )
    if store.find(key) is None:
        run_step(graph.run_of(step), store, context.runner)
    stored = store.find(key)
    assert stored is not None
    shutil.copy(stored.path, context.folder / step.name)


def step_of(body: Mapping[str, Any]) -> CompileStep:
    """Return the step of JSON values."""
    return CompileStep(**{**body, "argv": tuple(body["argv"]), "after": (), "link": ()})
