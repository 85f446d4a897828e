"""Tests of the benchmark of the command line."""

from __future__ import annotations

from benchmarks.cli import CASES, goals, median
from benchmarks.measure import Cost


def cost(wall: float, cpu: float = 0.1) -> Cost:
    return Cost(wall=wall, cpu=cpu, peak_mib=30.0)


def met(**changed: Cost) -> list[bool]:
    medians = {key: cost(0.1) for key in CASES}
    return [goal.met for goal in goals({**medians, **changed})]


def test_median_of_costs_ignores_one_slow_turn() -> None:
    assert median([cost(0.1), cost(9.0), cost(0.2)]) == cost(0.2)


def test_each_goal_is_judged_by_its_figure() -> None:
    assert met(seed=cost(0.59, 0.44)) == [True] * 5
    assert met(seed=cost(0.61, 0.44)) == [False] + [True] * 4
    assert met(seed=cost(0.59, 0.46)) == [True, False] + [True] * 3
    assert met(help=cost(9.0, 0.36), image_help=cost(9.0, 0.36)) == [True] * 2 + [False, True, False]
