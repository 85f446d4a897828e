"""The claim of an index.

One holder at a time, killed holders block nobody for long, and late ones write nothing.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest

from core.errors import BusyError, CiBuildError
from promotion.index.audit import repair, verify
from promotion.index.claim import TERM, Claim, claimed
from promotion.index.ledger import read_ledger
from promotion.index.publish import publish
from promotion.index.retention import RetentionRule, apply
from promotion.promote import promote
from promotion.storage import concurrency
from promotion.storage.bucket import Bucket
from promotion.storage.directory_bucket import DirBucket
from tests.support.memory_bucket import Fault, FaultyBucket, KilledError, MemoryBucket
from tests.support.promoting import (
    NOW,
    POLICY,
    RELEASED,
    Scene,
    objects,
)

DAY = timedelta(days=1)
LATER = NOW + TERM + timedelta(minutes=1)


class DeadBucket(FaultyBucket):
    """A bucket whose user is killed at one of its writes.

    It writes nothing afterwards, not even in `finally`.
    """

    def _write(self, write: Callable[[], Any]) -> Any:
        if self.writes > self._at:
            raise KilledError
        return super()._write(write)


def problems(bucket: Bucket) -> list[str]:
    return [*verify(bucket, RELEASED)]


# One holder


@pytest.mark.parametrize("expired", [False, True])
def test_take_at_the_same_time_succeeds_once(expired: bool, bucket: DirBucket) -> None:
    if expired:
        Claim(bucket, RELEASED, "repair", now=lambda: NOW).take()
    together = threading.Barrier(8)

    def take(_: int) -> bool:
        claim = Claim(bucket, RELEASED, "promotion", now=lambda: LATER)
        together.wait(60)
        try:
            claim.take()
        except BusyError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(take, range(8))) == [False] * 7 + [True]


def test_claim_excludes_promotion_repair_and_sweep(scene: Scene) -> None:
    bucket = scene.start.copied()
    with pytest.raises(KilledError):
        scene.promote(FaultyBucket(bucket, Fault.KILLED, 5), 1)
    rule = RetentionRule(days=0, keep_newest=0, grace_days=0)
    apply(bucket, RELEASED, rule, now=lambda: NOW + DAY)
    before = objects(bucket)
    now = NOW + 2 * DAY
    with claimed(bucket, RELEASED, "repair", now=lambda: now):
        for act in (
            lambda: scene.promote(bucket, 1, now),
            lambda: repair(bucket, RELEASED, now=lambda: now),
            lambda: apply(bucket, RELEASED, rule, now=lambda: now),
        ):
            with pytest.raises(BusyError, match="Another repair"):
                act()
    assert objects(bucket) == before
    scene.promote(bucket, 1, now)
    assert problems(bucket) == []


def test_promotion_of_offered_set_needs_no_claim(scene: Scene) -> None:
    bucket = scene.start.copied()
    with claimed(bucket, RELEASED, "repair", now=lambda: NOW):
        scene.promote(bucket, 0)


def test_holder_that_confirms_keeps_its_claim() -> None:
    bucket = MemoryBucket()
    time = [NOW]
    claim = Claim(bucket, RELEASED, "promotion", now=lambda: time[0])
    claim.take()
    for _ in range(5):
        time[0] += TERM * 0.7
        claim.confirm()
        with pytest.raises(BusyError):
            Claim(bucket, RELEASED, "repair", now=lambda: time[0]).take()
    claim.release()
    Claim(bucket, RELEASED, "repair", now=lambda: time[0]).take()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"holder": "promotion x"}',
    ],
)
def test_damaged_claim_blocks_nobody(scene: Scene, data: bytes) -> None:
    bucket = scene.start.copied()
    bucket.damage(RELEASED.claim, data)
    scene.promote(bucket, 1)
    assert problems(bucket) == []


@pytest.mark.parametrize("at", range(3))
def test_holder_recognises_its_own_repeated_write(scene: Scene, at: int) -> None:
    """A client sends a request again whose response was lost."""
    bucket = FaultyBucket(scene.start.copied(), Fault.TWICE, at)
    claim = Claim(bucket, RELEASED, "promotion", now=lambda: NOW)
    claim.take()
    claim.renew()
    claim.release()
    assert bucket.writes == 3
    Claim(bucket, RELEASED, "repair", now=lambda: NOW).take()


# Killed holders


def test_killed_holders_block_nobody_after_their_term(scene: Scene) -> None:
    bucket = scene.start.copied()
    with pytest.raises(KilledError):
        scene.promote(DeadBucket(bucket, Fault.KILLED, 9), 1)
    with pytest.raises(BusyError):
        scene.promote(bucket, 2, NOW + TERM / 2)
    with pytest.raises(KilledError):
        repair(DeadBucket(bucket, Fault.KILLED, 3), RELEASED, now=lambda: LATER)
    with pytest.raises(BusyError):
        scene.promote(bucket, 2, LATER)
    scene.promote(bucket, 2, LATER + DAY)
    repair(bucket, RELEASED, now=lambda: LATER + DAY)
    assert problems(bucket) == []


# Late holders: they stop after one of their writes, others take the claim, and they go
# on


Act = Callable[[Bucket, Callable[[], datetime]], object]


class OneThread:
    """A pool of threads that calls functions one after another.

    A process that stops, stops with all its threads.
    """

    def __init__(self, _: int) -> None:
        self.map = map

    def __enter__(self) -> OneThread:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "ThreadPoolExecutor", OneThread)


class StoppingBucket(MemoryBucket):
    """A bucket whose user stops after one of its writes until others are done.

    Attributes:
        time: the user's clock.
        resumed: content of the bucket when the user goes on; None if it never stopped.
    """

    def __init__(
        self, start: MemoryBucket, at: int, other: Act, *, clock_runs: bool
    ) -> None:
        super().__init__(self._stop)
        self._objects = dict(start._objects)
        self._writes = 0
        self._at = at
        self._other = other
        self._clock_runs = clock_runs
        self.time = NOW
        self.resumed: dict[str, bytes] | None = None

    def _stop(self, _: str) -> None:
        self._writes += 1
        if self._writes - 1 == self._at:
            self._other(self, lambda: LATER)
            self.resumed = self.everything()
            if self._clock_runs:
                self.time = LATER


def late(
    start: MemoryBucket,
    act: Act,
    other: Act,
    *,
    clock_runs: bool = True,
) -> int:
    """Overtake `act` after each of its writes; return the number of runs in which it had to end.

    Args:
        clock_runs: whether the holder's clock shows that it is late.
    """
    ended = 0
    for at in itertools.count():
        bucket = StoppingBucket(start, at, other, clock_runs=clock_runs)
        try:
            act(bucket, lambda bucket=bucket: bucket.time)  # type: ignore[misc]
        except CiBuildError:
            ended += 1
            if clock_runs:
                assert bucket.everything() == bucket.resumed, (
                    f"written after write {at}"
                )
        if bucket.resumed is None:
            return ended
        publish(bucket, RELEASED)
        if (
            not clock_runs
        ):  # the copies of the late promotion remain, but no entry names them
            repair(bucket, RELEASED, now=lambda: LATER + TERM)
        assert problems(bucket) == [], f"overtaken after write {at}"
    raise AssertionError


def promoting(scene: Scene, number: int) -> Act:
    return lambda bucket, now: promote(
        bucket, scene.sets[number], POLICY, now=now, allow_lower=True
    )


def repairing(bucket: Bucket, now: Callable[[], datetime]) -> None:
    repair(bucket, RELEASED, now=now)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("clock_runs", [True, False])
def test_late_promotion_writes_nothing_after_repair(
    scene: Scene, clock_runs: bool
) -> None:
    """Without a running clock, the ledger alone refuses its entry."""
    assert late(scene.start, promoting(scene, 1), repairing, clock_runs=clock_runs) > 10


@pytest.mark.usefixtures("one_thread")
def test_late_promotion_writes_nothing_after_another(scene: Scene) -> None:
    def other(bucket: Bucket, now: Callable[[], datetime]) -> None:
        promoting(scene, 2)(bucket, now)
        repairing(bucket, now)

    assert late(scene.start, promoting(scene, 1), other) > 10


@pytest.mark.usefixtures("one_thread")
def test_late_repair_writes_nothing_after_promotion(scene: Scene) -> None:
    start = scene.start.copied()
    with pytest.raises(KilledError):
        scene.promote(FaultyBucket(start, Fault.KILLED, 9), 1)
    assert late(start, repairing, promoting(scene, 1)) > 5


def test_late_entry_is_refused_between_claim_and_ledger(scene: Scene) -> None:
    """The holder stops between the renewal of its claim and its ledger entry.

    The number of the entry is taken.
    """
    bucket = scene.start.copied()

    class Stopping(FaultyBucket):
        def put_if_absent(
            self,
            key: str,
            data: Any,
            *,
            sha256: str,
        ) -> bool:
            if key == RELEASED.ledger_entry(2) and not done:
                done.append(key)
                repair(bucket, RELEASED, now=lambda: LATER)
            return super().put_if_absent(key, data, sha256=sha256)

    done: list[str] = []
    with pytest.raises(BusyError, match="has taken the claim"):
        scene.promote(Stopping(bucket, Fault.KILLED, -1), 1)
    kinds = [str(entry.kind) for entry in read_ledger(bucket, RELEASED).entries]
    assert done == [RELEASED.ledger_entry(2)]
    assert kinds == ["promote", "repair"]
    assert problems(bucket) == []
