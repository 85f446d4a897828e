"""The harness with misbehaving tests: each gets its verdict, and no other result is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from core.process import HostRunner
from promotion.evidence.test_results import TestVerdict
from promotion.gates.device.results import Ending, Round
from promotion.gates.device.sessions import harness
from promotion.gates.device.sessions.harness import Harness
from promotion.gates.device.sessions.passes import RunPlan, RunReport
from promotion.gates.device.sessions.processes import (
    RUN,
    alive,
    kill_marked,
    marked_processes,
)
from promotion.gates.device.sessions.session import SessionLimits
from tests.support import bad_suite
from tests.support.device_child import LIMITS, work
from tests.support.machine import need, until

ROOT = Path(__file__).resolve().parents[3]


def run(job: RunPlan, folder: Path) -> RunReport:
    return Harness(HostRunner(os.environ), job, folder).run()


def left(folder: Path) -> list[int]:
    """Return the processes that the sessions of a run have left behind."""
    return [pid for session in folder.iterdir() for pid in marked_processes(session)]


def test_kill_marked_waits_until_processes_are_gone(tmp_path: Path) -> None:
    """A killed process may keep its device and write until it is dead."""
    ready = tmp_path / "ready"
    code = (
        "import os, pathlib, time; os.fork(); b = bytearray(b'x' * (1 << 28));"
        f" pathlib.Path({str(ready)!r}).touch()"
    )
    argv = [sys.executable, "-c", f"{code}; time.sleep(600)"]
    child = subprocess.Popen(argv, env={**os.environ, RUN: str(tmp_path)})
    until(lambda: ready.exists() and len([*marked_processes(tmp_path)]) == 2)
    pids = [*marked_processes(tmp_path)]
    kill_marked(tmp_path)
    assert not any(map(alive, pids))
    child.wait()


@pytest.fixture
def no_kill_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore the kernel's count of killed processes.

    One of another program would excuse the killed tests.
    """
    monkeypatch.setattr(
        "promotion.gates.device.sessions.session.out_of_memory_kills", lambda: 0
    )


@pytest.mark.usefixtures("no_kill_elsewhere")
def test_harness_judges_every_bad_test(tmp_path: Path) -> None:
    report = run(
        work(bad_suite.write(tmp_path / "suite", *bad_suite.FILES)), tmp_path / "run"
    )
    assert len(bad_suite.FILES) > 50
    expected = {}
    silent = []
    messages = {result.id: result.message for result in report.results}
    for name, file in bad_suite.FILES.items():
        for test, verdict in file.verdicts.items():
            one = f"test_{name}.py::{test}" if test else f"test_{name}.py"
            expected[one] = verdict
            if file.says.get(test, "") not in messages[one]:
                silent.append(messages[one])
    assert {one.id: one.verdict.value for one in report.results} == expected
    assert silent == []
    assert report.problems == ()
    assert any("test_leave left 1 process" in note for note in report.notes)
    changed = {}
    for note in report.notes:
        test, changes, parts = note.partition(" left its process changed: ")
        if changes:
            changed[test] = parts
    assert changed.pop("test_delete_folder.py::test_delete") == "working folder"
    assert "more" in changed.pop("test_clear_environment.py::test_clear")
    (named,) = changed.items()
    assert named[0] == "test_leave_state.py::test_leave"
    for part in (
        "working folder",
        "timer",
        "SIGALRM",
        "variable",
        "jax_enable_x64",
        "sleeper",
    ):
        assert part in named[1]
    assert left(tmp_path / "run") == []
    daemon = (tmp_path / "suite" / "test_leave_daemon.pid").read_text()
    assert not alive(int(daemon))
    # Only tests whose process ended, or that lacked memory, are rerun with the others.
    ends = (Ending.CRASHED, Ending.KILLED, Ending.STARVED)
    for test, attempts in report.attempts.items():
        again = [attempt for attempt in attempts if attempt.round is Round.RERUN]
        assert not again or attempts[0].ending in ends, test


