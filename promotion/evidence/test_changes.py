"""Changes of single tests from one run of a suite to the next, and their results over all recorded runs."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from promotion.evidence.test_results import RecordedOutcome, SuiteRun, TestVerdict

SLOWER_FACTOR, SLOWER_SECONDS = 2.0, 5.0
"""A passed test is slower if its duration grew by this factor and by this number of seconds."""
_BAD = frozenset({TestVerdict.FAILED, TestVerdict.CRASHED})
_UNTESTED = frozenset({TestVerdict.SKIPPED, TestVerdict.ENVIRONMENT, TestVerdict.NOT_RUN})


class ChangeKind(enum.StrEnum):
    """A change of a test between two runs, the most severe first."""

    BROKEN = "broken"
    """Failed or crashed, which it did not before."""
    FLAKY = "flaky"
    """Flaky, which it was not before."""
    UNTESTED = "untested"
    """Skipped or not run, but tested before."""
    REMOVED = "removed"
    SLOWER = "slower"
    FIXED = "fixed"
    ADDED = "added"


@dataclass(frozen=True, kw_only=True, slots=True)
class TestChange:
    """A change of one test; verdict and seconds are None for a run without the test."""

    __test__: ClassVar[bool] = False

    test: str
    kind: ChangeKind
    before: TestVerdict | None
    now: TestVerdict | None
    seconds_before: float | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TestTrend:
    """The results of one test in all recorded runs of a kind, oldest first.

    Attributes:
        runs: the runs that have the test; `verdicts` and `seconds` have an item for each.
        since: end of the first run since which the verdict is the last one.
    """

    __test__: ClassVar[bool] = False

    test: str
    runs: tuple[SuiteRun, ...]
    verdicts: tuple[TestVerdict, ...]
    seconds: tuple[float, ...]
    since: str


Results = Mapping[str, tuple[TestVerdict, float]]
"""Test -> verdict and duration in seconds."""


def compare_runs(before: Results, now: Results) -> tuple[TestChange, ...]:
    """Return the tests that differ between two runs, the most severe changes first."""
    nothing = (None, None)
    changes = []
    for test in before.keys() | now.keys():
        (old, old_seconds), (new, seconds) = before.get(test, nothing), now.get(test, nothing)
        if kind := _kind(old, new, old_seconds or 0.0, seconds or 0.0):
            changes.append(
                TestChange(test=test, kind=kind, before=old, now=new, seconds_before=old_seconds, seconds=seconds)
            )
    order = tuple(ChangeKind)
    return tuple(sorted(changes, key=lambda change: (order.index(change.kind), change.test)))


def _kind(old: TestVerdict | None, new: TestVerdict | None, old_seconds: float, seconds: float) -> ChangeKind | None:
    if new is None:
        return ChangeKind.REMOVED
    if new in _BAD:
        return None if old in _BAD else ChangeKind.BROKEN
    if new is TestVerdict.FLAKY:
        return None if old is TestVerdict.FLAKY else ChangeKind.FLAKY
    if old is None:
        return ChangeKind.ADDED
    if new in _UNTESTED:
        return None if old in _UNTESTED else ChangeKind.UNTESTED
    if old in _BAD or old is TestVerdict.FLAKY:
        return ChangeKind.FIXED
    grew = seconds >= old_seconds * SLOWER_FACTOR and seconds >= old_seconds + SLOWER_SECONDS
    return ChangeKind.SLOWER if old is TestVerdict.PASSED and grew else None


def trends_of(outcomes: Iterable[RecordedOutcome]) -> Iterator[TestTrend]:
    """Yield the trend of each test and kind of run, sorted by test.

    Args:
        outcomes: results, the newest run first.
    """
    by_test: dict[tuple[str, tuple[str, ...]], list[RecordedOutcome]] = {}
    for outcome in outcomes:
        by_test.setdefault((outcome.test, outcome.run.kind), []).append(outcome)
    for (test, _), newest_first in sorted(by_test.items(), key=lambda item: item[0]):
        results = newest_first[::-1]
        verdicts = tuple(item.verdict for item in results)
        yield TestTrend(
            test=test,
            runs=tuple(item.run for item in results),
            verdicts=verdicts,
            seconds=tuple(item.seconds for item in results),
            since=results[_first_of_last(verdicts)].run.finished,
        )


def _first_of_last(verdicts: Sequence[TestVerdict]) -> int:
    """Return the position since which all verdicts equal the last one."""
    position = len(verdicts) - 1
    while position and verdicts[position - 1] is verdicts[-1]:
        position -= 1
    return position
