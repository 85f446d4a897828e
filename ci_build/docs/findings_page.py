"""All findings with cause and remedy: those on wheels, of the gates, and of the doctor."""

from __future__ import annotations

import re
import runpy
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci_build.doctor import PAYLOAD
from wheelkit.findings import finding_kinds

FINDINGS_FILE = Path(__file__).with_name("findings.toml")
_TITLES = {"gates": "Gates", "build": "Builds"}


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
    return {"Wheels": wheels, **others, "Doctor": _problems()}


def _problems() -> list[FindingEntry]:
    """Return the problems that the loader and the doctor report."""
    # The package of the loader can be imported only in an installed wheel.
    kinds = runpy.run_path(str(PAYLOAD / "_problems.py"))["KINDS"]
    return [
        FindingEntry(
            code=code,
            severity=severity,
            cause=_with_names(sentence),
            remedy=_with_names(remedy),
        )
        for code, (severity, sentence, remedy) in sorted(kinds.items())
    ]


def _with_names(template: str) -> str:
    """Replace the fields of a template by their names in capitals."""
    return re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), template)


def _sentence(title: str) -> str:
    """Return the title of a finding as a sentence; names keep their case."""
    named = title.startswith(("pjrt", "version.py"))
    return f"{title if named else title[:1].upper() + title[1:]}."