def test_harness_stops_after_too_many_crashes(tmp_path: Path) -> None:
    root = bad_suite.write(tmp_path / "suite")
    (root / "test_storm.py").write_text(
        "import os, pytest\n\n@pytest.mark.parametrize('n', range(500))\ndef"
        " test_storm(n):\n    os.abort()\n"
    )
    report = run(
        work(
            root,
            SessionLimits(test=3.0, collect=30.0, grace=1.0, crashes=4),
        ),
        tmp_path / "run",
    )
    assert "tests crashed their process" in " ".join(report.problems)
    found = Counter(result.verdict for result in report.results)
    assert set(found) == {TestVerdict.CRASHED, TestVerdict.NOT_RUN}
    assert found.total() == 500
    attempts = chain.from_iterable(report.attempts.values())
    assert all(attempt.round is not Round.RETRY for attempt in attempts)


def started(folder: Path) -> list[Path]:
    """Return the journals of workers that have started a test."""
    paths = folder.glob("*/gw*.jsonl")
    return [path for path in paths if '"start"' in path.read_text()]


def test_sessions_end_when_the_gate_is_killed(tmp_path: Path) -> None:
    root = bad_suite.write(tmp_path / "suite")
    folder = tmp_path / "run"
    # Without output, which would fail, and end pytest.
    sleeps = "import time\n\ndef test_sleep():\n    time.sleep(600)\n"
    (root / "test_sleep.py").write_text(sleeps)
    code = (
        "import os, sys; from pathlib import Path; from core.process import HostRunner;"
        "from promotion.gates.device.sessions.harness import Harness;"
        "from tests.support.device_child import work; root, folder = sys.argv[1:];"
        "Harness(HostRunner(os.environ), work(Path(root)), Path(folder)).run()"
    )
    argv = [sys.executable, "-c", code, str(root), str(folder)]
    gate = subprocess.Popen(argv, cwd=ROOT)
    until(lambda: bool(started(folder)))
    gate.kill()
    gate.wait()
    until(lambda: left(folder) == [])


def test_harness_blames_the_machine_for_memory_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "_GIVEN_BACK_SECONDS", 0.1)
    root = bad_suite.write(tmp_path / "suite", "starve")
    free = iter([{"3": 16 << 30}])
    plan = work(root, replace(LIMITS, pause=0.1))
    plan = replace(plan, free_memory=lambda: next(free, {"3": 1 << 30}))
    report = run(plan, tmp_path / "run")
    verdicts = {result.id: result.verdict for result in report.results}
    assert verdicts.pop("test_starve.py::test_starve") is TestVerdict.ENVIRONMENT
    assert {*verdicts.values()} == {TestVerdict.PASSED}
    (item,) = report.warnings
    assert item.code == "device-memory-taken"
    assert "test_starve.py::" in item.message


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (bad_suite.FILES["import_segfault"].source, "Segmentation fault"),
        ("import time\ntime.sleep(600)\n", "still running after 3 s"),
    ],
    ids=["crash", "hang"],
)
def test_harness_leaves_out_named_file_that_dies_on_import(
    tmp_path: Path, source: str, reason: str
) -> None:
    root = bad_suite.write(tmp_path / "suite", "skip")
    (root / "test_dies.py").write_text(source)
    plan = work(root, replace(LIMITS, collect=3.0))
    files = ("test_dies.py", "test_skip.py")
    plan = replace(plan, suite=replace(plan.suite, files=files))
    report = run(plan, tmp_path / "run")
    first, *more = report.results
    assert (first.id, first.verdict) == ("test_dies.py", TestVerdict.CRASHED)
    assert reason in first.message
    assert [result.verdict.value for result in more] == ["passed", "skipped"]
    assert report.problems == ()


