"""Tasks of the cells of a matrix: their words, their inputs, and failures of their builds."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci_build.cli import run
from ci_build.cluster.cluster_client import Cluster
from ci_build.wheelset import matrix_run
from ci_build.wheelset.ci_matrix import Axes, Cell, make_matrix
from ci_build.wheelset.matrix_run import BuiltCell, build_cell, cell_task, cell_tasks
from core.errors import CiBuildError, InputError, MachineError, RequestError
from core.model import Payload
from core.process import HostRunner, ProcessResult
from core.tasks import TaskContext, TaskInput

AXES = Axes(
    pythons=("3.12",),
    jax_versions=("0.10.2",),
    rocm_versions=("7.2.0",),
    families=("gfx942",),
)


def cell(*more: str) -> Cell:
    ((only,), _) = make_matrix(AXES, Payload.PUBLISHED, more)
    return only


class Recorder(HostRunner):
    """A runner that records a command, and whose build ends with an exit code."""

    def __init__(self, code: int) -> None:
        super().__init__({})
        self.code = code
        self.argv = [""]
        self.cwd = ""
        self.texts: dict[str, str] = {}

    def run(self, argv: Sequence[str], **more: Any) -> ProcessResult:
        self.argv = [*argv]
        self.cwd = str(more["cwd"])
        self.texts = {path.name: path.read_text() for path in Path(self.cwd).iterdir()}
        return ProcessResult(
            returncode=self.code, stdout="", stderr="much\n\nerror: It broke.\n"
        )


def context(folder: Path, runner: HostRunner, inputs: dict[str, Path]) -> TaskContext:
    for name in ("made", "scratch"):
        (folder / name).mkdir(parents=True)
    return TaskContext(
        folder=folder / "made",
        scratch=folder / "scratch",
        cache=folder / "cache",
        inputs=inputs,
        runner=runner,
        stop=threading.Event(),
    )


@pytest.mark.parametrize("separator", ["=", " "])
def test_files_of_a_cell_are_sent_by_digest(tmp_path: Path, separator: str) -> None:
    file = tmp_path / "file"
    file.write_text("first")
    words = f"--rocm-lock{separator}{file}".split()
    task = cell_task(cell(*words), Payload.PUBLISHED)
    assert task.inputs == {"rocm-lock": TaskInput.of(file)}
    assert str(tmp_path) not in str(task.arguments)
    # On the worker, the option names a copy that the build may change.
    runner = Recorder(2)
    with pytest.raises(InputError):
        build_cell(
            task.arguments, context(tmp_path / "worker", runner, {"rocm-lock": file})
        )
    assert f"--rocm-lock{separator}{tmp_path}/worker/scratch/" in " ".join(runner.argv)
    assert runner.texts == {"rocm-lock": "first"}
    # Another content is another task.
    file.write_text("second")
    assert cell_task(cell(*words), Payload.PUBLISHED).key != task.key


def test_cell_task_keeps_other_words_and_needs_memory(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    given = cell(f"--find-links={tmp_path / 'wheels'}", "--no-strip")
    task = cell_task(given, Payload.PUBLISHED)
    assert task.arguments["words"] == [
        word for word in given.command[3:] if not word.startswith("--out=")
    ]
    assert (task.inputs, task.label, task.memory_mb) == ({}, given.name, 2000)
    assert cell_task(given, Payload.SOURCE).memory_mb == 12000
    assert cell_task(replace(given, out="elsewhere"), Payload.PUBLISHED).key == task.key


@pytest.mark.parametrize("word", ["--cache-dir=x", "--dry-run", "--json"])
def test_cell_task_refuses_options_of_this_machine(word: str) -> None:
    with pytest.raises(RequestError, match=f"A build on a cluster has no {word}"):
        cell_task(cell(word), Payload.PUBLISHED)


def test_cell_tasks_refuse_foreign_output_folders(tmp_path: Path) -> None:
    folder = tmp_path / cell().name
    folder.mkdir()
    (folder / "precious").touch()
    with pytest.raises(RequestError, match="do not belong to a wheel set"):
        cell_tasks([cell()], Payload.PUBLISHED, tmp_path)


def test_failed_builds_of_a_matrix_fail_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = BuiltCell(
        name="a", set="", out="", worker="w", seconds=1, error="It broke.", lost=False
    )
    monkeypatch.setattr(matrix_run, "run_cells", lambda *_: [bad])
    monkeypatch.setattr(Cluster, "connect", lambda *_: nullcontext())
    words = (
        "matrix",
        "run",
        "--payload=published",
        "--cluster=tcp://head:1",
        f"--cluster-store={tmp_path}",
    )
    assert run([*words, f"--out={tmp_path / 'dist'}"]) == InputError.exit_code
    assert "1 of 1 builds failed: a." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "kind"), [(18, MachineError), (2, InputError), (-9, InputError)]
)
def test_failed_build_names_its_last_lines(
    tmp_path: Path, code: int, kind: type[CiBuildError]
) -> None:
    with pytest.raises(
        kind, match=f"exit code {code}:\nmuch\nerror: It broke"
    ) as raised:
        build_cell({"words": ["--x"]}, context(tmp_path, Recorder(code), {}))
    assert raised.type is kind
