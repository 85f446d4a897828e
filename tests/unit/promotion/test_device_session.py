"""Supervision of a session and its journals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from core.process import HostRunner
from promotion.gates.device.sessions import session as module
from promotion.gates.device.sessions.journal import SessionJournal
from promotion.gates.device.sessions.session import PytestSession, SessionLimits


def write(folder: Path, *events: Mapping[str, object]) -> None:
    with (folder / "gw0.jsonl").open("a") as file:
        file.writelines(json.dumps({"at": 1.0, **event}) + "\n" for event in events)


def test_journal_crash_shows_crashed_thread(tmp_path: Path) -> None:
    threads = "".join(f"Thread 0x{n:04} (most recent call first):\n" + "  File y\n" * 90 + "\n" for n in range(99))
    own = 'Current thread 0x7 (most recent call first):\n  File "dead_test.py", line 3 in test_it\n'
    (tmp_path / "gw0.crash").write_text(f"Fatal Python error: Segmentation fault\n\n{threads}{own}")
    reason, text = SessionJournal(tmp_path).crash("gw0")
    assert (reason, text) == ("Segmentation fault", own)


WORKER = {"event": "worker", "pid": 4711, "slot": 0, "device": "3", "late": False}
COLLECT = {"event": "collect", "file": "a_test.py"}
COLLECTED = {"event": "collected", "file": "a_test.py", "error": "", "skipped": ""}
START, END = {"event": "start", "id": "a_test.py::x"}, {"event": "end", "id": "a_test.py::x", "ending": "passed"}


@pytest.mark.parametrize(
    ("last", "stops", "lost", "broken"),
    [
        ((), "cannot import a_test.py", {"gw0"}, ["a_test.py"]),
        ((COLLECTED,), "", {"gw0"}, []),
        ((COLLECTED, START, {**END, "seconds": 1.0}), "", {"gw0"}, []),
        ((COLLECTED, START, {**END, "seconds": 1.0}, {"event": "finish", "status": 0}), "", set(), []),
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
    """A worker may write more events between a read of its journal and the check that finds it dead."""
    session = PytestSession(HostRunner({}), tmp_path, "run", SessionLimits())
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


@pytest.mark.parametrize(
    ("leader_killed", "blamed", "suspected"), [(False, ["a_test.py::x"], []), (True, [], ["a_test.py::x"])]
)
def test_outcome_does_not_blame_orphaned_worker(
    tmp_path: Path, leader_killed: bool, blamed: list[str], suspected: list[str]
) -> None:
    """If a test killed the controller, other workers fail with internal errors."""
    session = PytestSession(HostRunner({}), tmp_path, "run", SessionLimits())
    session.leader_killed = leader_killed
    write(tmp_path, WORKER, COLLECT, COLLECTED, START, {"event": "internal", "text": "BrokenPipeError: [Errno 32]"})
    outcome = session.outcome()
    assert [death.id for death in outcome.died] == blamed
    assert [death.id for death in outcome.suspects] == suspected
