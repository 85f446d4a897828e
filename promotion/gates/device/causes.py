"""Causes of failures: the most informative line of a message, by which failures are grouped."""

from __future__ import annotations

import re
from collections.abc import Iterable

from promotion.evidence.test_results import TestResult

_CHARACTERS = 300
NEWEST_FIRST = "(most recent call first)"
"""Mark of faulthandler's tracebacks; other tracebacks end with the newest call."""
_FRAME = re.compile(r'^\s*(File ".*?)\s*$', re.MULTILINE)
"""Place of a call in a traceback."""
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\b[0-9]{5,}\b")
"""Addresses and process ids, which differ between failures of one cause."""


def headline(message: str) -> str:
    """Return the most informative line of a failure.

    Pytest's first line with an E, or else the first line.

    A line that ends with a colon is joined with the next, since the text of many errors
    begins on a line of its own.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    marked = [line[1:].strip() for line in lines if line.startswith("E ")]
    first, *more = [line for line in marked if line] or lines or [""]
    line = f"{first} {more[0]}" if marked and more and first.endswith(":") else first
    return line[:_CHARACTERS]


def cause_of(message: str) -> str:
    """Return the cause of a failure; messages of one cause may differ in addresses and process ids.

    The cause of a crash contains the place where it happened.
    """
    line = headline(message)
    frame = _FRAME.search(message)
    if frame and NEWEST_FIRST in message:
        line = f"{line} {frame[1]}"
    return _VARYING.sub("…", line) or "no reason given"


def by_cause(results: Iterable[TestResult]) -> dict[tuple[str, str], list[TestResult]]:
    """Return (verdict, cause) -> results, the most frequent first."""
    groups: dict[tuple[str, str], list[TestResult]] = {}
    for result in results:
        key = (result.verdict.value, cause_of(result.message))
        groups.setdefault(key, []).append(result)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))
