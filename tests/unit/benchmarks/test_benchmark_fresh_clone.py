"""Goals and limits of the benchmark of the README's commands."""

from __future__ import annotations

from benchmarks.fresh_clone import RUNS, goals
from benchmarks.measure import Cost


def cost(wall: float, cpu: float) -> Cost:
    return Cost(wall=wall, cpu=cpu, peak_mib=1.0)


def test_each_goal_is_of_its_run() -> None:
    keys = [key for runs in RUNS.values() for key, *_ in runs]
    costs = {key: (cost(30.0, 90.0), cost(20.0, 40.0)) for key in keys}
    assert {figure.what: (figure.most, figure.limit) for figure in goals(costs)} == {
        "release --local in a fresh clone": (45.0, 20.0),
        "release --local in a fresh clone, CPU time": (None, 40.0),
        "again, with a new bucket": (30.0, 20.0),
        "again, with a new bucket, CPU time": (None, 40.0),
        "again, with the same bucket": (None, 20.0),
        "again, with the same bucket, CPU time": (None, 40.0),
        "the newcomer's tests in a fresh clone": (300.0, 20.0),
        "the newcomer's tests in a fresh clone, CPU time": (None, 40.0),
    }
    costs["again"] = (cost(31.0, 90.0), cost(20.0, 40.0))
    assert [figure.what for figure in goals(costs) if not figure.met] == ["again, with a new bucket"]


def test_runs_that_were_left_out_are_not_judged() -> None:
    only = {"tests": (cost(299.0, 40.0), cost(1.0, 2.0))}
    assert [figure.what for figure in goals(only)] == [
        "the newcomer's tests in a fresh clone", "the newcomer's tests in a fresh clone, CPU time",
    ]  # fmt: skip
