"""Supervision of a session and its journals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from core.process import HostRunner
from promotion.gates.device.results import is_machine_failure
from promotion.gates.device.sessions import session as module
from promotion.gates.device.sessions.journal import SessionJournal
from promotion.gates.device.sessions.processes import out_of_memory_kills
from promotion.gates.device.sessions.session import PytestSession, SessionLimits
from tests.support.files import write_files


def write(folder: Path, *events: Mapping[str, object]) -> None:
    with (folder / "gw0.jsonl").open("a") as file:
        file.writelines(json.dumps({"at": 1.0, **event}) + "\n" for event in events)


def test_journal_crash_shows_crashed_thread(tmp_path: Path) -> None:
    threads = "".join(
        f"Thread 0x{n:04} (most recent call first):\n" + "  File y\n" * 90 + "\n"
        for n in range(99)
    )
    own = (
        'Current thread 0x7 (most recent call first):\n  File "dead_test.py", line 3 in'
        " test_it\n"
    )
    (tmp_path / "gw0.crash").write_text(
        f"Fatal Python error: Segmentation fault\n\n{threads}{own}"
    )
    reason, text = SessionJournal(tmp_path).crash("gw0")
    assert reason == "Segmentation fault"
    assert text == own


WORKER = {
    "event": "worker",
    "pid": 4711,
    "device": "3",
}
COLLECT = {"event": "collect", "file": "a_test.py"}
COLLECTED = {
    "event": "collected",
    "file": "a_test.py",
    "error": "",
    "skipped": "",
}
START = {"event": "start", "id": "a_test.py::x"}
END = {
    "event": "end",
    "id": "a_test.py::x",
    "ending": "passed",
}


@pytest.mark.parametrize(
    ("last", "stops", "lost", "broken"),
    [
        ((), "cannot import a_test.py", {"gw0"}, ["a_test.py"]),
        ((COLLECTED, START, {**END, "seconds": 1.0}), "", {"gw0"}, []),
        (
            (
                COLLECTED,
                START,
                {**END, "seconds": 1.0},
                {"event": "finish", "status": 0},
            ),
            "",
            set(),
            [],
        ),
    ],
)
def test_check_worker_reads_last_events_of_dead_worker(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    last: tuple[Mapping[str, object], ...],
    stops: str,
    lost: set[str],
    broken: list[str],
) -> None:
    """A worker may write events after a journal read, before the check finds it dead."""
    session = PytestSession(HostRunner({}), tmp_path, SessionLimits())
    write(tmp_path, WORKER, COLLECT)
    session.journal.read()

    def dies(_: int) -> bool:
        write(tmp_path, *last)
        return False

    monkeypatch.setattr(module, "alive", dies)
    (worker,) = session.journal.unfinished()
    assert session.check_worker(worker, leader=1, now=0.0) == stops
    assert session.lost == lost
    outcome = session.outcome()
    assert [death.id for death in outcome.broken] == broken
    assert [test.id for test in outcome.ended] == ["a_test.py::x"] * (len(last) > 2)


RAN = (WORKER, COLLECT, COLLECTED, START)


@pytest.mark.parametrize(
    ("kills", "blamed"),
    [
        (1, True),
        (0, False),
    ],
)
def test_outcome_blames_machine_for_lack_of_memory(
    tmp_path: Path, kills: int, blamed: bool
) -> None:
    write(tmp_path, *RAN)
    (tmp_path / "controller.jsonl").write_text(
        '{"event": "down", "worker": "gw0", "status": -9}\n'
    )
    session = PytestSession(HostRunner({}), tmp_path, SessionLimits())
    session.oom_kills = kills
    (attempt,) = session.outcome().suspects
    assert is_machine_failure(attempt.exception) is blamed


@pytest.mark.parametrize(
    ("group", "counter"),
    [
        ("0::/a/b", "a/b/memory.events"),
        ("0::/x", "memory.events"),
    ],
)
def test_out_of_memory_kills_ignores_other_groups(
    tmp_path: Path, group: str, counter: str
) -> None:
    """A container beside the gate that exceeds its limit says nothing about the gate's tests."""
    write_files(
        tmp_path, {"proc/vmstat": "oom_kill 3\n", "proc/self/cgroup": f"{group}\n"}
    )
    assert out_of_memory_kills(tmp_path) == 3
    write_files(
        tmp_path,
        {f"sys/fs/cgroup/{counter}": "oom 1\noom_kill 1\n"},
    )
    assert out_of_memory_kills(tmp_path) == 1
