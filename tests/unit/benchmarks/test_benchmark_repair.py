"""Benchmark of the repair: every goal is judged by the right ratio."""

from __future__ import annotations

import pytest

from benchmarks.measure import Cost
from benchmarks.repair import CASES, Result, goals

SECONDS = {
    "cp": 0.1, "retag": 0.4, "verified": 1.0, "tag-only": 2.0, "scan": 0.1, "runpath": 2.0, "strip": 2.5, "full": 4.0,
    "full-first": 10.0, "needed": 3.0, "recompress-isal": 5.0,
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


def test_goals_use_the_right_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    judged = {
        figure.what: (figure.ratio and round(figure.ratio, 2), figure.limit, figure.met) for figure in goals(results())
    }
    assert {what: row for what, row in judged.items() if not what.endswith("CPU time")} == {
        "verified re-tag, and wheel tags + auditwheel show + repair": (21.0, 0.1, True),
        "verified re-tag, and auditwheel repair": (9.0, 0.1, False),
        "full case, and unpack + strip + patchelf + pack": (5.0, 0.5, False),
        "  all targets kept, and these tools": (8.0, 0.1, True),
        "  full case, and these tools + auditwheel repair": (7.25, 0.1, True),
        "  with debug file and MD5, and these tools": (2.0, 4.0, True),
        "unverified re-tag with Python's start, at most twice cp": (None, 0.1, False),
        "  without Python's start": (None, 0.1, True),
        "verified re-tag: peak memory": (None, None, True),
        "full case: peak memory": (None, None, True),
        "slimmed gfx942 + gfx950 wheel": (None, None, False),
    }
    # Every case has 1 s of CPU time.
    met = {what.removesuffix(", CPU time"): row[2] for what, row in judged.items() if what.endswith("CPU time")}
    assert [what for what, reached in met.items() if not reached] == [
        "verified re-tag, and wheel tags + auditwheel show + repair",
        "verified re-tag, and auditwheel repair",
    ]


def test_goals_skip_cases_that_did_not_run() -> None:
    one = {key: result for key, result in results().items() if key == "verified"}
    assert [figure.what for figure in goals(one)] == ["verified re-tag: peak memory"]
