"""Kinds of findings on wheels, from `findings.toml`: code -> severity, title, remedy.

Rules create findings with `finding(code, …)`, which adds the severity and the remedy of the code.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from core.model import Finding, Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingKind:
    """One kind of finding.

    Attributes:
        title: short title for tables.
        remedy: one line of advice to the builder of the wheel.
        integrity: True if the finding means damaged or wrong bytes, which are errors also in wheels published by
            others.
    """

    severity: Severity
    title: str
    remedy: str
    integrity: bool = False


@functools.cache
def finding_kinds() -> Mapping[str, FindingKind]:
    """Return the kinds of findings in `findings.toml` by code."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {
        code: FindingKind(
            severity=Severity.ERROR if group == "broken" else Severity(group), title=title, remedy=remedy,
            integrity=group == "broken",
        )
        for group, rows in tables.items()
        for code, (title, remedy) in rows.items()
    }  # fmt: skip


def finding(code: str, message: str, *, member: str = "") -> Finding:
    """Return a finding of a known kind; an unknown code raises KeyError."""
    rule = finding_kinds()[code]
    return Finding(code=code, severity=rule.severity, message=message, remedy=rule.remedy, member=member)


def is_integrity(item: Finding) -> bool:
    """Return whether a finding means damaged or wrong bytes."""
    kind = finding_kinds().get(item.code)
    return kind is not None and kind.integrity


def as_published(items: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings on a wheel published by others: errors become warnings unless bytes are damaged or wrong."""
    for item in items:
        mild = item.severity is Severity.ERROR and not is_integrity(item)
        yield replace(item, severity=Severity.WARNING) if mild else item


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings by severity, errors first, then by code; remove duplicates."""
    order = list(Severity)
    return tuple(sorted(dict.fromkeys(findings), key=lambda item: (order.index(item.severity), item.code)))


def some(names: Sequence[str], limit: int = 4) -> str:
    """Join the first `limit` names; add the number of further names."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
