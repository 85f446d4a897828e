"""Builds of a matrix on the workers of a cluster.

Each cell is a task whose files are a wheel set.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci_build.wheelset.ci_matrix import Cell
from ci_build.wheelset.output_dir import check_output_dir, locked, replace_folder
from core.errors import InputError, MachineError, RequestError
from core.model import Payload
from core.os_errors import writes_to
from core.tasks import Task, TaskContext, TaskInput, TaskResult, Tasks
from core.wheelset import read_set

KIND = "matrix-cell"
_ROOT = Path(__file__).resolve().parents[2]
_SENT = ("--rocm-manifest", "--rocm-lock")
"""Options whose file is sent to the worker.

Other paths must exist on the workers, since some are part of the set.
"""
_OWN = ("--cache-dir", "--dry-run", "--json")
"""Options that a worker's build has already, or that would leave no set."""
_MEMORY_MB = {Payload.PUBLISHED: 2000, Payload.SOURCE: 12000}
"""Memory of a build: the repair of a wheel, or some parallel compilers of XLA."""
_LAST_LINES = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltCell:
    """A cell after its build.

    Attributes:
        set: digest of the set; empty after an error.
        out: folder of the set.
        worker: worker that built it.
        error: reason why there is no set; empty after success.
        lost: whether the build failed because of its workers or their store.
    """

    name: str
    set: str
    out: str
    worker: str
    seconds: float
    error: str
    lost: bool


def cell_tasks(
    cells: Sequence[Cell], payload: Payload, folder: Path
) -> Mapping[str, tuple[Task, Cell]]:
    """Return the tasks that build cells, by key; nothing is created.

    Raises:
        RequestError: an option of the builds is not for clusters, or a set cannot be
            written to its folder.
    """
    for cell in cells:
        check_output_dir(folder / cell.name)
    return {
        task.key: (task, cell) for cell in cells for task in (cell_task(cell, payload),)
    }


def run_cells(
    cells: Mapping[str, tuple[Task, Cell]], folder: Path, tasks: Tasks
) -> Iterator[BuiltCell]:
    """Build cells and yield each as it comes.

    The set of a cell replaces the folder with the cell's name.

    Args:
        cells: see `cell_tasks`.
        folder: folder of the sets.

    Raises:
        MachineError: no worker can be reached.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".cells-", dir=folder) as work:
        for result in tasks.run([task for task, _ in cells.values()], Path(work)):
            cell = cells[result.task.key][1]
            yield _built(cell, result, folder / cell.name)


def _built(cell: Cell, result: TaskResult, out: Path) -> BuiltCell:
    """Check the set of a result and move it to its folder."""
    digest = ""
    error = result.error
    if not error:
        fresh = result.folder / "set"
        with locked(out), writes_to(out):
            digest = read_set(fresh).digest
            replace_folder(fresh, out, result.folder / "old")
    return BuiltCell(
        name=cell.name,
        set=digest,
        out=str(out),
        worker=result.worker,
        seconds=result.seconds,
        error=error,
        lost=result.kind is MachineError,
    )


def cell_task(cell: Cell, payload: Payload) -> Task:
    """Return the task that builds a cell; its key does not depend on the folder of the set.

    Raises:
        RequestError: an option is not for clusters.
    """
    given = [word for word in cell.command[3:] if not word.startswith("--out=")]
    if refused := [word for word in given if word.partition("=")[0] in _OWN]:
        raise RequestError(
            f"A build on a cluster has no {', '.join(refused)}.", hint="Omit it."
        )
    words: list[str | dict[str, str]] = []
    inputs: dict[str, TaskInput] = {}
    for before, word in zip(("", *given), given, strict=False):
        option, mark, value = (
            word.partition("=") if word.startswith("--") else (before, "", word)
        )
        if (
            option in _SENT
            and (mark or word is not before)
            and value
            and Path(value).is_file()
        ):
            name = option.removeprefix("--")
            inputs[name] = TaskInput.of(Path(value))
            words.append({"option": f"{option}=" if mark else "", "input": name})
        else:
            words.append(word)
    return Task(
        kind=KIND,
        label=cell.name,
        arguments={"words": words},
        inputs=inputs,
        memory_mb=_MEMORY_MB[payload],
    )


def build_cell(arguments: Mapping[str, Any], context: TaskContext) -> str:
    """Build the set of a cell into the folder of a task, and return its digest.

    Raises:
        MachineError: this machine cannot build sets.
        InputError: the build failed.
    """
    for name, path in context.inputs.items():
        shutil.copyfile(path, context.scratch / name)  # a build may write its lock file
    words = [
        word
        if isinstance(word, str)
        else f"{word['option']}{context.scratch / word['input']}"
        for word in arguments["words"]
    ]
    out = context.folder / "set"
    own = ("--out", str(out), "--cache-dir", str(context.cache / "builds"))
    done = context.runner.run(
        (sys.executable, "-m", "ci_build.cli", "dist_wheels", *words, *own),
        env={"PYTHONPATH": str(_ROOT)},
        cwd=str(context.scratch),
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()][
            -_LAST_LINES:
        ]
        text = f"The build ended with exit code {done.returncode}:\n" + "\n".join(lines)
        kind = MachineError if done.returncode == MachineError.exit_code else InputError
        raise kind(text, hint="Run the command of `matrix builds` on that machine.")
    return read_set(out).digest
