"""All findings with cause and remedy: those on wheels, of the gates, and of the doctor."""

from __future__ import annotations

import re
import runpy
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ci_build.doctor import PAYLOAD
from wheelkit.findings import finding_kinds

FINDINGS_FILE = Path(__file__).with_name("findings.toml")


class FindingEntry(NamedTuple):
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
    wheels = {}
    for code, kind in finding_kinds().items():
        wheels[code] = (kind.severity.value, _sentence(kind.title), kind.remedy)
    tables = tomllib.loads(FINDINGS_FILE.read_text(encoding="utf-8"))
    # The package of the loader can be imported only in an installed wheel.
    problems = runpy.run_path(str(PAYLOAD / "_problems.py"))["KINDS"]
    doctor = {}
    for code, (severity, *texts) in problems.items():
        doctor[code] = (severity, *map(_with_names, texts))
    sections = {
        "Wheels": wheels,
        "Gates": tables["gates"],
        "Builds": tables["build"],
        "Doctor": doctor,
    }
    entries = {}
    for title, rows in sections.items():
        entries[title] = [FindingEntry(code, *rows[code]) for code in sorted(rows)]
    return entries


def _with_names(template: str) -> str:
    """Replace the fields of a template by their names in capitals."""
    return re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), template)


def _sentence(title: str) -> str:
    """Return the title of a finding as a sentence; names keep their case."""
    named = title.startswith(("pjrt", "version.py"))
    return f"{title if named else title[:1].upper() + title[1:]}."
