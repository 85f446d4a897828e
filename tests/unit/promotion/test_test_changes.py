"""Changes of tests from one run to the next, and results of a test over all runs."""

from __future__ import annotations

import pytest

from promotion.evidence.test_changes import ChangeKind, compare_runs, trends_of
from promotion.evidence.test_results import RecordedOutcome, TestVerdict
from tests.unit.promotion.test_test_runs import run

V = TestVerdict
PASSED, FAILED, FLAKY, SKIPPED, CRASHED = V.PASSED, V.FAILED, V.FLAKY, V.SKIPPED, V.CRASHED


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ((PASSED, 1.0), (FAILED, 1.0), "broken"),
        ((FLAKY, 1.0), (CRASHED, 1.0), "broken"),
        (None, (FAILED, 1.0), "broken"),
        ((FAILED, 1.0), (CRASHED, 1.0), None),
        ((FAILED, 1.0), (PASSED, 1.0), "fixed"),
        ((FLAKY, 1.0), (PASSED, 1.0), "fixed"),
        ((PASSED, 1.0), (FLAKY, 1.0), "flaky"),
        ((FAILED, 1.0), (FLAKY, 1.0), "flaky"),
        ((FLAKY, 1.0), (FLAKY, 1.0), None),
        ((PASSED, 1.0), (SKIPPED, 0.0), "untested"),
        ((FAILED, 1.0), (V.ENVIRONMENT, 0.0), "untested"),
        ((PASSED, 1.0), (V.NOT_RUN, 0.0), "untested"),
        ((SKIPPED, 0.0), (V.NOT_RUN, 0.0), None),
        ((SKIPPED, 0.0), (PASSED, 60.0), None),
        ((PASSED, 1.0), None, "removed"),
        (None, (PASSED, 1.0), "added"),
        (None, (SKIPPED, 1.0), "added"),
        ((PASSED, 4.0), (PASSED, 9.0), "slower"),
        ((PASSED, 4.0), (PASSED, 8.9), None),
        ((PASSED, 10.0), (PASSED, 19.9), None),
        ((PASSED, 1.0), (PASSED, 1.0), None),
    ],
)
def test_change_between_two_runs(
    old: tuple[TestVerdict, float] | None, new: tuple[TestVerdict, float] | None, kind: str | None
) -> None:
    changes = compare_runs({"t": old} if old else {}, {"t": new} if new else {})
    assert [change.kind.value for change in changes] == ([kind] if kind else [])
    for change in changes:
        assert (change.before, change.seconds_before) == (old or (None, None))
        assert (change.now, change.seconds) == (new or (None, None))


def test_changes_are_sorted_by_severity_and_test() -> None:
    before = {"b": (PASSED, 1.0), "a": (PASSED, 1.0), "c": (FAILED, 1.0), "d": (PASSED, 1.0)}
    now = {"b": (FAILED, 1.0), "a": (FAILED, 1.0), "c": (PASSED, 1.0), "e": (PASSED, 1.0)}
    assert [(change.kind, change.test) for change in compare_runs(before, now)] == [
        (ChangeKind.BROKEN, "a"),
        (ChangeKind.BROKEN, "b"),
        (ChangeKind.REMOVED, "d"),
        (ChangeKind.FIXED, "c"),
        (ChangeKind.ADDED, "e"),
    ]


def outcome(number: int, verdict: TestVerdict, seconds: float = 1.0, test: str = "t", **more: str) -> RecordedOutcome:
    return RecordedOutcome(test=test, verdict=verdict, seconds=seconds, attempts=1, run=run(number, **more))


def test_trends_follow_each_test_and_kind_of_run() -> None:
    newest_first = [
        outcome(4, FAILED, 4.0),
        outcome(3, FAILED, 3.0),
        outcome(3, PASSED, python="3.13"),
        outcome(2, PASSED, 2.0),
        outcome(2, FLAKY, test="a"),
        outcome(1, FAILED),
    ]
    first, old_python, new_python = trends_of(newest_first)
    assert (first.test, first.verdicts) == ("a", (FLAKY,))
    assert (old_python.verdicts, old_python.seconds) == ((FAILED, PASSED, FAILED, FAILED), (1.0, 2.0, 3.0, 4.0))
    assert [item.finished[8:10] for item in old_python.runs] == ["01", "02", "03", "04"]
    assert old_python.since == run(3).finished
    assert (new_python.verdicts, new_python.since) == ((PASSED,), run(3).finished)
