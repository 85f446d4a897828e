"""The history of tests: what it says, that it is bounded, and that nobody's run is lost."""

from __future__ import annotations

import sqlite3

import pytest

from ci_build.errors import BucketError
from promotion.bucket import ConflictError, ObjectInfo
from promotion.gates.device.results import TestResult, TestVerdict
from promotion.layout import runs_file
from promotion.testruns import Run, TestRuns, read_runs, record
from tests.memory_bucket import MemoryBucket

PASSED, FLAKY, FAILED, SKIPPED = TestVerdict.PASSED, TestVerdict.FLAKY, TestVerdict.FAILED, TestVerdict.SKIPPED


def run(number: int, **changes: str) -> Run:
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
    return Run(**(values | changes))


def results(**told: tuple[TestVerdict, float]) -> list[TestResult]:
    return [
        TestResult(id=f"t_test.py::{name}", file="t_test.py", verdict=verdict, seconds=seconds, attempts=1)
        for name, (verdict, seconds) in told.items()
    ]


def test_short_suites_push_out_no_long_ones() -> None:
    with TestRuns() as history:
        history.add(run(1), results(a=(PASSED, 1.0)), keep=1)
        for number in (2, 3):
            history.add(run(number, suite="smoke"), results(b=(PASSED, 1.0)), keep=1)
        assert {item.run.finished[8:10] for item in history.outcomes()} == {"01", "03"}


def test_what_was_written_is_read() -> None:
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
        assert again.flaky_before(platform="rocm", family="gfx94X-dcgpu") == {"t_test.py::b"}
        assert again.flaky_before(platform="rocm", family="gfx94X-dcgpu", but="d" * 64) == frozenset()
        assert again.flaky_before(platform="rocm", family="gfx94X") == frozenset()
        assert again.flaky_before(platform="cpu", family="gfx94X-dcgpu") == frozenset()


def test_durations_are_the_last_ones_of_the_family_or_else_of_any() -> None:
    with TestRuns() as history:
        history.add(run(1), results(a=(PASSED, 1.0), b=(PASSED, 1.0)))
        history.add(run(2), results(a=(PASSED, 2.0), b=(SKIPPED, 0.0)))
        history.add(run(3, family="gfx950-dcgpu"), results(a=(PASSED, 3.0), c=(FAILED, 4.0)))
        history.add(run(4, platform="cpu", family=""), results(a=(PASSED, 99.0), d=(PASSED, 1.0)))
        assert history.durations(platform="rocm", family="gfx94X-dcgpu") == {
            "t_test.py::a": 2.0,
            "t_test.py::b": 1.0,
            "t_test.py::c": 4.0,
        }
        assert history.durations(platform="cuda", family="") == {}


def test_outcomes_by_pattern_family_and_number_newest_first() -> None:
    with TestRuns() as history:
        for number in (2, 1, 3):
            history.add(run(number), results(**{"x[1]": (PASSED, 1.0), "x1": (PASSED, 1.0)}))
        history.add(run(4, family="gfx1151"), results(x1=(FAILED, 1.0)))
        assert [item.run.finished[8:10] for item in history.outcomes("*::x1")] == ["04", "03", "02", "01"]
        assert len([*history.outcomes("*::x[1]")]) == 3
        assert len([*history.outcomes(family="gfx1151")]) == 1
        assert len([*history.outcomes(limit=2)]) == 2


def test_the_oldest_runs_of_a_family_go_and_tests_with_them() -> None:
    with TestRuns() as history:
        history.add(run(9, family="gfx1151"), results(z=(PASSED, 1.0)))
        history.add(run(1), results(old=(PASSED, 1.0)), keep=2)
        history.add(run(3), results(a=(PASSED, 1.0)), keep=2)
        history.add(run(2), results(a=(PASSED, 1.0)), keep=2)
        assert {item.run.finished[8:10] for item in history.outcomes()} == {"02", "03", "09"}
        with sqlite3.connect(":memory:") as raw:
            raw.deserialize(history.dump())
            assert {name for (name,) in raw.execute("select name from test")} == {"t_test.py::a", "t_test.py::z"}


@pytest.mark.parametrize("damage", ["noise", "cut", "schema", "page"])
def test_damage_is_told(damage: str) -> None:
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
        raw = sqlite3.connect(":memory:")
        raw.execute("pragma user_version = 7")
        raw.execute("create table x (y)")
        data = raw.serialize()
    with pytest.raises(BucketError, match="history of tests is damaged"):
        TestRuns(data)


class Raced(MemoryBucket):
    """Somebody else writes first, a few times."""

    races = 2

    def put_if_match(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo:
        if self.races:
            self.races -= 1
            with read_runs(self, "gfx94X-dcgpu") as theirs:
                theirs.add(run(20 + self.races), results(a=(PASSED, 1.0)))
                super().put_if_match(key, theirs.dump(), etag=etag)
            raise ConflictError("somebody was quicker")
        return super().put_if_match(key, data, etag=etag)


def test_nobodys_run_is_lost() -> None:
    bucket = Raced()
    assert record(bucket, "gfx94X-dcgpu", [(run(1), results(a=(PASSED, 1.0)))]) == 1
    with read_runs(bucket, "gfx94X-dcgpu") as history:
        assert {item.run.finished[8:10] for item in history.outcomes()} == {"01", "20", "21"}
    assert record(bucket, "gfx94X-dcgpu", [(run(1), results(a=(PASSED, 1.0)))]) == 0
    assert bucket.head(runs_file("gfx94X-dcgpu")) is not None
    bucket.races = 99
    with pytest.raises(BucketError, match="written by others all the time"):
        record(bucket, "gfx94X-dcgpu", [(run(2), results(a=(PASSED, 1.0)))])


def test_an_index_without_tests_has_an_empty_history() -> None:
    with read_runs(MemoryBucket(), "gfx94X-dcgpu") as history:
        assert [*history.outcomes()] == []
