"""What a person sees at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from core.model import Evidence
from promotion.gates.device.evidence import shown
from promotion.gates.device.results import TestVerdict
from promotion.gates.device.run import RUN

FIRST = 3
"""So many failures are shown with their tracebacks."""
_LINES = 40


def table(evidences: Sequence[Evidence]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Columns, and a row for each run: how many tests got which verdict."""
    rows = []
    for evidence in evidences:
        for check in _checks(evidence):
            if check.get("name") == RUN:
                verdicts, shard = check.get("verdicts", {}), check.get("shard", "")
                name = f"{evidence.gate} {shard}".strip()
                numbers = (str(verdicts.get(verdict.value, 0)) for verdict in TestVerdict)
                rows.append((name, evidence.target, evidence.outcome.value, *numbers))
    return ("gate", "target", "result", *(verdict.value for verdict in TestVerdict)), rows


def failures(evidences: Sequence[Evidence]) -> Iterator[str]:
    """The first failures with their tracebacks, and the command that runs each again."""
    bad = [(evidence, check) for evidence in evidences for check in _checks(evidence) if _is_bad(check)]
    for evidence, check in bad[:FIRST]:
        yield f"--- {check['name']}"
        yield from (f"    {line}" for line in shown(str(check.get("error", "")), _LINES))
        for found in evidence.findings:
            if f"{found.code}: {found.message}" in check.get("findings", ()):
                yield f"  {found.message}"
                yield f"  {found.remedy}"
    if len(bad) > FIRST:
        yield f"... and {len(bad) - FIRST} more, in the evidence."
    for name, why in islice(_of_the_machine(evidences), FIRST):
        yield f"--- {name}"
        yield f"  {why}"


def _is_bad(check: Mapping[str, Any]) -> bool:
    return check.get("outcome") == "failed" and "attempts" in check


def _of_the_machine(evidences: Sequence[Evidence]) -> Iterator[tuple[str, str]]:
    """Tests that the machine is to blame for, and what they said."""
    for evidence in evidences:
        for check in _checks(evidence):
            if "attempts" in check and check.get("outcome") == "skipped":
                yield str(check["name"]), str(check.get("why", ""))


def _checks(evidence: Evidence) -> list[Mapping[str, Any]]:
    checks = evidence.details.get("checks", ())
    return [check for check in checks if isinstance(check, dict)]
