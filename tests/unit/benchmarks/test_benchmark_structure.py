"""Goals of the benchmark of the structure gate."""

from __future__ import annotations

from benchmarks.measure import Cost
from benchmarks.structure_gate import goals


def cost(wall: float, cpu: float = 1.0, peak_mib: float = 100.0) -> Cost:
    return Cost(wall=wall, cpu=cpu, peak_mib=peak_mib)


def test_each_goal_is_judged_by_its_figure() -> None:
    assert [goal.met for goal in goals(cost(44.0, 74.0, 3071.0), cost(30.0), cost(1.9))] == [True] * 5
    assert [goal.met for goal in goals(cost(46.0, 76.0, 3073.0), cost(30.0), cost(2.1))] == [*[False] * 4, True]
    assert [goal.limit for goal in goals(cost(44.0), cost(30.0, 60.0), cost(1.9))] == [30.0, 60.0, None, None, None]
