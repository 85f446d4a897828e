"""The findings of gates as lines for people: one line for each cause, errors first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from core.errors import CiBuildError, GateError, MachineError
from core.model import Evidence, Finding, Outcome, Severity
from promotion.evidence.evidence import ANY, is_machine_failure
from wheelkit.findings import some

_MOST_OF_CODE = 3
_MOST_TESTS = 20
"""Lines with one code: of a gate without a GPU, and of a device gate, whose tests differ."""
_STAGES = {"inspection": 0, "abi": 0, "coverage": 0, "load": 1}
"""Gate -> its place: gates that read the wheels, the one that loads them, all others."""
_CONSEQUENCES = frozenset(
    (
        "compiler-unusable",
        "dependencies-failed",
        "gate-error",
        "import-failed",
        "install-failed",
        "install-inconsistent",
        "install-untrue",
        "jax-failed",
        "load-failed",
        "package-broken",
        "pair-untried",
        "probe-failed",
        "resolution-failed",
        "site-failed",
        "start-failed",
    )
)
"""Codes of code that does not run, for example because of what an earlier gate found."""
_WHEEL = re.compile(r"(\w+)-\d[^\s/:]*?-(\w+)-\w+-[\w.]+\.whl")


def report_lines(evidences: Sequence[Evidence], severity: Severity) -> list[str]:
    """Return a line for each cause: code, wheel, library, problem, remedy, gates and targets.

    Code that does not run is counted only, if a gate that comes before found an error.
    """
    subjects: dict[tuple[str, str], list[str]] = {}
    hidden = Counter[str]()
    first = min((_stage(one.gate) for one in evidences if _has_errors(one)), default=0)
    for evidence in evidences:
        gate = evidence.gate
        subject = gate if evidence.target == ANY else f"{gate} {evidence.target}"
        for finding in evidence.findings:
            if finding.severity is not severity:
                continue
            if finding.code in _CONSEQUENCES and _stage(gate) > first:
                hidden[gate] += 1
                continue
            places = subjects.setdefault((finding.code, _text(finding)), [])
            if subject not in places:
                places.append(subject)
    lines = [*_limited(subjects)]
    if hidden:
        counts = ", ".join(f"{gate} {count}" for gate, count in hidden.items())
        lines.append(f"Not shown, since they may be consequences: {counts}.")
    return lines


def _limited(subjects: dict[tuple[str, str], list[str]]) -> Iterator[str]:
    """Yield the lines, of each code the first ones and the number of further ones."""
    total = Counter(code for code, _ in subjects)
    shown = Counter[str]()
    for (code, text), places in subjects.items():
        shown[code] += 1
        is_test = places[0].startswith("device")
        most = _MOST_TESTS if is_test else _MOST_OF_CODE
        if shown[code] <= most:
            yield f"{code}: {text} [{some(places)}]"
        elif shown[code] == total[code]:
            yield f"{code}: {total[code] - most} more are in the evidence."


def _has_errors(evidence: Evidence) -> bool:
    return any(item.severity is Severity.ERROR for item in evidence.findings)


def _stage(gate: str) -> int:
    return _STAGES.get(gate, 2)


def _text(finding: Finding) -> str:
    """Return message and remedy with short names of wheels and libraries."""
    message = finding.message
    if finding.member:
        message = message.replace(finding.member, finding.member.rpartition("/")[2])
    message = _WHEEL.sub(lambda name: f"{name[1]} ({name[2]})", message)
    return f"{message} {finding.remedy}".replace(" (py3)", "").strip()


def raise_for_failures(evidences: Sequence[Evidence]) -> None:
    """Raise one error with the lines of the gates that did not pass, then their warnings.

    Raises:
        GateError: a gate failed.
        MachineError: this machine caused every failure, so the gates may pass on
            another machine.
    """
    failed = [
        one for one in evidences if one.outcome in (Outcome.FAILED, Outcome.ERROR)
    ]
    if not failed:
        return
    lines = report_lines(failed, Severity.ERROR)
    warnings = report_lines(evidences, Severity.WARNING)
    lines += [f"warning: {line}" for line in warnings]
    machine = all(map(is_machine_failure, failed))
    kind: type[CiBuildError] = MachineError if machine else GateError
    raise kind("\n  ".join(("Gates did not pass:", *lines)))
