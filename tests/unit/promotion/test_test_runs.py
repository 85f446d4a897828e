"""History of tests: queries, limits and concurrent writes."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from core.errors import BucketError
from promotion.evidence.test_results import SuiteRun, TestResult, TestVerdict
from promotion.evidence.test_runs import TestRuns, read_runs, record
from promotion.storage.bucket import ConflictError, ObjectInfo
from promotion.storage.keys import run_history_file
from tests.support.memory_bucket import MemoryBucket

PASSED, FLAKY, FAILED, SKIPPED = TestVerdict.PASSED, TestVerdict.FLAKY, TestVerdict.FAILED, TestVerdict.SKIPPED


def run(number: int, **changes: str) -> SuiteRun:
    values = {
        "evidence": f"{number:064x}",
        "set_digest": "d" * 64,
        "platform": "rocm",
        "family": "gfx94X-dcgpu",
        "jax": "0.10.2",
        "rocm": "7.2.0",
        "suite": "large",
        "finished": f"2026-01-{number:02}T00:00:00Z",
    }
    return SuiteRun(**(values | changes))


def results(**told: tuple[TestVerdict, float]) -> list[TestResult]:
    return [
        TestResult(id=f"t_test.py::{name}", verdict=verdict, seconds=seconds, attempts=1)
        for name, (verdict, seconds) in told.items()
    ]


def test_add_drops_only_runs_of_same_suite() -> None:
    with TestRuns() as history:
        history.add(run(1), results(a=(PASSED, 1.0)), keep=1)
        for number in (2, 3):
            history.add(run(number, suite="smoke"), results(b=(PASSED, 1.0)), keep=1)
        assert {item.run.finished[8:10] for item in history.outcomes()} == {"01", "03"}


def test_history_round_trip() -> None:
    with TestRuns() as first:
        assert first.add(run(1), results(a=(PASSED, 1.5), b=(FLAKY, 2.0)))
        assert not first.add(run(1), results(a=(FAILED, 9.0)))
        data = first.dump()
    with TestRuns(data) as again:
        found = [*again.outcomes()]
        assert [(item.test, item.verdict, item.seconds) for item in found] == [
            ("t_test.py::a", PASSED, 1.5),
            ("t_test.py::b", FLAKY, 2.0),
        ]
        assert found[0].run == run(1)


def skipped(name: str, entry: str, message: str) -> TestResult:
    return TestResult(id=f"t_test.py::{name}", verdict=SKIPPED, attempts=1, entry=entry, message=message)


def test_tallies_count_skips_by_reason() -> None:
    with TestRuns() as history:
        history.add(run(1), results(a=(PASSED, 1.0), b=(FAILED, 2.5)))
        silent = [skipped("c", "suite", "no  TPU"), skipped("d", "suite", "no TPU"), skipped("e", "no-fft", "later")]
        history.add(run(2), [*results(a=(PASSED, 1.5)), *silent])
        history.add(run(3, family="gfx1151"), results(a=(FLAKY, 1.0)))
        second, first = history.tallies(family="gfx94X-dcgpu")
        assert (second.run, dict(second.verdicts), second.seconds) == (run(2), {PASSED: 1, SKIPPED: 3}, 1.5)
        assert dict(second.skipped) == {"no TPU": 2, "no-fft": 1}
        assert (first.run, dict(first.verdicts), dict(first.skipped)) == (run(1), {PASSED: 1, FAILED: 1}, {})
        assert [tally.run.family for tally in history.tallies(limit=1)] == ["gfx1151"]


@pytest.mark.parametrize("version", [1, 2])
def test_history_of_older_schema_is_upgraded(version: int) -> None:
    with TestRuns() as history:
        history.add(run(1), results(a=(PASSED, 1.0)))
        data = history.dump()
    older = {1: "alter table outcome drop column why;", 2: ""}[version]
    with closing(sqlite3.connect(":memory:")) as raw:
        raw.deserialize(data)
        raw.executescript("alter table run drop column python; alter table run drop column passes;")
        raw.executescript(f"{older} pragma user_version = {version};")
        data = raw.serialize()
    with TestRuns(data) as history:
        history.add(run(2, python="3.12", passes="single"), [skipped("c", "no-fft", "")])
        second, first = history.tallies()
        assert [dict(tally.skipped) for tally in (second, first)] == [{"no-fft": 1}, {}]
        assert [(tally.run.python, tally.run.passes) for tally in (second, first)] == [("3.12", "single"), ("", "")]


def test_tallies_compare_with_previous_set_of_same_kind() -> None:
    sets = {number: f"{number:064x}" for number in range(1, 5)}
    with TestRuns() as history:
        history.add(run(1, set_digest=sets[1]), results(a=(PASSED, 1.0), b=(FAILED, 1.0), c=(PASSED, 1.0)))
        history.add(run(2, set_digest=sets[2]), results(a=(FAILED, 1.0), b=(PASSED, 1.0), c=(PASSED, 1.0)))
        # A repeated run of the second set is compared with the first set.
        history.add(run(3, set_digest=sets[2]), results(a=(PASSED, 1.0), b=(PASSED, 1.0), c=(PASSED, 30.0)))
        for different in ({"family": "gfx1151"}, {"python": "3.13"}, {"passes": "multi"}, {"suite": "smoke"}):
            number = 10 + len(history.dump()) % 10
            history.add(run(number, evidence=f"{different}".ljust(64), set_digest=sets[3], **different), results())
        found = {(tally.run.finished[8:10], tally.run.kind): tally for tally in history.tallies()}
        kind = run(1).kind
        changes = {
            day: (
                found[day, kind].previous,
                [(change.test[-1], change.kind.value) for change in found[day, kind].changes],
            )
            for day in ("01", "02", "03")
        }
        assert changes == {
            "01": ("", []),
            "02": (sets[1], [("a", "broken"), ("b", "fixed")]),
            "03": (sets[1], [("c", "slower"), ("b", "fixed")]),
        }
        others = [tally for (_, other), tally in found.items() if other != kind]
        assert [(tally.previous, tally.changes) for tally in others] == [("", ())] * 4


def test_outcomes_filter_by_pattern_family_and_limit() -> None:
    with TestRuns() as history:
        for number in (2, 1, 3):
            history.add(run(number), results(**{"x[1]": (PASSED, 1.0), "x1": (PASSED, 1.0)}))
        history.add(run(4, family="gfx1151"), results(x1=(FAILED, 1.0)))
        assert [item.run.finished[8:10] for item in history.outcomes("*::x1")] == ["04", "03", "02", "01"]
        assert len([*history.outcomes("*::x[1]")]) == 3
        assert len([*history.outcomes(family="gfx1151")]) == 1
        assert len([*history.outcomes(limit=2)]) == 2


def test_add_drops_oldest_runs_of_family() -> None:
    with TestRuns() as history:
        history.add(run(9, family="gfx1151"), results(z=(PASSED, 1.0)))
        history.add(run(1), results(old=(PASSED, 1.0)), keep=2)
        history.add(run(3), results(a=(PASSED, 1.0)), keep=2)
        history.add(run(2), results(a=(PASSED, 1.0)), keep=2)
        assert {item.run.finished[8:10] for item in history.outcomes()} == {"02", "03", "09"}
        with closing(sqlite3.connect(":memory:")) as raw:
            raw.deserialize(history.dump())
            assert {name for (name,) in raw.execute("select name from test")} == {"t_test.py::a", "t_test.py::z"}


@pytest.mark.parametrize("damage", ["noise", "cut", "schema", "page"])
def test_damaged_history_is_refused(damage: str) -> None:
    with TestRuns() as history:
        history.add(run(1), results(**{f"a{number}": (PASSED, 1.0) for number in range(500)}))
        data = history.dump()
    if damage == "noise":
        data = b"noise" * 1000
    elif damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "page":
        data = data[:4096] + b"\x77" * (len(data) - 8192) + data[-4096:]
    else:
        with closing(sqlite3.connect(":memory:")) as raw:
            raw.execute("pragma user_version = 7")
            raw.execute("create table x (y)")
            data = raw.serialize()
    with pytest.raises(BucketError, match="history of tests is damaged"):
        TestRuns(data)


class Raced(MemoryBucket):
    """A bucket in which another writer is faster a few times."""

    races = 2

    def put_if_match(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo:
        if self.races:
            self.races -= 1
            with read_runs(self, "gfx94X-dcgpu") as theirs:
                theirs.add(run(20 + self.races), results(a=(PASSED, 1.0)))
                super().put_if_match(key, theirs.dump(), etag=etag)
            raise ConflictError("somebody was quicker")
        return super().put_if_match(key, data, etag=etag)


def test_record_keeps_concurrent_runs() -> None:
    bucket = Raced()
    assert record(bucket, "gfx94X-dcgpu", [(run(1), results(a=(PASSED, 1.0)))]) == 1
    with read_runs(bucket, "gfx94X-dcgpu") as history:
        assert {item.run.finished[8:10] for item in history.outcomes()} == {"01", "20", "21"}
    assert record(bucket, "gfx94X-dcgpu", [(run(1), results(a=(PASSED, 1.0)))]) == 0
    assert bucket.head(run_history_file("gfx94X-dcgpu")) is not None
    bucket.races = 99
    with pytest.raises(BucketError, match="changed during each of 8 attempts"):
        record(bucket, "gfx94X-dcgpu", [(run(2), results(a=(PASSED, 1.0)))])


def test_read_runs_of_untested_index_is_empty() -> None:
    with read_runs(MemoryBucket(), "gfx94X-dcgpu") as history:
        assert [*history.outcomes()] == []
