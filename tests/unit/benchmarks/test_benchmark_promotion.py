"""Benchmark of promotion with tiny sizes: the requests do not depend on the size, and goals can be missed."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.counting import counted
from benchmarks.made_index import MadeIndex
from benchmarks.promotion import PUBLISH, Move, Row, goals, main
from benchmarks.promotion_operations import OPERATIONS, OperationCost, measure_operation
from benchmarks.promotion_pages import LongPage
from promotion.storage.bucket import AbsentError, sha256_of
from promotion.storage.bucket_url import open_bucket
from tests.support.memory_bucket import MemoryBucket

COST = OperationCost(requests=24, sent=10**6, received=10**6, wall=0.1, cpu=0.1, peak_mib=70)
ROW = Row(
    wheels=20_000, projects=60, files=444, operations={PUBLISH: COST}, incumbent_requests=40_000, incumbent_seconds=6
)  # fmt: skip
LARGE = replace(ROW, wheels=200_000, projects=600)
PAGE = LongPage(files=5000, seconds=0.2, size=6_000_000, sent=600_000)
MOVE = Move(wheel_bytes=10**6, files=8, copies=8, requests=90, sent=10, received=10, seconds=1)


def test_a_tiny_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def in_this_process(place: str, index: MadeIndex, name: str) -> OperationCost:
        return measure_operation(open_bucket(place), copy.copy(index), name)

    monkeypatch.setattr("benchmarks.promotion._in_child", in_this_process)
    report = tmp_path / "report.json"
    assert main(["--wheels", "9/3", "18/6", "--set-mb", "20", "--json", str(report)]) == 0
    body = json.loads(report.read_text())
    assert [row["operations"][PUBLISH]["requests"] for row in body["rows"]] == [24, 24]
    assert {*body["rows"][0]["operations"]} == {*OPERATIONS}
    assert all(cost["requests"] and cost["peak_mib"] > 1 for row in body["rows"] for cost in row["operations"].values())
    assert body["rows"][1]["incumbent_requests"] > 2 * 18
    assert body["page"]["sent"] < body["page"]["size"] / 8
    written = 2  # the report of the set, and what pages need of it
    assert body["move"]["copies"] == body["move"]["files"] - written
    said = capsys.readouterr().out
    assert "requests to publish a set in an index of 18 wheels" in said
    assert "retention: remove a night" in said


@pytest.mark.parametrize(
    ("changed", "move", "page"),
    [
        (replace(COST, requests=31), MOVE, PAGE),
        (replace(COST, wall=1), MOVE, PAGE),
        (replace(COST, cpu=0.21), MOVE, PAGE),
        (replace(COST, sent=3_100_000), MOVE, PAGE),
        (replace(COST, peak_mib=141), MOVE, PAGE),
        (COST, replace(MOVE, received=20_000), PAGE),
        (COST, replace(MOVE, copies=9), PAGE),
        (COST, MOVE, replace(PAGE, seconds=1.1)),
        (COST, MOVE, replace(PAGE, sent=1_000_000)),
    ],
)
def test_each_goal_is_judged_by_its_figure(changed: OperationCost, move: Move, page: LongPage) -> None:
    assert all(goal.met for goal in goals([ROW, LARGE], MOVE, PAGE))
    row = replace(LARGE, operations={PUBLISH: changed})
    missed = [goal.what for goal in goals([ROW, row], move, page) if not goal.met]
    assert len(missed) == 1 + (changed.requests > COST.requests)  # requests have a spread too


def test_longer_pages_are_not_compared() -> None:
    """A page lists all files of its project, so that its size grows with an index of the same projects."""
    longer = replace(LARGE, files=4444, operations={PUBLISH: replace(COST, cpu=1)})
    assert not any("CPU time" in goal.what for goal in goals([ROW, longer], None))


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
