"""Evidence as JUnit XML that is valid for CI services."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import xmlschema

from core.model import Evidence, Finding, Outcome, Severity
from promotion.gates.common.junit import junit
from tests.support import sets

SCHEMA = xmlschema.XMLSchema(str(Path(__file__).parents[2] / "data" / "junit.xsd"))


def evidence(
    *checks: Mapping[str, Any],
    outcome: Outcome = Outcome.PASSED,
    findings: tuple[Finding, ...] = (),
) -> Evidence:
    return sets.evidence(
        outcome=outcome,
        ended="2026-01-02T03:04:25Z",
        machine="one",
        settings={"corpus": "full"},
        findings=findings,
        details={"checks": list(checks)},
    )


def parsed(*evidences: Evidence) -> ET.Element:
    data = junit(evidences)
    SCHEMA.validate(data.decode())
    return ET.fromstring(data)


def test_junit_has_element_for_each_outcome() -> None:
    root = parsed(
        evidence(
            {
                "name": "a.passed",
                "outcome": "passed",
                "seconds": 1.25,
                "findings": ["code-grown: it grew"],
            },
            {
                "name": "a.failed",
                "outcome": "failed",
                "findings": ["compile-crashed: it died"],
                "error": "last words",
            },
            {"name": "a.known", "outcome": "known", "why": "no kernel"},
            {"name": "a.skipped", "outcome": "skipped", "why": "needs a GPU"},
            outcome=Outcome.FAILED,
        )
    )
    (suite,) = root
    assert suite.attrib == {
        "name": "compile.gfx942",
        "tests": "4",
        "failures": "1",
        "errors": "0",
        "skipped": "2",
        "time": "20.000",
        "timestamp": "2026-01-02T03:04:05",
    }
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert [child.tag for child in cases["a.passed"]] == ["system-out"]
    assert cases["a.passed"].get("time") == "1.250"
    failure = cases["a.failed"].find("failure")
    assert failure is not None
    assert failure.attrib == {
        "type": "compile-crashed",
        "message": "compile-crashed: it died",
    }
    assert failure.text == "compile-crashed: it died\nlast words"
    assert [(c.tag, c.get("message")) for c in cases["a.known"]] == [
        ("skipped", "known failure: no kernel")
    ]


def test_junit_reports_gate_error() -> None:
    problem = Finding(
        code="gate-error",
        severity=Severity.ERROR,
        message="No Python.",
        remedy="Install it.",
    )
    (suite,) = parsed(evidence(outcome=Outcome.ERROR, findings=(problem,)))
    assert (suite.get("tests"), suite.get("errors"), suite.get("failures")) == (
        "1",
        "1",
        "0",
    )
    (error,) = suite.iter("error")
    assert error.get("message") == "gate-error: No Python."


def test_junit_replaces_invalid_characters() -> None:
    check = {
        "name": "a\x00b",
        "outcome": "failed",
        "findings": ["c: \x1b[31m<&>\ud800"],
        "error": "\x07]]>",
    }
    (suite,) = parsed(evidence(check, outcome=Outcome.FAILED))
    (failure,) = suite.iter("failure")
    assert failure.get("message") == "c: \ufffd[31m<&>\ufffd"
