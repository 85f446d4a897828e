"""Sets of numbers as ranges behave like sets, and have one text each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.model import to_json
from core.number_ranges import NumberRanges

NUMBERS = st.sets(st.integers(0, 40))


@given(first=NUMBERS, second=NUMBERS)
def test_ranges_behave_like_sets(first: set[int], second: set[int]) -> None:
    one = NumberRanges.of(first)
    other = NumberRanges.of(second)
    assert [*one] == sorted(first)
    assert len(one) == len(first)
    assert {number for number in range(-1, 42) if number in one} == first
    assert {*(one ^ other)} == first ^ second
    assert one.plus(second) == NumberRanges.of(first | second)
    assert one.without(second) == NumberRanges.of(first - second)


def test_json_of_many_numbers_is_short() -> None:
    numbers = NumberRanges.of(range(1, 22_223)).without((5, 7, 8))
    assert to_json(numbers) == {"bounds": [1, 5, 6, 7, 9, 22_223]}


@pytest.mark.parametrize(
    "bounds",
    [
        (1,),
        (3, 1),
        (1, 1),
        (1, 3, 3, 5),
    ],
)
def test_other_bounds_are_refused(bounds: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="not the bounds"):
        NumberRanges(bounds)
