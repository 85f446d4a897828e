"""Kinds of defects of a wheel (`findings.toml`): code -> severity, title, remedy.

A rule makes a `Finding` with `finding(code, …)`, which adds severity and remedy.
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
    """One kind of defect.

    Attributes:
        title: a few words, for tables.
        remedy: one line for the builder of the wheel.
        integrity: the bytes are damaged or wrong; such a finding stays an error in wheels that others published.
    """

    severity: Severity
    title: str
    remedy: str
    integrity: bool = False


@functools.cache
def finding_kinds() -> Mapping[str, FindingKind]:
    """Return the table that lies beside this module, by code."""
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
    """Yield findings on a wheel that others published: errors become warnings, except those about broken bytes."""
    for item in items:
        mild = item.severity is Severity.ERROR and not is_integrity(item)
        yield replace(item, severity=Severity.WARNING) if mild else item


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort by severity (errors first), then by code; drop exact repetitions."""
    order = list(Severity)
    return tuple(sorted(dict.fromkeys(findings), key=lambda item: (order.index(item.severity), item.code)))


def some(names: Sequence[str], limit: int = 4) -> str:
    """Join the first few names and the number of the others."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
