"""Tables of the results of targets and programs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from core.model import Evidence
from promotion.evidence.evidence import check_records

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Names of the columns, and rows of cells."""

_WORDS = {"failed": "failed", "known": "known", "skipped": "not run"}


def results(evidences: Iterable[Evidence]) -> Table:
    """Return a table of program counts per outcome, by group and target."""
    columns: dict[str, dict[str, Counter[str]]] = {}
    for evidence in evidences:
        column = columns.setdefault(evidence.target, {})
        for check in _programs(evidence):
            group = check["name"].partition(".")[0]
            column.setdefault(group, Counter())[check["outcome"]] += 1
    rows = []
    for group in dict.fromkeys(itertools.chain.from_iterable(columns.values())):
        counts = [column.get(group, Counter()) for column in columns.values()]
        rows.append((group, *map(_result, counts)))
    total = [_result(sum(column.values(), Counter())) for column in columns.values()]
    return ("programs", *columns), [*rows, ("all", *total)]


def failures(evidences: Iterable[Evidence]) -> Iterator[str]:
    """Yield a line for each program and target that failed, is a known failure or was skipped."""
    for evidence in evidences:
        for check in _programs(evidence):
            outcome = check["outcome"]
            subject = f"{evidence.target} {check['name']}"
            if outcome == "failed":
                text = check.get("error", "") or next(
                    iter(check.get("findings", ())), ""
                )
                why = text.strip().partition("\n")[0] or "see its findings"
                yield f"{subject}: {check.get('fate', 'failed')}: {why}"
            elif outcome in ("known", "skipped"):
                yield f"{subject}: {_WORDS[outcome]}: {check.get('why', '')}"


def _programs(evidence: Evidence) -> Iterator[Mapping[str, Any]]:
    return (check for check in check_records(evidence) if "." in check["name"])


def _result(count: Counter[str]) -> str:
    total = sum(count.values())
    if not total:
        return "-"
    others = [
        f"{count[outcome]} {word}" for outcome, word in _WORDS.items() if count[outcome]
    ]
    text = f"{count['passed']}/{total}"
    return f"{text} ({', '.join(others)})" if others else text
