"""The benchmark of the structure gate: its goals, and which processes it counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import structure_gate
from benchmarks.structure_gate import Run, Watch, goals


def cost(wall: float, peak_mib: float = 100.0) -> Run:
    return Run(wall=wall, cpu=1.0, peak_mib=peak_mib, processes=3, seconds={"abi": 1})


def test_each_goal_is_judged_by_its_figure() -> None:
    assert [goal.met for goal in goals(cost(239.0, 3071.0), cost(1.9))] == [True, True, True]
    assert [goal.met for goal in goals(cost(241.0, 3073.0), cost(2.1))] == [False, False, False]


def test_measure_counts_orphaned_descendants(monkeypatch: pytest.MonkeyPatch) -> None:
    now: dict[int, tuple[int, str, int]] = {}

    def processes() -> Iterator[tuple[int, tuple[int, str, int]]]:
        yield from now.items()

    monkeypatch.setattr(structure_gate, "_processes", processes)
    now |= {1: (0, "a", 1 << 40), 50: (1, "b", 10), 40: (50, "c", 200), 60: (1, "d", 4000)}
    watch = Watch(50)
    watch.look()
    assert (watch.peak, watch.most) == (210, 2)
    now[70] = (40, "e", 30)
    watch.look()
    assert (watch.peak, watch.most) == (240, 3)
    del now[40]
    now[70] = (1, "e", 500)
    watch.look()
    assert (watch.peak, watch.most) == (510, 3), "an orphan is still ours"
    now[70] = (1, "f", 9000)
    watch.look()
    assert watch.peak == 510, "its number now belongs to another process"
