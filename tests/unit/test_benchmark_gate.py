"""The benchmark of the device gate: its goals, and how the evenness of shards is measured."""

from __future__ import annotations

import pytest

from benchmarks.gate import Run, goals, uneven


def run(wall: float) -> Run:
    return Run(wall=wall, cpu=1.0, tests=3)


def test_each_goal_is_judged_by_the_quickest_runs() -> None:
    assert [goal.met for goal in goals([run(100.0), run(200.0)], [run(300.0), run(104.9)], 9.9)] == [True, True]
    assert [goal.met for goal in goals([run(100.0), run(200.0)], [run(105.1), run(106.0)], 10.1)] == [False, False]


def test_shards_are_measured_by_what_they_turn_out_to_take() -> None:
    before = {f"t.py::{n}": 1.0 for n in range(8)}
    assert uneven(before, before, 4) == pytest.approx(0.0)
    # One that became slower makes its shard the longest: 3 s of an ideal 9 s / 4.
    assert uneven(before, {**before, "t.py::0": 2.0}, 4) == pytest.approx(100 * (3.0 / 2.25 - 1))
    # No way of dealing out can be shorter than the longest test.
    assert uneven({"t.py::a": 10.0, "t.py::b": 1.0}, {"t.py::a": 10.0, "t.py::b": 1.0}, 4) == pytest.approx(0.0)
    assert uneven({}, {}, 4) == 0.0
