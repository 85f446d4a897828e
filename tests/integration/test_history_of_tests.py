"""`ci_build history INDEX --tests` on a folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from promotion.dirbucket import DirBucket
from promotion.gates.device.results import TestResult, TestVerdict
from promotion.testruns import Run, record

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    folder = tmp_path / "bucket"
    runs = [
        Run(
            evidence=f"{number:064x}", set_digest="d" * 64, platform="rocm", family=family, jax="0.10.2", rocm="7.2.0",
            suite="smoke", finished=f"2026-01-0{number}T00:00:00Z",
        )
        for number, family in ((1, "gfx94X-dcgpu"), (2, "gfx1151"))
    ]  # fmt: skip
    verdicts = {"a_test.py::test_x[1]": TestVerdict.FLAKY, "b_test.py::test_y": TestVerdict.PASSED}
    results = [
        TestResult(id=name, file=name.partition("::")[0], verdict=verdict, seconds=1.25, attempts=1)
        for name, verdict in verdicts.items()
    ]
    record(DirBucket(folder), "gfx94X-dcgpu", [(run, results) for run in runs])
    return folder


def ci_build(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "build/ci_build", "history", "gfx94X-dcgpu", *words]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_history_of_tests(bucket: Path) -> None:
    done = ci_build("--tests", "--bucket", str(bucket))
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines() if "_test.py" in line] == [
        "a_test.py::test_x[1]",
        "b_test.py::test_y",
    ] * 2
    done = ci_build("--tests=a_test.py::*[1]", "--family", "gfx1151", "--json", "--bucket", str(bucket))
    (found,) = json.loads(done.stdout)
    assert (found["verdict"], found["seconds"], found["run"]["finished"]) == ("flaky", 1.25, "2026-01-02T00:00:00Z")


def test_how_runs_went(bucket: Path) -> None:
    done = ci_build("--tests", "--trend", "--bucket", str(bucket))
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if "2026-01-0" in line]
    assert [(line[0][:10], line[2]) for line in lines] == [("2026-01-02", "gfx1151"), ("2026-01-01", "gfx94X-dcgpu")]
    done = ci_build("--tests", "--trend", "--limit=1", "--json", "--bucket", str(bucket))
    (found,) = json.loads(done.stdout)
    assert (found["verdicts"], found["skipped"], found["seconds"]) == ({"flaky": 1, "passed": 1}, {}, 2.5)
    done = ci_build("--tests=a*", "--trend", "--bucket", str(bucket))
    assert done.returncode == 2
    assert "--trend is of whole runs" in done.stderr


def test_options_without_an_effect_are_refused(bucket: Path) -> None:
    done = ci_build("--family", "gfx1151", "--bucket", str(bucket))
    assert done.returncode != 0
    assert "--trend, --rebuild, --family and --limit are of the history of tests" in done.stderr
    done = ci_build("--tests", "--family", "gfx94x-dcgpu", "--bucket", str(bucket))
    assert done.returncode == 2
    assert "There are runs on gfx1151, gfx94X-dcgpu" in done.stderr


def test_explain_refuses_a_family_that_nobody_has() -> None:
    argv = [sys.executable, "build/ci_build", "gate", "explain", "a_test.py::test_x", "--family=gfx94x-dcgpu"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout
    assert "'gfx94x-dcgpu' is no family" in done.stderr