CAUSES = """
import pathlib, pytest

MARK = pathlib.Path(__file__).with_name("mark")

@pytest.mark.parametrize("n", range(20))
def test_gone(n):
    raise AttributeError("module 'jax' has no attribute 'gone'")

@pytest.mark.parametrize("n", range(8))
def test_together(n):
    if not (MARK / str(n)).exists():
        MARK.mkdir(exist_ok=True)
        (MARK / str(n)).touch()
        raise ValueError("a poisoned neighbour")
"""


def test_harness_retries_one_test_of_each_cause(tmp_path: Path) -> None:
    root = bad_suite.write(tmp_path / "suite")
    folder = tmp_path / "run"
    (root / "test_causes.py").write_text(CAUSES)
    progress: list[tuple[int, int]] = []
    job = work(root, retries=2)
    report = Harness(
        HostRunner(os.environ),
        job,
        folder,
        lambda done, total: progress.append((done, total)),
    ).run()
    assert Counter(result.verdict.value for result in report.results) == {
        "failed": 20,
        "flaky": 8,
    }
    again = [
        test
        for test, tries in report.attempts.items()
        if tries[-1].round is Round.RETRY
    ]
    # One test of the cause that remains; all of the other, whose first test passed
    # alone.
    assert sorted(again) == [
        "test_causes.py::test_gone[0]",
        *(f"test_causes.py::test_together[{n}]" for n in range(8)),
    ]
    assert report.sessions == 1 + 2 + 1
    assert report.warnings == ()
    # Progress never decreases, retries do not count as further tests, and the total is
    # that of the suite.
    assert progress == sorted(progress)
    assert {total for _, total in progress} == {28}


DRIVER = """
#include <stddef.h>
static int poisoned;
static size_t used;
void leak(void) { used += (size_t)2 << 30; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = *total = ((size_t)16 << 30) - used; return 0; }
void poison(void) { poisoned = 700; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *active = 1; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return poisoned; }
int cuDevicePrimaryCtxRelease_v2(int device) { return poisoned; }
int cuCtxPushCurrent_v2(void *context) { return poisoned; }
int cuCtxPopCurrent_v2(void **context) { return poisoned; }
int cuCtxSynchronize(void) { return poisoned; }
int cuGetErrorName(int code, const char **name) { *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return 0; }
int use(void) { return poisoned; }
"""
"""A driver that fails like CUDA.

After an invalid access, every call of the process returns its error.
"""
POISON = """
import ctypes, pathlib, pytest

DRIVER = ctypes.CDLL(str(pathlib.Path(__file__).with_name("libcuda.so.1")))

@pytest.mark.parametrize("n", range(4))
def test_before(n):
    assert DRIVER.use() == 0

def test_leak():
    DRIVER.leak()

def test_culprit():
    DRIVER.poison()  # as a kernel that still runs when its test has passed

@pytest.mark.parametrize("n", range(9))
def test_later(n):
    assert DRIVER.use() == 0, "CUDA_ERROR_ILLEGAL_ADDRESS"
"""


def test_harness_retires_worker_with_poisoned_context(tmp_path: Path) -> None:
    need("cc")
    root = bad_suite.write(tmp_path / "suite")
    folder = tmp_path / "run"
    (root / "driver.c").write_text(DRIVER)
    argv = [
        "cc",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
        "-o",
        "libcuda.so.1",
        "driver.c",
    ]
    subprocess.run(argv, cwd=root, check=True)
    (root / "test_poison.py").write_text(POISON)
    report = run(work(root), folder)
    found = {result.id: result for result in report.results}
    culprit = found.pop("test_poison.py::test_culprit")
    assert culprit.verdict is TestVerdict.FAILED
    assert culprit.message.startswith(
        "The test left its device unusable: CUDA_ERROR_ILLEGAL_ADDRESS (700)."
    )
    assert Counter(result.verdict.value for result in found.values()) == {"passed": 14}
    leak = "test_poison.py::test_leak left 2048 MiB of its device's memory used"
    assert report.notes == (leak,)
    assert report.problems == ()
