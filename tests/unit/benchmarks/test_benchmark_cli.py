"""The benchmark of the command line: medians, and goals that are judged by their figures."""

from __future__ import annotations

from benchmarks.cli import CASES, goals, median, table
from benchmarks.measure import Cost


def cost(wall: float, cpu: float = 0.1) -> Cost:
    return Cost(wall=wall, cpu=cpu, peak_mib=30.0)


def test_median_ignores_one_slow_turn() -> None:
    assert median([cost(0.1), cost(9.0), cost(0.2)]) == cost(0.2)


def test_each_goal_is_judged_by_its_figure() -> None:
    medians = {key: cost(0.1) for key in CASES}
    assert [goal.met for goal in goals({**medians, "seed": cost(0.59, 0.59)})] == [True] * 4
    assert [goal.met for goal in goals({**medians, "seed": cost(0.61, 0.59)})] == [False, True, True, True]
    assert [goal.met for goal in goals({**medians, "seed": cost(0.59, 0.61)})] == [True, False, True, True]


def test_the_table_shows_every_case_and_every_goal() -> None:
    medians = {key: cost(0.1) for key in CASES}
    text = table(medians, goals(medians))
    assert all(what in text for what, _ in CASES.values())
    assert "beside a bare Python" in text
