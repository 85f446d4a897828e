"""Progress of a pass: remaining tests, suspects, reruns and blame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from promotion.evidence.test_results import TestVerdict
from promotion.gates.device.results import Attempt, Ending, Round, judge
from promotion.gates.device.sessions.session import SessionOutcome
from promotion.gates.device.sessions.state import PassState

A = "t.py::a"
B = "t.py::b"
C = "t.py::c"


def ended(test: str, ending: str = "passed") -> Attempt:
    return Attempt(id=test, ending=Ending(ending))


def died(test: str, ending: Ending = Ending.CRASHED) -> Attempt:
    return Attempt(id=test, ending=ending, message="dead")


def outcome(items: Sequence[str] | None = (A, B, C), **more: Any) -> SessionOutcome:
    tests = tuple(items or ())
    return SessionOutcome(items=None if items is None else tests, chosen=tests, **more)


def test_crash_is_rerun_once_and_hang_is_not() -> None:
    state = PassState()
    state.add(
        outcome(ended=(ended(C, "failed"),), died=(died(A), died(B, Ending.HUNG))),
        Round.FIRST,
    )
    assert state.remaining() == [A]
    state.add(outcome(died=(died(A),)), Round.FIRST)
    assert state.remaining() == []
    assert [item.round for item in state.tests[A]] == [Round.FIRST, Round.RERUN]


def test_suspects_run_alone_before_blame() -> None:
    state = PassState()
    state.add(outcome(suspects=(died(A), died(B))), Round.FIRST)
    assert state.remaining() == [C]
    assert state.untried_suspects() == [A, B]
    state.add(outcome(ended=(ended(A),)), Round.FIRST)
    state.blame(died(B), Round.FIRST)
    assert state.untried_suspects() == []
    assert judge(A, state.tests[A]).verdict is TestVerdict.PASSED
    assert judge(B, state.tests[B]).verdict is TestVerdict.CRASHED


def test_broken_file_is_recorded_once_and_may_recover() -> None:
    state = PassState()
    for _ in range(2):
        state.add(outcome(None, broken=(died("bad.py"), died("bad.py"))), Round.FIRST)
    assert list(state.broken) == ["bad.py"]
    assert len(state.files["bad.py"]) == 1
    assert state.chosen is None
    state.add(outcome([A], files=(ended("odd.py", "failed"),)), Round.FIRST)
    state.add(
        outcome([A], files=(ended("odd.py", "failed"),), ended=(ended(A),)), Round.FIRST
    )
    assert [item.ending for item in state.files["odd.py"]] == [Ending.FAILED]
    state.recovered("odd.py")
    assert {test: judge(test, tries).verdict for test, tries in state.attempts()} == {
        "bad.py": TestVerdict.CRASHED,
        "odd.py": TestVerdict.FLAKY,
        A: TestVerdict.PASSED,
    }


def test_tests_of_a_recovered_file_are_chosen() -> None:
    state = PassState()
    state.add(outcome([A, B]), Round.FIRST)
    # A session may collect other tests, such as those with random names.
    state.add(outcome([A, "new.py::x"]), Round.FIRST)
    assert state.remaining() == [A, B]
    state.add(outcome(["new.py::x"]), Round.RETRY)
    assert state.remaining() == [A, B, "new.py::x"]


TESTS = st.sampled_from([A, B, C])
OUTCOMES = st.builds(
    lambda done, fell, unsure: outcome(
        ended=tuple(ended(test, how) for test, how in done.items()),
        died=tuple(died(test, how) for test, how in fell.items()),
        suspects=tuple(died(test) for test in unsure),
    ),
    st.dictionaries(TESTS, st.sampled_from(["passed", "failed", "skipped"])),
    st.dictionaries(TESTS, st.sampled_from([Ending.CRASHED, Ending.HUNG])),
    st.sets(TESTS),
)


@given(st.lists(OUTCOMES, max_size=6))
def test_every_chosen_test_is_remaining_suspected_or_tried(
    outcomes: list[SessionOutcome],
) -> None:
    state = PassState()
    before = state.progress()
    for told in outcomes:
        state.add(told, Round.FIRST)
        if told.ended or told.died:
            assert state.progress() != before
        before = state.progress()
    if outcomes:
        assert dict(state.attempts()).keys() == {A, B, C}
        for test in (A, B, C):
            assert (
                test in state.remaining() or test in state.suspects or state.tests[test]
            )
