"""Tables of targets and programs: the progress of a run, and its results."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from core.model import Evidence
from promotion.gates.compile.child_run import Fate

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Names of the columns, and rows of cells."""
Live = Callable[[Callable[[], Table]], AbstractContextManager[None]]
"""Function that returns a context, which displays the table of the given function; see `Reporter.live_table`."""

_WORDS = {"failed": "failed", "known": "known", "skipped": "not run"}


def group_of(program: str) -> str:
    """Return the group of a program: the part before the first dot."""
    return program.partition(".")[0]


class ProgressTable:
    """Progress of each program on each target; safe to use from several threads."""

    def __init__(self, targets: Sequence[str], programs: Mapping[str, Sequence[str]]) -> None:
        self._targets, self._programs = tuple(targets), programs
        self._fates: dict[tuple[str, str], Fate | None] = {}
        self._lock = threading.Lock()

    def note(self, target: str, program: str, fate: Fate | None) -> None:
        """Record the start (None) or the fate of a program."""
        with self._lock:
            self._fates[target, program] = fate

    def rows(self) -> Table:
        """Return a row for each group and a column for each target with the number of finished and failed programs."""
        with self._lock:
            fates = dict(self._fates)
        groups = dict.fromkeys(group_of(program) for programs in self._programs.values() for program in programs)
        return ("programs", *self._targets), [
            (group, *(self._cell(fates, group, target) for target in self._targets)) for group in groups
        ]

    def _cell(self, fates: Mapping[tuple[str, str], Fate | None], group: str, target: str) -> str:
        members = [program for program in self._programs[target] if group_of(program) == group]
        ended = [fate for program in members if (fate := fates.get((target, program))) is not None]
        started = any((target, program) in fates and fates[target, program] is None for program in members)
        bad = len(ended) - ended.count(Fate.COMPILED)
        return f"{len(ended)}/{len(members)}{' …' if started else ''}{f' ({bad} not)' if bad else ''}"


def results(evidences: Iterable[Evidence]) -> Table:
    """Return a table of the number of programs per outcome, with a row per group and a column per target."""
    columns: dict[str, dict[str, Counter[str]]] = {}
    for evidence in evidences:
        column = columns.setdefault(evidence.target, {})
        for check in _programs(evidence):
            column.setdefault(group_of(check["name"]), Counter())[check["outcome"]] += 1
    groups = dict.fromkeys(group for column in columns.values() for group in column)
    rows = [(group, *(_result(column.get(group, Counter())) for column in columns.values())) for group in groups]
    total = [_result(sum(column.values(), Counter())) for column in columns.values()]
    return ("programs", *columns), [*rows, ("all", *total)]


def failures(evidences: Iterable[Evidence]) -> Iterator[str]:
    """Yield a line for each program and target that failed, is a known failure or was skipped."""
    for evidence in evidences:
        for check in _programs(evidence):
            if check["outcome"] == "failed":
                text = check.get("error", "") or "; ".join(check.get("findings", ()))
                why = text.strip().partition("\n")[0] or "see its findings"
                yield f"{evidence.target} {check['name']}: {check.get('fate', 'failed')}: {why}"
            elif check["outcome"] in ("known", "skipped"):
                yield f"{evidence.target} {check['name']}: {_WORDS[check['outcome']]}: {check.get('why', '')}"


def _programs(evidence: Evidence) -> Iterator[Mapping[str, Any]]:
    return (check for check in evidence.details.get("checks", ()) if "." in check["name"])


def _result(count: Counter[str]) -> str:
    total = sum(count.values())
    rest = [f"{count[outcome]} {word}" for outcome, word in _WORDS.items() if count[outcome]]
    return f"{count['passed']}/{total}{' (' + ', '.join(rest) + ')' if rest else ''}" if total else "-"
