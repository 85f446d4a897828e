"""Outcomes of single checks and tests in evidence."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass

from core.model import Evidence
from promotion.evidence.evidence import check_records
from promotion.evidence.test_results import TestResult, TestVerdict, load_results
from promotion.gates.device.causes import headline
from promotion.gates.device.device_evidence import results_names
from promotion.storage.bucket import Bucket

GATES = ("device", "compile")
"""Gates that run or compile programs, the strongest one first."""
GOOD = "passed"
SILENT = "skipped"
_SUITE = "suite"
"""The entry of a test that the suite itself skipped."""
_OUTCOMES = {
    TestVerdict.PASSED: GOOD,
    TestVerdict.FLAKY: GOOD,
    TestVerdict.FAILED: "failed",
    TestVerdict.CRASHED: "failed",
}


@dataclass(frozen=True, kw_only=True)
class CheckOutcome:
    """The outcome of one check in one evidence file.

    Attributes:
        outcome: passed, failed, known (to fail) or skipped.
        reason: why the check is known to fail or was skipped.
    """

    name: str
    outcome: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class EvidenceChecks:
    """Evidence and the outcomes of its checks.

    Attributes:
        results: results of the tests of a run on GPUs. Empty for other evidence.
    """

    evidence: Evidence
    checks: tuple[CheckOutcome, ...]
    results: tuple[TestResult, ...] = ()


def read_checks(bucket: Bucket, root: str, evidence: Evidence) -> EvidenceChecks:
    """Return the outcome of each check of some evidence, or of each test if it has test results.

    Args:
        root: folder of the evidence of the set, with a slash at the end.

    Raises:
        GateError: the test results are damaged.
    """
    results = tuple(_results(bucket, root, evidence))
    return EvidenceChecks(
        evidence=evidence,
        checks=tuple(map(_test, results)) or tuple(_checks(evidence)),
        results=results,
    )


def _checks(evidence: Evidence) -> Iterator[CheckOutcome]:
    for body in check_records(evidence):
        yield CheckOutcome(
            name=str(body["name"]),
            outcome=str(body["outcome"]),
            reason=str(body.get("why") or ""),
        )


def _results(bucket: Bucket, root: str, evidence: Evidence) -> Iterator[TestResult]:
    """Yield the results of each test of a run, which lie beside its evidence."""
    for name in results_names(evidence):
        yield from load_results(gzip.decompress(bucket.get(root + name)), name)


def _test(result: TestResult) -> CheckOutcome:
    """Return the outcome of a test.

    Skips by a ledger are known failures, skips by the suite do not count.
    """
    if result.verdict is TestVerdict.SKIPPED and result.entry not in ("", _SUITE):
        return CheckOutcome(
            name=result.id,
            outcome="known",
            reason=f"{headline(result.message)} ({result.entry})",
        )
    outcome = _OUTCOMES.get(result.verdict, SILENT)
    return CheckOutcome(
        name=result.id,
        outcome=outcome,
        reason="" if outcome == GOOD else str(result.verdict),
    )
