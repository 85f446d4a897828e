"""benchmarks/fetch.py runs: every case that needs nothing installed comes to its end, on a small tarball.

Nothing is said of times here; what the goals demand of memory and of the disk holds whatever the size is.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CASES = ["curl", "full", "full-keep", "build"]


def test_fetch_cases_stay_within_memory_and_disk(tmp_path: Path) -> None:
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
    memory = {goal["what"]: goal["value"] for goal in told["goals"] if goal["what"].endswith("peak memory")}
    assert len(memory) == 3
    assert all(value <= 150 for value in memory.values()), memory
    assert list(work.iterdir()) == []
