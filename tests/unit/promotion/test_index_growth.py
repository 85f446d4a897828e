"""Costs of operations on an index do not grow with the number of its sets, except for the pages that they change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from benchmarks.made_index import SET_WHEELS, MadeIndex
from benchmarks.promotion_operations import OPERATIONS, OperationCost, measure_operation
from promotion.index.publish import publish
from promotion.storage.keys import ReleasedIndex
from tests.support.memory_bucket import MemoryBucket

SETS, TIMES = 60, 5
RETENTION = [name for name in OPERATIONS if name.startswith("retention")]
ONE_SET = [name for name in OPERATIONS if name not in (*RETENTION, "verify")]
MOST_MORE_BYTES = 1.35
"""status.json names the pages of all projects, so that it grows with their number."""


@dataclass(frozen=True)
class Measured:
    """Costs of operations on an index, the number of keys that each lists, and the size of the newest entry before."""

    costs: Mapping[str, OperationCost]
    entry: int
    listed: Mapping[str, int]


class ListingBucket(MemoryBucket):
    """A bucket that counts the listed keys."""

    listed = 0

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        for key in super().list(prefix, after=after):
            self.listed += 1
            yield key


def measured(sets: int, projects: int, operations: list[str], families: int = 0) -> Measured:
    """Measure operations on an index, and on further families of projects if there are any."""
    bucket, index = ListingBucket(), MadeIndex(ReleasedIndex(index="growth"), projects)
    index.fill(bucket, sets * SET_WHEELS)
    publish(bucket, index.released, everything=True)
    entry = len(bucket.get(index.released.ledger_entry(sets)))
    index.families += families
    costs, listed = dict[str, OperationCost](), dict[str, int]()
    for name in operations:
        before = bucket.listed
        costs[name] = measure_operation(bucket, index, name)
        listed[name] = bucket.listed - before
    return Measured(costs=costs, entry=entry, listed=listed)


@pytest.fixture(scope="module")
def pages_alike() -> tuple[Measured, Measured]:
    """Return a small index and one with more sets, whose projects have as many files."""
    small, large = (measured(SETS * times, 18 * times, ONE_SET) for times in (1, TIMES))
    return small, large


@pytest.fixture(scope="module")
def nights_alike() -> tuple[Measured, Measured]:
    """Return a small index and one with more nights, of one set each."""
    small, large = (measured(SETS * times, 3, [*RETENTION, "verify"]) for times in (1, TIMES))
    return small, large


@pytest.mark.parametrize("operation", ONE_SET)
def test_operation_on_larger_index_costs_the_same(pages_alike: tuple[Measured, Measured], operation: str) -> None:
    small, large = (one.costs[operation] for one in pages_alike)
    assert small.sent
    assert large.requests == small.requests
    assert large.bytes < MOST_MORE_BYTES * small.bytes


def test_ledger_entry_of_larger_index_has_the_same_size(pages_alike: tuple[Measured, Measured]) -> None:
    small, large = pages_alike
    assert large.entry < small.entry + 100


def test_promotion_into_larger_index_lists_as_many_keys(pages_alike: tuple[Measured, Measured]) -> None:
    """Other operations list every entry, and refuse a ledger with a gap."""
    small, large = (one.listed[ONE_SET[0]] for one in pages_alike)
    assert large == small


def test_first_set_of_project_reads_no_other_set() -> None:
    small, large = (measured(SETS * times, 3, ONE_SET[:1], families=7).costs[ONE_SET[0]] for times in (1, TIMES))
    assert large.requests == small.requests


@pytest.mark.parametrize("operation", RETENTION)
def test_retention_reads_only_old_sets(nights_alike: tuple[Measured, Measured], operation: str) -> None:
    small, large = (one.costs[operation] for one in nights_alike)
    assert small.sent
    assert large.requests == small.requests


def test_verification_is_linear(nights_alike: tuple[Measured, Measured]) -> None:
    small, large = (one.costs["verify"] for one in nights_alike)
    assert large.requests < 1.1 * TIMES * small.requests
    assert large.bytes < 1.1 * TIMES * small.bytes
