"""The lines about findings: each cause once, with short names, errors before warnings."""

from __future__ import annotations

from typing import Any

import pytest

from core.errors import GateError
from core.model import Evidence, Finding, Outcome, Severity, Tier
from promotion.gates.common.gate_context import error, warning
from promotion.gates.common.gate_report import raise_for_failures, report_lines
from tests.support.sets import counts

PLUGIN = "jax_rocm7_plugin-0.12.0+rocm7.2.0-cp312-cp312-manylinux_2_28_x86_64.whl"
PJRT = "jax_rocm7_pjrt-0.12.0-py3-none-manylinux_2_27_x86_64.whl"
MEMBER = "jax_rocm7_plugin/_linalg.so"


def evidence(gate: str, *findings: Finding, target: str = "any") -> Evidence:
    failed = any(item.severity is Severity.ERROR for item in findings)
    return Evidence(
        set_digest="0" * 64,
        gate=gate,
        target=target,
        tier=Tier.STRUCTURE,
        outcome=Outcome.FAILED if failed else Outcome.PASSED,
        started="2026-01-02T03:00:00Z",
        ended="2026-01-02T03:01:00Z",
        machine="",
        settings={},
        counts=counts(),
        findings=findings,
        details={},
    )


def problem(text: str, code: str = "x", **changes: Any) -> Finding:
    return error(code, text, "Fix it.", **changes)


@pytest.mark.parametrize(
    ("evidences", "lines"),
    [
        (
            [evidence("abi", problem(f"{PLUGIN}: {MEMBER} is odd.", member=MEMBER))],
            ["x: jax_rocm7_plugin (cp312): _linalg.so is odd. Fix it. [abi]"],
        ),
        (
            [evidence("abi", problem(f"{PJRT}: it is odd."))],
            ["x: jax_rocm7_pjrt: it is odd. Fix it. [abi]"],
        ),
        (
            [
                evidence("coverage", problem("No code."), target=target)
                for target in ("gfx942", "gfx950")
            ],
            ["x: No code. Fix it. [coverage gfx942, coverage gfx950]"],
        ),
        (
            [evidence("abi", *(problem(f"{number} is odd.") for number in range(5)))],
            [
                *(f"x: {number} is odd. Fix it. [abi]" for number in range(3)),
                "x: 2 more are in the evidence.",
            ],
        ),
        (
            [
                evidence("abi", problem("It is odd.")),
                evidence("load", problem("No.", "load-failed"), problem("Bad.", "y")),
            ],
            [
                "x: It is odd. Fix it. [abi]",
                "y: Bad. Fix it. [load]",
                "Not shown, since they may be consequences: load 1.",
            ],
        ),
    ],
)
def test_report_has_one_line_for_each_cause(
    evidences: list[Evidence], lines: list[str]
) -> None:
    assert report_lines(evidences, Severity.ERROR) == lines


def test_failures_precede_warnings() -> None:
    odd = warning("odd", "It is odd.")
    with pytest.raises(GateError) as caught:
        raise_for_failures([evidence("abi", odd), evidence("load", problem("Bad."))])
    assert caught.value.message.splitlines()[1:] == [
        "  x: Bad. Fix it. [load]",
        "  warning: odd: It is odd. [abi]",
    ]
