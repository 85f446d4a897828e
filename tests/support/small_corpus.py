"""Checks of compile evidence for the small corpus."""

from __future__ import annotations

from core.model import Evidence, Outcome, Severity
from promotion.corpus.catalog import load_corpus
from promotion.gates.compile.drift import Code, code_of_checks
from promotion.gates.compile.gate import COMPILER


def problems(evidence: Evidence) -> list[str]:
    """Return the errors of the evidence."""
    return [f"{f.severity} {f.code}: {f.message}" for f in evidence.findings if f.severity is Severity.ERROR]


def check_small_corpus(evidence: Evidence) -> Code:
    """Assert that the programs were compiled, and return their code."""
    count = len(load_corpus().choose("small"))
    assert problems(evidence) == []
    assert evidence.outcome is Outcome.PASSED, evidence.target
    assert evidence.counts["collected"] == count + 1
    checks = {check["name"]: check for check in evidence.details["checks"]}
    assert checks["lax.dot_bf16"]["kernels"]["matrix_instructions"] > 0
    assert 200 << 20 < checks[COMPILER]["peak_bytes"] < 3 << 30
    assert checks[COMPILER]["processes"] >= 1
    code = code_of_checks(evidence.details["checks"])
    assert len(code) > count // 2
    return code
