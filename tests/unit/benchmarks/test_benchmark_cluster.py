"""Results and figures of the benchmark of clusters."""

from __future__ import annotations

import json

from benchmarks.cluster import gate_results
from promotion.gates.common.gate import Check
from promotion.gates.common.runs import check_record


def test_gate_results_contain_outcome_and_code_of_each_program() -> None:
    records = [check_record(Check(name="fft.c2c", details={"code": "ab"})), check_record(Check(name="compiler"))]
    evidence = [{"target": "gfx942", "details": {"checks": records}}]
    assert gate_results(json.dumps(evidence)) == [
        ("gfx942", "compiler", "passed", "None"),
        ("gfx942", "fft.c2c", "passed", "ab"),
    ]
