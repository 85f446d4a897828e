"""Progress of a pass: remaining tests, suspects, reruns and blame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from promotion.gates.device.results import Attempt, Ending, Round
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
