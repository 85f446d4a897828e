"""Test results with every verdict, and the checks that the device gate makes of them."""

from __future__ import annotations

from dataclasses import replace

from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.common.gate import Check
from promotion.gates.device import evidence

V = TestVerdict


BINARY = "\x00\x1b[31m\udcff\ufffe ends here"


def result(name: str, verdict: TestVerdict, message: str = "", file: str = "tests/a_test.py") -> TestResult:
    return TestResult(id=f"{file}::{name}", file=file, verdict=verdict, seconds=1.5, attempts=1, message=message)


RESULTS = (
    result("one", V.PASSED),
    result("two", V.PASSED),
    result("bad", V.FAILED, "line\nE   AssertionError: apples\nE   more"),
    result("dead", V.CRASHED, "Its process died: Segmentation fault.\nstack"),
    result("odd", V.FLAKY, "E   once"),
    result("wet", V.ENVIRONMENT, "hipErrorNoDevice"),
    replace(result("left", V.SKIPPED, "no TPU"), entry="suite"),
    replace(result("right", V.SKIPPED, "no TPU"), entry="suite"),
    result("never", V.NOT_RUN),
)


def again(test: str) -> str:
    return f"run {test}"


def known(test: str) -> str:
    return "ledger-1" if test.endswith("odd") else ""


def checks_of(results: tuple[TestResult, ...] = RESULTS) -> list[Check]:
    return list(evidence.checks_of_tests(results, "gfx942", again, known))
