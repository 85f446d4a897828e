"""Parts of JAX and libraries of ROCm in the compatibility tables, and their support by evidence.

The evidence has outcomes of single checks and tests.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from core.frozen import frozen
from core.model import Evidence, Outcome
from core.records import read_toml
from promotion.evidence.evidence import check_records
from promotion.evidence.node_patterns import regex_of
from promotion.evidence.test_results import TestResult, TestVerdict, load_results
from promotion.gates.device.device_evidence import results_names
from promotion.index.set_summary import ModuleTest
from promotion.storage.bucket import Bucket

GATES = ("device", "compile")
"""Gates that run or compile programs, the strongest one first."""
GOOD = "passed"
SILENT = "skipped"
_OUTCOMES = {
    TestVerdict.PASSED: GOOD,
    TestVerdict.FLAKY: GOOD,
    TestVerdict.FAILED: "failed",
    TestVerdict.CRASHED: "failed",
}


@frozen
class CheckOutcome:
    """The outcome of one check in one evidence file.

    Attributes:
        outcome: passed, failed, known (to fail) or skipped.
        reason: why the check is known to fail or was skipped.
    """

    name: str
    outcome: str
    reason: str = ""


@frozen
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
    """Return the outcome of a test; skipped tests do not count."""
    outcome = _OUTCOMES.get(result.verdict, SILENT)
    return CheckOutcome(
        name=result.id,
        outcome=outcome,
        reason="" if outcome == GOOD else str(result.verdict),
    )


COMPAT_FILE = Path(__file__).with_name("compatibility.toml")
_SCHEMA_VERSION = 1
_MOST = 20
"""Number of checks of a module that are listed as not passed."""


@frozen
class JaxModule:
    """A part of JAX and the checks that cover it; see `compatibility.toml`."""

    name: str
    description: str
    checks: tuple[str, ...]

    def counts(self, check: str) -> bool:
        """Return whether a check covers this module."""
        return any(re.fullmatch(regex_of(pattern), check) for pattern in self.checks)


@frozen
class DocumentedLibrary:
    """A library of ROCm; see `compatibility.toml`."""

    name: str
    soname: str
    purpose: str
    used_in: str


@frozen
class CompatibilitySpec:
    """Content of `compatibility.toml`."""

    module: tuple[JaxModule, ...]
    library: tuple[DocumentedLibrary, ...]


@cache
def load_spec(file: Path = COMPAT_FILE) -> CompatibilitySpec:
    """Load the modules and libraries of the tables."""
    return read_toml(file, CompatibilitySpec, schema=_SCHEMA_VERSION)


def module_test(
    module: JaxModule, evidence: Iterable[EvidenceChecks]
) -> ModuleTest | None:
    """Return the support of a module on each target, according to the strongest evidence.

    None without evidence.
    """
    tiers: dict[str, str] = {}
    bad_checks: dict[str, list[CheckOutcome]] = {}
    for checked in sorted(evidence, key=_strength):
        target = checked.evidence.target
        checks = [
            check
            for check in checked.checks
            if module.counts(check.name) and check.outcome != SILENT
        ]
        if not checks or target in bad_checks or checked.evidence.gate not in GATES:
            continue
        bad = [check for check in checks if check.outcome != GOOD]
        bad_checks[target] = bad
        # Evidence that did not pass proves nothing; known failures do not affect other
        # checks.
        if len(bad) < len(checks) and checked.evidence.outcome is Outcome.PASSED:
            tiers[target] = checked.evidence.tier.value
    if not bad_checks:
        return None
    targets_of: dict[str, list[str]] = {}
    for target, bad in sorted(bad_checks.items()):
        for check in bad:
            text = f"{check.name}: {check.reason}" if check.reason else check.name
            targets_of.setdefault(text, []).append(target)
    texts = [f"{text} ({', '.join(names)})" for text, names in targets_of.items()]
    return ModuleTest(
        name=module.name,
        description=module.description,
        works=dict(sorted(tiers.items())),
        unsupported=tuple(texts[:_MOST]),
    )


def _strength(checked: EvidenceChecks) -> int:
    gate = checked.evidence.gate
    return GATES.index(gate) if gate in GATES else len(GATES)
