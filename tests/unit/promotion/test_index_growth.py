"""Costs of index operations do not grow with the number of sets, except for pages."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from benchmarks.counting import Traffic
from benchmarks.made_index import SET_WHEELS, MadeIndex
from benchmarks.promotion_operations import OPERATIONS, measure_operation
from promotion.index.publish import publish
from promotion.storage.object_keys import ReleasedIndex
from tests.support.memory_bucket import MemoryBucket

SETS = 60
TIMES = 5
RETENTION = [name for name in OPERATIONS if name.startswith("retention")]
ONE_SET = [name for name in OPERATIONS if name not in (*RETENTION, "verify")]
MOST_MORE_BYTES = 1.35
"""status.json names the pages of all projects, so that it grows with their number."""


Costs = Mapping[str, Traffic]


def measured(sets: int, projects: int, operations: list[str]) -> Costs:
    """Measure operations on an index."""
    bucket = MemoryBucket()
    index = MadeIndex(ReleasedIndex(index="growth"), projects)
    index.fill(bucket, sets * SET_WHEELS)
    publish(bucket, index.released, everything=True)
    return {name: measure_operation(bucket, index, name) for name in operations}


@pytest.fixture(scope="module")
def pages_alike() -> tuple[Costs, Costs]:
    """Return a small index and one with more sets, whose projects have as many files."""
    small, large = (measured(SETS * times, 18 * times, ONE_SET) for times in (1, TIMES))
    return small, large


@pytest.fixture(scope="module")
def nights_alike() -> tuple[Costs, Costs]:
    """Return a small index and one with more nights, of one set each."""
    small, large = (measured(SETS * times, 3, RETENTION) for times in (1, TIMES))
    return small, large


@pytest.mark.parametrize("operation", ONE_SET)
def test_operation_on_larger_index_costs_the_same(
    pages_alike: tuple[Costs, Costs], operation: str
) -> None:
    small, large = (one[operation] for one in pages_alike)
    assert small.sent
    assert large.requests == small.requests
    total = small.sent + small.received
    assert large.sent + large.received < MOST_MORE_BYTES * total


@pytest.mark.parametrize("operation", RETENTION)
def test_retention_reads_only_old_sets(
    nights_alike: tuple[Costs, Costs], operation: str
) -> None:
    small, large = (one[operation] for one in nights_alike)
    assert small.sent
    assert large.requests == small.requests
