"""Arguments of the benchmark of kernel builds."""

from __future__ import annotations

from benchmarks.kernels import Run, goals
from benchmarks.measure import Cost


def run(wall: float, made: int) -> Run:
    return Run(what="", cost=Cost(wall=wall, cpu=1.0, peak_mib=1.0), made=made, found=3)


def test_each_goal_is_judged_by_its_figure() -> None:
    good = {"cold": run(200, 9), "warm": run(60, 9), "again": run(0.9, 0), "more": run(9, 1)}
    assert all(goal.met for goal in goals(good))
    bad = {**good, "again": run(1.1, 1), "more": run(9, 2)}
    assert [goal.met for goal in goals(bad)] == [True, True, False, True, False, False]
