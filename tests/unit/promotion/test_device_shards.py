"""Tests are dealt out completely, the same way everywhere, and evenly."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import RequestError
from promotion.gates.device.shards import Shard, parse_shard, split

IDS = st.sets(st.builds("tests/{}_test.py::test_{}".format, st.integers(0, 9), st.integers(0, 99)), max_size=200)


@given(IDS, st.data(), st.integers(1, 9))
def test_every_test_is_in_exactly_one_shard(tests: set[str], data: st.DataObject, count: int) -> None:
    known = data.draw(st.dictionaries(st.sampled_from(sorted(tests) or ["x"]), st.floats(0, 600)))
    parts = split(tests, known, count)
    assert sorted(test for part in parts for test in part) == sorted(tests)
    assert len(parts) == count
    shuffled = sorted(tests)
    random.Random(count).shuffle(shuffled)
    assert split(shuffled, dict(reversed(known.items())), count) == parts


@given(st.lists(st.floats(0.01, 60), min_size=1, max_size=300), st.integers(1, 8))
def test_no_shard_takes_longer_than_the_law_allows(seconds: list[float], count: int) -> None:
    known = {f"t.py::test_{n}": took for n, took in enumerate(seconds)}
    longest = max(sum(known[test] for test in part) for part in split(known, known, count))
    # Graham's bound on list scheduling.
    assert longest <= sum(seconds) / count + max(seconds) * (1 - 1 / count) + 1e-6


def test_a_test_that_nobody_measured_is_taken_for_one_of_its_file() -> None:
    known = {"slow.py::a": 10.0, "slow.py::b": 10.0, "quick.py::a": 1.0}
    parts = split([*known, "slow.py::new"], known, 3)
    assert sorted(map(len, parts)) == [1, 1, 2]


def test_shards_are_parsed() -> None:
    assert parse_shard("2/4") == Shard(number=2, count=4)
    assert str(parse_shard("1/1")) == "1/1"


@pytest.mark.parametrize("text", ["", "0/4", "5/4", "1/0", "a/b", "1", "1/2/3", "-1/2"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        parse_shard(text)
