"""All findings with cause and remedy: those on wheels, of the gates, and of the doctor."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wheelkit.findings import finding_kinds

FINDINGS_FILE = Path(__file__).with_name("findings.toml")
_TITLES = {"gates": "Gates", "build": "Builds", "doctor": "Doctor"}


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingEntry:
    """A row of the reference.

    Attributes:
        severity: `error`, `warning`, `note`, or several of them, separated by commas.
        cause: a phrase or a sentence.
        remedy: one line of advice; empty if there is none.
    """

    code: str
    severity: str
    cause: str
    remedy: str


def finding_entries() -> Mapping[str, Sequence[FindingEntry]]:
    """Return title of a section -> its findings, sorted by code."""
    wheels = [
        FindingEntry(
            code=code,
            severity=kind.severity,
            cause=_sentence(kind.title),
            remedy=kind.remedy,
        )
        for code, kind in sorted(finding_kinds().items())
    ]
    tables = tomllib.loads(FINDINGS_FILE.read_text(encoding="utf-8"))
    others = {}
    for name, rows in tables.items():
        others[_TITLES[name]] = [
            FindingEntry(code=code, severity=severity, cause=cause, remedy=remedy)
            for code, (severity, cause, remedy) in sorted(rows.items())
        ]
    return {"Wheels": wheels, **others}


def _sentence(title: str) -> str:
    """Return the title of a finding as a sentence; names keep their case."""
    named = title.startswith(("pjrt", "version.py"))
    return f"{title if named else title[:1].upper() + title[1:]}."
