"""Benchmark of promotion with tiny sizes: the requests do not depend on the size, and goals can be missed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.counting import counted
from benchmarks.promotion import Move, Row, goals, main
from promotion.storage.bucket import AbsentError, sha256_of
from tests.support.memory_bucket import MemoryBucket

ROW = Row(
    wheels=20_000, projects=60, changed=3, requests=15, seconds=0.1, incumbent_requests=40_000, incumbent_seconds=6
)
MOVE = Move(wheel_bytes=10**6, files=8, copies=8, requests=90, sent=10, received=10, seconds=1)


def test_a_tiny_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert main(["--wheels", "18", "54", "--projects", "6", "--set-mb", "20", "--json", str(report)]) == 0
    body = json.loads(report.read_text())
    assert [row["requests"] for row in body["rows"]] == [16, 16]
    assert body["rows"][1]["incumbent_requests"] > 2 * 54
    written = 2  # the report of the set, and what pages need of it
    assert body["move"]["copies"] == body["move"]["files"] - written
    # The ratio to a listing has no meaning at this size.
    assert [goal["what"] for goal in body["goals"] if goal["met"] is False] in (
        [],
        ["publication into 54 wheels, and all pages from a listing"],
    )
    assert "requests to publish a set in an index of 54 wheels" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("row", "move"),
    [
        (replace(ROW, requests=22), MOVE),
        (replace(ROW, seconds=0.2), MOVE),
        (ROW, replace(MOVE, received=20_000)),
        (ROW, replace(MOVE, copies=9)),
    ],
)
def test_each_goal_is_judged_by_its_figure(row: Row, move: Move) -> None:
    assert all(goal.met for goal in goals([ROW], MOVE))
    assert sum(not goal.met for goal in goals([row], move)) == 1
    assert [goal.met for goal in goals([replace(ROW, requests=14), ROW], None)].count(False) == 1


def test_what_is_counted(tmp_path: Path) -> None:
    counting, traffic = counted(MemoryBucket())
    counting.put_if_absent("p/k", b"12345", sha256=sha256_of(b"12345"))
    counting.copy("p/k", "p/l", sha256=sha256_of(b"12345"))
    with counting.open("p/k") as file:
        file.read(2)
    with pytest.raises(AbsentError):
        counting.get("p/none")
    assert counting.fetch("p/k", tmp_path).read_bytes() == b"12345"
    assert counting.get("p/k") == b"12345"
    assert counting.read("p/none") is None
    assert counting.head("p/l") is not None
    counting.delete("p/l", sha256=sha256_of(b"12345"))
    assert list(counting.list("p/")) == ["p/k"]
    assert (traffic.requests, traffic.copies, traffic.sent, traffic.received) == (10, 1, 5, 12)
