"""Benchmarks that run in tests: the download of a small tarball, and memory and limit of all processes of a command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CASES = ["curl", "full", "full-keep", "build"]


def test_fetch_cases_stay_within_memory_and_disk(tmp_path: Path) -> None:
    """Times are not checked here; the goals of memory and disk hold for any size."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    work, figures = tmp_path / "not yet there", tmp_path / "figures.json"
    argv = [sys.executable, "-m", "benchmarks.fetch", "--size=0.02", "--only", *CASES]
    argv += [f"--work={work}", f"--json={figures}"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(figures.read_text())
    assert [result["key"] for result in told["results"]] == CASES
    copies = {result["key"]: result["copy"] for result in told["results"]}
    assert (copies["full"], copies["build"]) == (0, 0)
    memory = {goal["what"]: goal["ours"] for goal in told["goals"] if goal["what"].endswith("peak memory")}
    assert len(memory) == 3
    assert all(value <= 150 for value in memory.values()), memory
    assert list(work.iterdir()) == []


def test_watch_counts_descendants_whose_parent_ended() -> None:
    # The shell ends at once; its child, which has 64 MiB, becomes a child of the watching process.
    orphan = "import time; data = b'x' * (64 << 20); time.sleep(3)"
    program = f"""
import subprocess, sys, time
from benchmarks.structure_gate import watched
with watched() as most:
    subprocess.run(["sh", "-c", '"$@" &', "sh", sys.executable, "-c", {orphan!r}], check=True)
    time.sleep(2)
print(most[0] >> 20, most[1])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    peak, most = map(int, done.stdout.split())
    assert 64 <= peak < 200
    assert 1 <= most <= 2


@pytest.mark.heavy(1)
def test_cluster_benchmark_reports_overhead_of_tasks(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    argv = [sys.executable, "-m", "benchmarks.cluster", "--only", "overhead", "--scale=0.02"]
    argv += [f"--work={tmp_path}", f"--json={figures}"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(figures.read_text())["goals"]
    assert 0 < row["stock"] < row["ours"]
    assert row["most"] == 20
    assert [*tmp_path.iterdir()] == [figures]


def test_limit_is_the_time_of_the_programs_of_a_command(tmp_path: Path) -> None:
    # The command itself works for half a second, and its child for a whole one.
    busy = "import time; end = time.process_time() + {}\nwhile time.process_time() < end: pass"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy.format(1)!r}])\n{busy.format(0.5)}"
    program = f"""
import sys
from pathlib import Path
from benchmarks.measure import measure, programs_limit
folder = Path({str(tmp_path)!r})
with programs_limit() as limit:
    cost, _ = measure([sys.executable, "-c", {child!r}], folder=folder, log=folder / "log")
print(cost.cpu, limit(cost).cpu, limit(cost).wall)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    cpu, limit, wall = map(float, done.stdout.split())
    assert 0.9 < limit < cpu - 0.1
    assert wall == limit / len(os.sched_getaffinity(0))
