"""Commands of the forking server: exit codes and output equal those of a new process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.command_server import LAUNCHER, Preloaded, run_command, run_python


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (["targets", "--json"], {}),
        (["promote", "x"], {"CI_BUILD_BUCKET": "elsewhere\udcff"}),
        (["no-command"], {}),
        (["release", "--local", "--dry-run"], {"COLUMNS": "60"}),
        (["dist_wheels", "--help"], {"PYTHONIOENCODING": "latin-1"}),
    ],
)
def test_command_gives_what_a_new_process_gives(words: list[str], more: dict[str, str], tmp_path: Path) -> None:
    env = {**os.environ, **more}
    done = run_command(words, tmp_path, env)
    argv = [sys.executable, LAUNCHER, *words]
    new = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert (done.args, done.returncode, done.stdout, done.stderr) == (argv, new.returncode, new.stdout, new.stderr)


SHOWN = "import json, os, sys; print(json.dumps([sys.argv, sys.path, __name__, os.getcwd(), os.environ.get('X')]))"


@pytest.mark.parametrize("kind", ["-c", "-m", "script"])
@pytest.mark.parametrize("more", ["", "; sys.exit(3)", "; raise ValueError('no')"])
def test_program_gives_what_a_new_python_gives(kind: str, more: str, tmp_path: Path) -> None:
    for folder in ("modules", "first"):
        (tmp_path / folder).mkdir()
    (tmp_path / "modules" / "shown.py").write_text(SHOWN + more)
    paths = [str(tmp_path / folder) for folder in ("first", "modules")]
    words = {"-c": ["-c", SHOWN + more], "-m": ["-m", "shown"], "script": [f"{paths[1]}/shown.py"]}[kind]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "X": "y"}
    preloaded = Preloaded(modules=("json", "no_such_module"), path=(paths[1],))
    done = run_python(preloaded, [*words, "a b"], tmp_path, env)
    argv = [sys.executable, *words, "a b"]
    new = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert (done.args, done.returncode, done.stdout) == (argv, new.returncode, new.stdout)
    assert done.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]


def test_commands_of_threads_run_together(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(4)]
    for folder in folders:
        folder.mkdir()
        (folder / "x.whl").mkdir()
    with ThreadPoolExecutor(4) as pool:
        done = [*pool.map(lambda folder: run_command(["inspect", str(folder)], folder, os.environ), folders)]
    assert [str(folder) in one.stderr for folder, one in zip(folders, done, strict=True)] == [True] * 4


def test_killed_command_has_the_code_of_its_signal(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(run_command, ["index", "serve", "--bucket=.", "--port=0"], tmp_path, os.environ)
        while not (found := processes_in(tmp_path)):
            assert not done.done()
            time.sleep(0.02)
        os.kill(found[0], signal.SIGKILL)
        assert done.result().returncode == -signal.SIGKILL


def processes_in(folder: Path) -> list[int]:
    """Return the processes with this working directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            found += [int(path.parent.name)] if path.readlink() == folder else []
    return found
