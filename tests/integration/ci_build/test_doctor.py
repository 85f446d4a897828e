"""The doctor as a user starts it.

With empty Python environments, on this machine and its packages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from core.errors import SickMachineError
from tests.support.fake_site import build_info, install

ROOT = Path(__file__).resolve().parents[3]
LAUNCHER = ROOT / "build" / "ci_build"
SICK = SickMachineError.exit_code


def doctor(
    *words: str,
    python: Path | str = sys.executable,
    launcher: Path = LAUNCHER,
    env: Mapping[str, str] = {},
) -> subprocess.CompletedProcess[str]:
    argv = [str(python), str(launcher), "doctor", *words]
    # The GPU of this machine must not affect the result.
    done = subprocess.run(
        argv, capture_output=True, text=True, env={**os.environ, **env}, timeout=120
    )
    assert done.returncode in (0, SICK), done.stderr
    assert done.stderr == ""
    return done


def facts(*words: str, **more: Any) -> dict[str, Any]:
    body = json.loads(doctor("--json", *words, **more).stdout)
    assert isinstance(body, dict)
    return body


def codes(body: Mapping[str, Any]) -> set[str]:
    return {problem["code"] for problem in body["problems"]}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Create a fresh clone without `.venv`, in a folder with a space in its name."""
    folder = tmp_path / "a clone"
    folder.mkdir()
    for package in (
        "build",
        "ci_build",
        "core",
        "pjrt",
        "plugin",
        "promotion",
        "wheelkit",
    ):
        shutil.copytree(
            ROOT / package,
            folder / package,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    return folder


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """Return the Python of an empty environment, which lacks even pip."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")],
        check=True,
    )
    return tmp_path / "venv" / "bin" / "python"


def test_doctor_needs_and_creates_nothing(
    clone: Path, pythons: dict[str, Path]
) -> None:
    before = sorted(path.relative_to(clone) for path in clone.rglob("*"))
    newer = [
        path
        for version, path in pythons.items()
        if tuple(map(int, version.split("."))) >= (3, 11)
    ]
    for python in newer:
        launcher = clone / "build" / "ci_build"
        # -S: no site-packages, so nothing but the standard library can be imported.
        argv = [str(python), "-S", "-B", str(launcher), "doctor"]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode in (0, SICK), done.stderr
        assert done.stderr == ""
        assert "Machine   " in done.stdout
        assert len(done.stdout.splitlines()) < 40, "one screen"
    assert sorted(path.relative_to(clone) for path in clone.rglob("*")) == before


def test_doctor_examines_own_or_named_python(
    venv: Path, pythons: dict[str, Path]
) -> None:
    body = facts(python=venv)
    assert body["python"]["executable"] == str(venv)
    assert body["python"]["virtual"] is True
    assert body["python"]["pip"] is False
    assert body["packages"] == {}
    assert "not-installed" in codes(body)
    command = next(
        problem["remedy"]
        for problem in body["problems"]
        if problem["code"] == "not-installed"
    )
    assert command.startswith(f"uv pip install --python {venv} jax==")
    for version, python in pythons.items():
        if tuple(map(int, version.split("."))) >= (3, 9):
            other = facts("--python", str(python))["python"]
            assert other["version"].startswith(version)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/nowhere/python", "is not a program"),
        ("/bin/true", "is not a working Python"),
    ],
)
def test_doctor_refuses_non_python(path: str, says: str) -> None:
    done = subprocess.run(
        [sys.executable, str(LAUNCHER), "doctor", "--python", path],
        capture_output=True,
        text=True,
    )
    assert done.returncode not in (0, SICK)
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_installed_wheel_prints_the_same_problems(tmp_path: Path) -> None:
    install(tmp_path, "pjrt", 7, build_info(["libmissing.so.7"]))
    problems = []
    commands = {1: ["-m", "jax_plugins.xla_rocm7"], SICK: [str(LAUNCHER), "doctor"]}
    for code, command in commands.items():
        argv = [sys.executable, *command, "--json"]
        done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        problems.append(json.loads(done.stdout)["problems"])
    assert problems[0] == problems[1]
    assert "jax-rocm7-plugin" in str(problems)
