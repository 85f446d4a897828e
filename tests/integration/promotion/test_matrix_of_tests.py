"""`ci_build matrix tests`: deterministic JSON for a CI service."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click

from ci_build.cli.commands import matrix as command
from promotion.policy.families import Trigger

ROOT = Path(__file__).resolve().parents[3]


def ci_build(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "build/ci_build", "matrix", *words]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)


def test_matrix_lists_test_jobs() -> None:
    words = (
        "tests",
        "gfx94X-dcgpu/" + "a" * 64,
        "--when",
        "nightly",
        "--python-versions",
        "3.12",
        "--jax-tests",
        "/jax",
    )
    first, again = ci_build(*words), ci_build(*words)
    assert first.returncode == 0, first.stderr
    assert first.stdout == again.stdout
    body = json.loads(first.stdout)
    jobs = [job for job in body["include"] if job["family"] == "gfx94X-dcgpu"]
    assert [job["shard"] for job in jobs] == ["1/2", "2/2"]
    assert jobs[0]["argv"][:4] == ["python3", "build/ci_build", "gate", "device"]
    assert "gfx906" in body["without_runner"]


def test_matrix_refuses_unknown_family() -> None:
    done = ci_build("tests", "SET", "--family", "gfx94x")
    assert done.returncode == 2
    assert "Unknown family: 'gfx94x'" in done.stderr


def test_matrix_without_occasion_lists_builds() -> None:
    done = ci_build("--rocm-versions", "7.2.0", "--families", "gfx94X-dcgpu")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout).keys() == {"include", "excluded"}


def test_matrix_occasions_match_table() -> None:
    (option,) = [item for item in command.tests.params if item.name == "when"]
    assert isinstance(option.type, click.Choice)
    assert [*option.type.choices] == [*Trigger]
