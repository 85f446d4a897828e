"""Benchmark of the device gate: goals and evenness of shards."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gate import goals, make_python, uneven
from benchmarks.measure import Cost
from promotion.gates.device.config import LOCK


def run(wall: float) -> Cost:
    return Cost(wall=wall, cpu=1.0, peak_mib=1.0)


def test_each_goal_is_judged_by_the_quickest_runs() -> None:
    assert [goal.met for goal in goals([run(100.0), run(200.0)], [run(300.0), run(104.9)], 9.9)] == [True] * 3
    assert [goal.met for goal in goals([run(100.0), run(200.0)], [run(105.1), run(106.0)], 10.1)] == [
        False,
        True,
        False,
    ]


def test_uneven_uses_actual_durations() -> None:
    before = {f"t.py::{n}": 1.0 for n in range(8)}
    assert uneven(before, before, 4) == pytest.approx(0.0)
    # A slower test makes its shard the longest: 3 s beside an ideal of 9 s / 4.
    assert uneven(before, {**before, "t.py::0": 2.0}, 4) == pytest.approx(100 * (3.0 / 2.25 - 1))
    # No split is shorter than the longest test.
    assert uneven({"t.py::a": 10.0, "t.py::b": 1.0}, {"t.py::a": 10.0, "t.py::b": 1.0}, 4) == pytest.approx(0.0)
    assert uneven({}, {}, 4) == 0.0


def test_missing_python_is_created_with_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(argv: list[str], **_: Any) -> None:
        commands.append(argv)

    monkeypatch.setattr(subprocess, "run", run)
    assert make_python(Path("/made")) == Path("/made/bin/python")
    assert [words[1] for words in commands] == ["venv", "pip", "pip"]
    jax, jaxlib = (word.split("==") for word in commands[1] if "==" in word)
    assert (jax[0], jaxlib[0], jax[1] == jaxlib[1]) == ("jax", "jaxlib", True)
    assert f"--requirement={LOCK}" in commands[2]
