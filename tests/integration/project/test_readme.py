"""Every command of each README runs, in order, as a reader would type them in an empty folder."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from ci_build.cli import options
from ci_build.release import gating
from core.report import Reporter
from tests.integration.conftest import Released

ROOT = Path(__file__).resolve().parents[3]
FENCE = re.compile(r"```console\n(.*?)```", re.DOTALL)
ELSEWHERE = {
    "python3 build/test": "this very run",
    ".venv/bin/python -m benchmarks.repair": "test_benchmark_repair.py",
}
"""Commands that another test, or the run itself, stands for."""


READMES = ("README.md", "promotion/gates/README.md", "docker/README.md")


def commands(readme: str = READMES[0]) -> list[str]:
    text = (ROOT / readme).read_text()
    lines = [line for block in FENCE.findall(text) for line in block.splitlines()]
    return [line.split("#")[0].strip() for line in lines if line.strip()]


def test_the_readme_has_the_two_commands_first() -> None:
    assert commands()[:2] == ["python3 build/ci_build release --local", "python3 build/test"]


@pytest.mark.heavy
@pytest.mark.network
@pytest.mark.parametrize("readme", READMES)
def test_every_command_runs(
    readme: str, tmp_path: Path, released: Released, work_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In a folder where the first command has run already, which makes it quick and is what readers do as well.
    released.copy(tmp_path)
    monkeypatch.setenv("CI_BUILD_CACHE_DIR", str(work_cache))
    monkeypatch.chdir(tmp_path)
    for command in commands(readme):
        if command in ELSEWHERE:
            continue
        words = shlex.split(command)
        assert words[:2] == ["python3", "build/ci_build"], command
        argv = [sys.executable, str(ROOT / "build" / "ci_build"), *words[2:]]
        if words[2:4] == ["index", "serve"]:
            _serve(argv)
            continue
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def _serve(argv: list[str]) -> None:
    with subprocess.Popen([*argv, "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(f"{url}v2/multi-arch/simple/", timeout=10) as answer:
            assert b"jax-rocm7-plugin" in answer.read()
        process.terminate()
        began = time.monotonic()
        assert process.wait(10) == 130
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(("readme", "title"), [(READMES[0], "## To change X"), (READMES[1], "## Where what is")])
def test_files_that_the_readme_names_exist(readme: str, title: str) -> None:
    text = (ROOT / readme).read_text()
    table = text[text.index(title) :]
    named = [name for name in re.findall(r"`([\w./]+)`", table) if "/" in name]
    assert len(named) > 10
    for name in named:
        assert (ROOT / name).exists(), name


def test_the_gates_of_the_readme_are_those_that_there_are() -> None:
    text = (ROOT / "promotion" / "gates" / "README.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (the set|each target) \|", text, re.MULTILINE)
    made = [gating.make_gate(name, gating.Told(), Reporter(terminal=False)) for name in options.GATES]
    assert rows == [(gate.name, "each target" if gate.per_target else "the set") for gate in made]
