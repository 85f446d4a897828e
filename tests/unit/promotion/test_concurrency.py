"""Concurrent requests: bounded, in order, and none is started after a failure."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from promotion.promote import promote
from promotion.storage.concurrency import MAX_REQUESTS, map_concurrently
from tests.support.memory_bucket import KilledError, MemoryBucket
from tests.support.promoting import NOW, POLICY, staged_in
from tests.support.wheel_sets import make_wheels

PATIENCE = 60
"""Seconds after which something hangs; nothing is measured with it."""


def test_map_concurrently_limits_calls() -> None:
    together = threading.Barrier(MAX_REQUESTS)
    lock = threading.Lock()
    running = most = 0

    def call(item: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(PATIENCE)
        with lock:
            running -= 1
        return item

    items = range(3 * MAX_REQUESTS)
    assert map_concurrently(call, items) == tuple(items)
    assert most == MAX_REQUESTS


@pytest.mark.parametrize("kind", [ValueError, KilledError, KeyboardInterrupt])
def test_map_concurrently_stops_after_failure(kind: type[BaseException]) -> None:
    begun: list[int] = []
    failed = threading.Event()

    def call(item: int) -> None:
        begun.append(item)
        if item == 1:
            failed.set()
            raise kind
        failed.wait(PATIENCE)

    with pytest.raises(kind):
        map_concurrently(call, range(100 * MAX_REQUESTS))
    assert len(begun) < 100 * MAX_REQUESTS


def test_map_concurrently_raises_first_failure_in_order() -> None:
    second = threading.Event()

    def call(item: int) -> None:
        if item == 0:
            second.wait(PATIENCE)
        second.set()
        raise ValueError(item)

    with pytest.raises(ValueError, match="0"):
        map_concurrently(call, range(2))


class MeetingBucket(MemoryBucket):
    """A bucket whose copies end only after another starts, so sequential ones hang."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = threading.Barrier(2)
        self.copies = 0

    def copy(
        self,
        source: str,
        target: str,
        *,
        sha256: str,
    ) -> bool:
        self.copies += 1
        if self.copies in (1, 2):
            self.pair.wait(PATIENCE)
        return super().copy(source, target, sha256=sha256)


def test_promote_copies_concurrently(tmp_path: Path) -> None:
    bucket = MeetingBucket()
    staged = staged_in(bucket, tmp_path, make_wheels(tmp_path / "w", pythons=("3.12",)))
    promote(bucket, staged, POLICY, now=lambda: NOW)
    assert bucket.copies > 3
