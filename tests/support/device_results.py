"""Test results with every verdict, and the device gate's checks of these results."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from core.model import Evidence, Tier
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.common.gate_context import Check, Gate
from promotion.gates.common.gate_runs import make_evidence
from promotion.gates.device import device_evidence as evidence
from promotion.policy.exceptions import TEST, PolicyException
from tests.support.sets import wheel_set

V = TestVerdict


def result(name: str, verdict: TestVerdict, message: str = "") -> TestResult:
    return TestResult(
        id=f"tests/a_test.py::{name}",
        verdict=verdict,
        seconds=1.5,
        attempts=1,
        message=message,
    )


RESULTS = (
    result("one", V.PASSED),
    result("two", V.PASSED),
    result("bad", V.FAILED, "line\nE   AssertionError: apples\nE   more"),
    result("dead", V.CRASHED, "Its process died: Segmentation fault.\nstack"),
    result("odd", V.FLAKY, "E   once"),
    result("wet", V.ENVIRONMENT, "hipErrorNoDevice"),
    result("left", V.SKIPPED, "no TPU"),
    result("right", V.SKIPPED, "no TPU"),
    result("never", V.NOT_RUN),
)


def again(test: str) -> str:
    return f"run {test}"


FLAKE_EXCEPTION = PolicyException(
    kind=TEST,
    gates=("device",),
    version="0.10.2",
    test="tests/a_test.py::odd",
    targets=("gfx942",),
    index="multi-arch",
    channel="nightly",
    owner="somebody",
    reason="a race in the test",
    opened=date(2026, 1, 1),
    expires=date(2026, 2, 1),
)


def judged(checks: Sequence[Check]) -> Evidence:
    """Return the evidence of a gate with these checks."""
    gate = Gate(name="device", tier=Tier.DEVICE, per_target=True, run=lambda _: ())
    return make_evidence(
        gate, wheel_set(), "gfx942", checks, (), "2026-01-01T00:00:00Z"
    )


def checks_of(
    results: tuple[TestResult, ...] = RESULTS,
    exceptions: Sequence[PolicyException] = (FLAKE_EXCEPTION,),
) -> list[Check]:
    return list(evidence.checks_of_tests(results, "gfx942", again, exceptions))
