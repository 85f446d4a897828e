"""Results and figures of the benchmark of clusters."""

from __future__ import annotations

import json

from benchmarks.cluster import Row, gate_results
from benchmarks.measure import Goal
from promotion.gates.common.gate import Check
from promotion.gates.common.runs import check_record


def test_gate_results_contain_outcome_and_code_of_each_program() -> None:
    records = [check_record(Check(name="fft.c2c", details={"code": "ab"})), check_record(Check(name="compiler"))]
    evidence = [{"target": "gfx942", "details": {"checks": records}}]
    assert gate_results(json.dumps(evidence)) == [
        ("gfx942", "compiler", "passed", "None"),
        ("gfx942", "fft.c2c", "passed", "ab"),
    ]


def test_row_has_value_counterpart_ratio_and_goal() -> None:
    goal = Goal(what="overhead", value=8.0, unit=" ms", limit=20.0)
    row = Row(what="overhead", ours=8.0, stock=4.0, ratio=2.0, goal=goal)
    assert row.cells == ("overhead", 8.0, 4.0, 2.0, "<= 20 ms")
