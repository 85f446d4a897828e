"""Benchmark of the repair: every goal is judged by the right ratio."""

from __future__ import annotations

from benchmarks.measure import Cost
from benchmarks.repair import CASES, Result, goals

SECONDS = {
    "cp": 0.1, "retag": 0.4, "verified": 1.0, "tag-only": 2.0, "scan": 0.1, "runpath": 2.0, "strip": 2.5, "full": 4.0,
    "full-first": 10.0, "recompress-isal": 5.0,
    "recompress-zlib": 14.0, "auditwheel": 9.0, "incumbent": 21.0, "chain": 20.0,
}  # fmt: skip


def results() -> dict[str, Result]:
    return {
        key: Result(
            key=key,
            what=what,
            cost=Cost(wall=SECONDS[key], cpu=1.0, peak_mib=99.0),
            inner=Cost(wall=0.25, cpu=1.0, peak_mib=99.0) if key == "retag" else None,
            wheel_size=101_000_000 if key == "full" else None,
        )
        for key, (what, _) in CASES.items()
    }


def test_goals_use_the_right_ratios() -> None:
    judged = {goal.what: (round(goal.value, 2), goal.met) for goal in goals(results())}
    assert judged == {
        "verified re-tag: faster than the incumbent's chain": (21.0, True),
        "verified re-tag: faster than auditwheel repair": (9.0, False),
        "full case: faster than unpack + strip + patchelf + pack": (5.0, True),
        "  all targets kept: faster than these tools": (8.0, True),
        "  faster than these tools and auditwheel repair": (7.25, True),
        "  with debug file and MD5: faster than these tools": (2.0, True),
        "  extra time of debug file and MD5, once for an input": (6.0, True),
        "unverified re-tag with Python's start: ratio to cp": (4.0, False),
        "  without Python's start": (2.5, True),
        "verified re-tag: peak memory": (99.0, True),
        "full case: peak memory": (99.0, True),
        "slimmed gfx942 + gfx950 wheel": (101.0, False),
    }


def test_goals_skip_cases_that_did_not_run() -> None:
    one = {key: result for key, result in results().items() if key == "verified"}
    assert [goal.what for goal in goals(one)] == ["verified re-tag: peak memory"]
