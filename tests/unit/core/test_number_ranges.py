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
    assert NumberRanges.parse(str(one)) == one


def test_text_of_many_numbers_is_short() -> None:
    numbers = NumberRanges.of(range(1, 22_223)).without((5, 7, 8))
    assert to_json(numbers) == "1-4,6,9-22222"


@pytest.mark.parametrize(
    "text", ["1-5,6", "5-3", "3,1", "1-1", "007", "1,", "x", "123456789"]
)
def test_parse_refuses_other_texts(text: str) -> None:
    with pytest.raises(ValueError, match="is not a list of"):
        NumberRanges.parse(text)
