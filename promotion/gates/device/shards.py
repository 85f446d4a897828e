"""Tests dealt out to several runners so that all end at about the same time."""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from core.errors import RequestError
from promotion.gates.device.results import file_of

UNKNOWN_SECONDS = 1.0
"""What a test is taken for when nothing at all is known of its suite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """Part `number` of `count`, both from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def parse_shard(text: str) -> Shard:
    """Read such as 2/4; RequestError when it is nothing of this kind."""
    match = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise RequestError(f"{text!r} is not a shard.", hint="Write it like 2/4: the second of four.")
    return Shard(number=int(match[1]), count=int(match[2]))


def split(tests: Iterable[str], seconds: Mapping[str, float], count: int) -> tuple[tuple[str, ...], ...]:
    """Deal out tests so that the longest part is as short as can be had quickly: longest first, to the emptiest part.

    Every runner that is told the same gets the same parts, whatever the order of `tests`. A test that nobody measured
    is taken for the median of its file, else of the suite. Longest processing time first is at most 4/3 - 1/(3 count)
    times as long as the best (Graham 1969), and far closer with many tests.

    Args:
        tests: node ids.
        seconds: how long tests took when they ran last.
        count: of parts.

    Returns:
        A part for each shard, each in the order of node ids; together every test exactly once.
    """
    cost = _costs(sorted(set(tests)), seconds)
    heap = [(0.0, number) for number in range(count)]
    parts: list[list[str]] = [[] for _ in range(count)]
    for test in sorted(cost, key=lambda test: (-cost[test], test)):
        load, number = heapq.heappop(heap)
        parts[number].append(test)
        heapq.heappush(heap, (load + cost[test], number))
    return tuple(tuple(sorted(part)) for part in parts)


def _costs(tests: Sequence[str], seconds: Mapping[str, float]) -> dict[str, float]:
    files: dict[str, list[float]] = defaultdict(list)
    for test, took in seconds.items():
        files[file_of(test)].append(took)
    everywhere = median(seconds.values()) if seconds else UNKNOWN_SECONDS
    typical = {file: median(took) for file, took in files.items()}
    return {test: seconds.get(test, typical.get(file_of(test), everywhere)) for test in tests}
