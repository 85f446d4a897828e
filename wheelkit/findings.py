"""Kinds of findings on wheels, from `findings.toml`.

Code -> severity, title, remedy, whether the repair removes it.

Rules create findings with `finding(code, …)`, which adds the severity and the remedy of
the code.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from core.frozen import frozen
from core.model import Finding, Severity
from core.records import read_toml
from core.versions import parse_package_name

REPORT_PUBLISHED = (
    "Report it to the wheel's project, or adopt another release; the set has the wheel"
    " as published."
)
"""Remedy for users of a wheel that this program neither builds nor repairs."""
REPAIR_PUBLISHED = "Run `ci_build set repair` on the wheel and adopt its result."


@frozen
class FindingKind:
    """One kind of finding.

    Attributes:
        title: short title for tables.
        remedy: one line of advice to the builder of the wheel.
        integrity: True if the finding means damaged or wrong bytes.
        harmful: True if it is an error in wheels published by others too.
        repaired: True if the repair of a pjrt or plugin wheel removes the cause.
    """

    severity: Severity
    title: str
    remedy: str
    integrity: bool = False
    harmful: bool = False
    repaired: bool = False


_Group = Literal["broken", "harmful", "error", "warning", "note"]
_Rows = dict[str, list[str]]


@functools.cache
def finding_kinds() -> Mapping[str, FindingKind]:
    """Return the kinds of findings in `findings.toml` by code."""
    tables = read_toml(Path(__file__).with_suffix(".toml"), dict[_Group, _Rows])
    kinds = {}
    for group, rows in tables.items():
        harmful = group in ("broken", "harmful")
        for code, (title, remedy, *more) in rows.items():
            kinds[code] = FindingKind(
                severity=Severity.ERROR if harmful else Severity(group),
                title=title,
                remedy=remedy,
                integrity=group == "broken",
                harmful=harmful,
                repaired="repaired" in more,
            )
    return kinds


def finding(code: str, message: str, *, member: str = "") -> Finding:
    """Return a finding of a known kind; an unknown code raises KeyError."""
    rule = finding_kinds()[code]
    return Finding(
        code=code,
        severity=rule.severity,
        message=message,
        remedy=rule.remedy,
        member=member,
    )


def is_integrity(item: Finding) -> bool:
    """Return whether a finding means damaged or wrong bytes."""
    kind = finding_kinds().get(item.code)
    return kind is not None and kind.integrity


def as_published(items: Iterable[Finding], project: str) -> Iterator[Finding]:
    """Yield the errors that hurt users of a wheel published by others, with remedies for them.

    Args:
        project: normalized name of the wheel's project.
    """
    repairable = parse_package_name(project) is not None
    for item in items:
        kind = finding_kinds().get(item.code)
        if kind is None or not kind.harmful or item.severity is not Severity.ERROR:
            continue
        if kind.integrity:
            yield item
            continue
        repaired = repairable and kind.repaired
        remedy = REPAIR_PUBLISHED if repaired else REPORT_PUBLISHED
        yield replace(item, remedy=remedy)


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings by severity, errors first, then by code; remove duplicates."""
    order = list(Severity)
    return tuple(
        sorted(
            dict.fromkeys(findings),
            key=lambda item: (order.index(item.severity), item.code),
        )
    )


def some(names: Sequence[str], limit: int = 4) -> str:
    """Join the first `limit` names; add the number of further names."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
