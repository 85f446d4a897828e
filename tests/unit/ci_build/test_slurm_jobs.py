"""Jobs of a run on Slurm: replacement, failures, and the words that start a worker."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from ci_build.cluster import slurm
from ci_build.cluster.request import SlurmRequest
from ci_build.cluster.run import TaskRun
from ci_build.cluster.slurm import SlurmJobs, worker_words
from ci_build.cluster.store import ClusterStore
from core.errors import MachineError
from core.process import ProcessResult
from core.tasks import Task
from promotion.storage.directory_bucket import DirBucket


@dataclass
class FakeJob:
    """A job of dask-jobqueue."""

    job_id: str | None
    refusal: str = ""


@dataclass
class FakeQueue:
    """dask-jobqueue's cluster, and Slurm's queue.

    Attributes:
        refusing: reason for which further jobs are refused.
        states: job id -> its state in the queue.
    """

    workers: dict[str, FakeJob] = field(default_factory=dict)
    worker_spec: dict[str, object] = field(default_factory=dict)
    scheduler: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(workers={}))
    refusing: str = ""
    states: set[str] = field(default_factory=set)
    submitted: int = 0
    broken: bool = False
    asked: int = 0

    def scale(self, *, jobs: int) -> None:
        while len(self.worker_spec) < jobs:
            self.submitted += 1
            name = f"w{self.submitted}"
            self.worker_spec[name] = {}
            self.workers[name] = FakeJob(None if self.refusing else f"{self.submitted}", self.refusing)
            if not self.refusing:
                self.states.add(f"{self.submitted}")

    def sync(self, function: Callable[[Sequence[str]], Coroutine[None, None, None]], names: Sequence[str]) -> None:
        asyncio.run(function(names))

    def connect(self, *names: str) -> None:
        self.scheduler.workers = {name: SimpleNamespace(name=name) for name in names}

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None,
        check: bool = True, timeout: float | None = None, on_line: object = None, keep: int | None = None,
    ) -> ProcessResult:  # fmt: skip
        assert list(argv) == ["squeue", "--noheader", "--format=%A", "--name=run"]
        self.asked += 1
        if self.broken:
            return ProcessResult(returncode=1, stderr="slurm_load_jobs error: Unable to contact slurm controller\n")
        return ProcessResult(returncode=0, stdout="\n".join(sorted(self.states)))


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(slurm, "time", SimpleNamespace(monotonic=clock))
    return clock


def started(queue: FakeQueue, lines: list[str], wanted: int = 2) -> SlurmJobs:
    progress = SimpleNamespace(step=lines.append)
    jobs = SlurmJobs(cluster=queue, name="run", wanted=wanted, logs=Path("/logs"), runner=queue, progress=progress)
    jobs.start()
    return jobs


def test_slurm_job_at_its_time_limit_is_replaced(clock: Clock) -> None:
    queue, lines = FakeQueue(), list[str]()
    jobs = started(queue, lines)
    assert jobs.expected()
    queue.connect("w1", "w2")
    clock.now += 20
    assert not jobs.expected()
    clock.now += 3600
    queue.connect("w1")
    queue.states.discard("2")
    del queue.workers["w2"]  # Dask forgets the worker before Slurm is asked
    assert jobs.expected()
    assert set(queue.worker_spec) == {"w1", "w3"}
    assert "early" not in "".join(lines)


def test_slurm_job_whose_worker_fails_at_once_is_not_replaced(clock: Clock) -> None:
    queue, lines = FakeQueue(), list[str]()
    jobs = started(queue, lines)
    jobs.expected()
    queue.states.discard("1")
    clock.now += 20
    queue.connect("w2")
    assert not jobs.expected()
    assert set(queue.worker_spec) == {"w2"}
    assert "job 1 of Slurm ended early; see its log in /logs" in lines
    queue.connect()
    queue.states.clear()
    clock.now += 20
    with pytest.raises(MachineError, match="All jobs of Slurm ended or were refused") as caught:
        jobs.expected()
    assert caught.value.hint == "See the logs in /logs."
    assert queue.submitted == 2


def test_slurm_reason_of_refused_job_is_reported(clock: Clock) -> None:
    queue, lines = FakeQueue(), list[str]()
    jobs = started(queue, lines, 1)
    queue.refusing = "sbatch: error: QOSMaxSubmitJobPerUserLimit"
    queue.scale(jobs=2)
    jobs._wanted = 2
    assert jobs.expected()
    assert set(queue.worker_spec) == {"w1"}
    assert "Slurm refused a job: sbatch: error: QOSMaxSubmitJobPerUserLimit" in lines


def test_slurm_controller_that_restarts_loses_no_job(clock: Clock) -> None:
    queue, lines = FakeQueue(), list[str]()
    jobs = started(queue, lines)
    jobs.expected()
    queue.broken = True
    clock.now += 20
    assert jobs.expected()
    assert set(queue.worker_spec) == {"w1", "w2"}
    assert "Slurm does not answer: slurm_load_jobs error: Unable to contact slurm controller" in lines


@pytest.mark.parametrize("waiting", [True, False])
def test_run_waits_longer_while_jobs_are_to_come(waiting: bool, tmp_path: Path) -> None:
    run = TaskRun(
        [Task(kind="none", label="a", arguments={})], store=ClusterStore(DirBucket(tmp_path), tmp_path),
        store_name="store", identity="program:1", name="run", work=tmp_path, patience=10.0,
        progress=SimpleNamespace(step=lambda _: None, advance=lambda *_: None), expects_workers=lambda: waiting,
    )  # fmt: skip
    late = time.monotonic() + 60
    if waiting:
        run._check_service(late, [], [])
    else:
        with pytest.raises(MachineError, match="No worker of the cluster"):
            run._check_service(late, [], [])


def test_import_of_job_queue_keeps_handler_of_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)

    def load(name: str) -> ModuleType:
        signal.signal(signal.SIGINT, lambda *_: sys.exit())
        return ModuleType(name)

    monkeypatch.setattr(slurm, "dask_module", load)
    assert slurm._load().__name__ == "dask_jobqueue"
    assert signal.getsignal(signal.SIGINT) is before


def test_slurm_worker_gets_what_its_job_has() -> None:
    request = SlurmRequest(jobs=2, cpus=8, memory_mb=24000, shared=Path("/s"), resources={"gfx942": 4.0})
    tls = {"ca_file": "/s/ca", "cert": "/s/cert", "key": "/s/key", "ciphers": ""}
    words = worker_words(request, "tls://head:1", "w1", tls)
    assert words[:5] == ["-m", "ci_build.cli", "cluster", "worker", "tls://head:1"]
    assert {"--name=w1", "--jobs=8", "--memory=24000", "--resources=gfx942=4", "--cluster-key=/s/key"} < set(words)
