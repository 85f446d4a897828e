"""Every command of promotion with injected faults of the disk and of an S3 store, compared with an undisturbed run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from promotion.storage.concurrency import map_concurrently
from promotion.storage.s3_bucket import SINGLE_PUT
from tests.support import ceph
from tests.support.fault_campaign import Tally, World
from tests.support.fault_proxy import Fault
from tests.support.folder_faults import FolderTrials
from tests.support.s3_faults import S3Lives, hurried

ROOT = Path(__file__).resolve().parents[3]
LEAST = {"failing calls": 350, "kills": 150, "S3": 400, "S3 in parts": 400}
"""Faults of each heavy test."""
RATE = 0.15
"""Share of requests that meet a fault."""
SINGLE_PUTS = {"S3": SINGLE_PUT, "S3 in parts": 300}
"""Size above which an object is uploaded in parts; the second one is smaller than every wheel of the tests."""


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """Return a folder in memory if there is one: trials copy thousands of small files."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


def check(what: str, tally: Tally, least: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Print the counts of a campaign, and fail if there was a problem or too few faults."""
    with capsys.disabled():
        sys.stdout.write(f"\n{what}: {tally}\n")
    assert tally.problems == []
    assert tally.faults >= least


def test_number_of_faults() -> None:
    assert sum(LEAST.values()) >= 1000


def test_sample_of_failing_calls_is_survived(memory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trials = FolderTrials(memory)
    for command, call, seed in trials.sample(52, seed=1):
        trials.trial(command, call, seed)
    check("failing system calls, a sample", trials.tally, 48, capsys)


@pytest.mark.heavy
def test_failing_calls_are_survived(memory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trials = FolderTrials(memory)
    for command, call, seed in trials.sample(400, seed=2):
        trials.trial(command, call, seed)
    check("failing system calls", trials.tally, LEAST["failing calls"], capsys)


@pytest.mark.heavy
def test_kills_at_system_calls_are_survived(memory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [sys.executable, "-m", "tests.support.folder_faults", str(memory), "200", "3"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    check("kills at system calls", Tally(**json.loads(done.stdout)), LEAST["kills"], capsys)


@pytest.mark.heavy(minutes=3)
@pytest.mark.network
@pytest.mark.filterwarnings("ignore:tzname")  # of a cut date, which dateutil guesses
def test_faults_between_client_and_s3_are_survived(
    memory: Path,
    capsys: pytest.CaptureFixture[str],
    s3_server: ceph.Ceph,
    s3_client: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, lives = World.made(memory), {}
    for what, size in SINGLE_PUTS.items():
        name = f"faults-{size}"
        s3_client.create_bucket(Bucket=name)
        lives[what] = S3Lives(world, s3_client, s3_server.url, name, single_put=size)
    hurried(monkeypatch)
    totals, kinds = {what: Tally() for what in lives}, Counter[Fault]()
    # The lives wait for late responses most of the time.
    runs = [(what, seed) for seed, what in enumerate(lives)]
    for (what, _), (tally, injected) in zip(
        runs, map_concurrently(lambda run: lives[run[0]].live(run[1], RATE), runs), strict=True
    ):
        totals[what].faults += tally.faults
        totals[what].commands += tally.commands
        totals[what].interrupted += tally.interrupted
        totals[what].problems += tally.problems
        kinds += injected
    with capsys.disabled():
        sys.stdout.write(f"\n{', '.join(f'{kind.name} {count}' for kind, count in sorted(kinds.items(), key=str))}")
    for what, total in totals.items():
        check(what, total, LEAST[what], capsys)
