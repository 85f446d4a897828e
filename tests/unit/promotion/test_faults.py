"""Every write of every operation meets every fault.

Readers notice nothing, and a repeated run completes.

After each single write, readers check the listed, pinned and stored wheels of HTML
pages and of JSON pages.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from pathlib import Path

import pytest

from core.errors import CiBuildError
from promotion.index.audit import verify
from promotion.index.ledger import read_ledger
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import mark, rollback
from promotion.index.publish import publish
from promotion.index.retention import RetentionRule, apply
from promotion.promote import promote
from promotion.stage import stage
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import StagedSet
from tests.support.memory_bucket import Fault, FaultyBucket, KilledError, MemoryBucket
from tests.support.promoting import NOW, POLICY, RELEASED, staged_in
from tests.support.reading import Reader
from tests.support.wheel_sets import make_set, make_wheels, write_set

DAY = timedelta(days=1)
WHY = "wrong numbers"
Act = Callable[[Bucket], object]


@dataclass(frozen=True, kw_only=True)
class World:
    """Sets of three wheels that share a jaxlib.

    Two promoted, a third staged, a fourth in a folder.
    """

    bucket: MemoryBucket
    sets: Sequence[StagedSet]
    reader: Reader
    folder: Path
    temporary: tempfile.TemporaryDirectory[str]

    def promote(self, bucket: Bucket, number: int) -> None:
        promote(
            bucket,
            self.sets[number],
            POLICY,
            now=lambda: NOW + number * DAY,
            allow_lower=True,
        )


@functools.cache
def world() -> World:
    temporary = tempfile.TemporaryDirectory()
    bucket = MemoryBucket()
    folder = Path(temporary.name)
    groups = [
        make_wheels(folder / "w", version=f"0.10.2+rocm7.{n}.0", pythons=("3.12",))
        for n in (2, 3, 4, 5)
    ]
    sets = [staged_in(bucket, folder, group) for group in groups[:3]]
    made = World(
        bucket=bucket,
        sets=sets,
        reader=Reader(chain.from_iterable(groups)),
        folder=write_set(folder / "last", groups[3], make_set(groups[3])),
        temporary=temporary,
    )
    for number in (0, 1):
        made.promote(bucket, number)
    return made


def staging(bucket: Bucket) -> None:
    stage(bucket, world().folder)


def promoting(bucket: Bucket) -> None:
    world().promote(bucket, 2)


def rolling_back(bucket: Bucket) -> None:
    rollback(bucket, RELEASED, to=None, reason=WHY, now=lambda: NOW + 3 * DAY)


def rolling_to(entry: int) -> Act:
    return lambda bucket: rollback(
        bucket, RELEASED, to=entry, reason=WHY, now=lambda: NOW + 4 * DAY
    )


def marking(kind: EntryKind, number: int = 2) -> Act:
    return lambda bucket: mark(
        bucket,
        RELEASED,
        kind,
        [str(number)],
        reason=WHY,
        now=lambda: NOW + 3 * DAY,
    )


def keeping(day: int) -> Act:
    rule = RetentionRule(days=1, grace_days=5)
    return lambda bucket: apply(bucket, RELEASED, rule, now=lambda: NOW + day * DAY)


def rebuilding(bucket: Bucket) -> None:
    publish(bucket, RELEASED, everything=True)


def losing_status(bucket: Bucket) -> None:
    """Damage status.json: an event on the store instead of an operation."""
    assert isinstance(bucket, MemoryBucket)
    bucket.damage(RELEASED.status, b"{")


def losing_a_page(bucket: Bucket) -> None:
    assert isinstance(bucket, MemoryBucket)
    bucket.damage(f"{RELEASED.simple}jax-rocm7-plugin/index.json", b"{")


@dataclass(frozen=True, kw_only=True)
class Operation:
    """The interrupted operation, and the operations before it."""

    act: Act
    before: Sequence[Act] = ()


OPERATIONS = {
    "stage": Operation(act=staging),
    "promote": Operation(act=promoting),
    "rollback": Operation(act=rolling_back),
    "rollback to all": Operation(act=rolling_to(2), before=(rolling_to(0),)),
    "rollback to nothing": Operation(act=rolling_to(0)),
    "yank": Operation(act=marking(EntryKind.YANK)),
    "quarantine": Operation(act=marking(EntryKind.QUARANTINE)),
    "free": Operation(
        act=marking(EntryKind.FREE), before=(marking(EntryKind.QUARANTINE),)
    ),
    "retire": Operation(act=keeping(4)),
    "sweep": Operation(act=keeping(20), before=(keeping(4),)),
    "publish without status": Operation(act=promoting, before=(losing_status,)),
    "publish over a broken page": Operation(act=promoting, before=(losing_a_page,)),
}


def disturbed(
    start: MemoryBucket, act: Act, faults: Sequence[Fault] = tuple(Fault)
) -> Iterator[tuple[str, MemoryBucket]]:
    """Yield, for each write that meets a fault, a description and the resulting bucket.

    Readers check every write once without a fault, and later only the writes from the
    faulty one on.
    """

    def watch(
        bucket: MemoryBucket, what: str, faulty: FaultyBucket | None = None, at: int = 0
    ) -> None:
        def watched(key: str) -> None:
            if faulty is None or faulty.writes > at:
                look(bucket, f"{what}, after {key}")

        bucket.after_write = watched

    good = start.copied()
    watch(good, "as it goes")
    act(good)
    for fault in faults:
        for at in itertools.count():
            what = f"{fault.name} at write {at}"
            bucket = start.copied()
            faulty = FaultyBucket(
                bucket, fault, at, other=functools.partial(act, bucket)
            )
            watch(bucket, what, faulty, at)
            with contextlib.suppress(CiBuildError, KilledError):
                act(faulty)
            if faulty.writes <= at:
                break
            yield what, bucket


def look(bucket: MemoryBucket, when: str) -> None:
    """Fail if a reader would see a problem."""
    problems = [*world().reader.problems(bucket, RELEASED)]
    if problems:
        raise AssertionError(f"{when}: {problems}")


def same(found: MemoryBucket, expected: dict[str, bytes], what: str) -> None:
    objects = found.everything()
    keys = (objects.keys() | expected.keys()) - {
        RELEASED.claim
    }  # contains a random name
    differ = sorted(key for key in keys if objects.get(key) != expected.get(key))
    assert differ == [], what


def expire_claim(bucket: MemoryBucket) -> None:
    """End the claim of a disturbed operation, as its time does."""
    if bucket.head(RELEASED.claim) is not None:
        bucket.damage(RELEASED.claim, b"")


@pytest.mark.parametrize("name", OPERATIONS)
def test_interrupted_operation_completes_when_repeated(name: str) -> None:
    operation = OPERATIONS[name]
    start = world().bucket.copied()
    for earlier in operation.before:
        earlier(start)
    undisturbed = start.copied()
    counting = FaultyBucket(undisturbed, Fault.KILLED, at=-1)
    operation.act(counting)
    expected = undisturbed.everything()
    assert expected != start.everything()
    assert list(verify(undisturbed, RELEASED)) == []
    runs = 0
    for what, bucket in disturbed(start, operation.act):
        look(bucket, what)
        expire_claim(bucket)
        operation.act(bucket)
        same(bucket, expected, what)
        runs += 1
    assert runs >= counting.writes * len(Fault)


PAIRS = {
    "promote, quarantine": (promoting, marking(EntryKind.QUARANTINE, 3)),
    "promote, roll back": (promoting, rolling_to(2)),
    "promote, roll back to nothing": (promoting, rolling_to(0)),
    "promote, rebuild": (promoting, rebuilding),
    "roll back, promote": (rolling_to(0), promoting),
    "roll back, roll forward": (rolling_to(0), rolling_to(2)),
    "quarantine, free": (marking(EntryKind.QUARANTINE), marking(EntryKind.FREE)),
    "retire, roll back": (keeping(4), rolling_to(2)),
    "retire, promote again": (keeping(4), lambda bucket: world().promote(bucket, 0)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_next_operation_repairs_after_kill(name: str) -> None:
    first, second = PAIRS[name]
    start = world().bucket
    for what, bucket in disturbed(start, first, (Fault.REFUSED, Fault.KILLED)):
        before = bucket.everything()
        expire_claim(bucket)
        with contextlib.suppress(CiBuildError):
            second(bucket)
        publish(bucket, RELEASED)
        look(bucket, what)
        strange = [p for p in verify(bucket, RELEASED) if "belongs to no set" not in p]
        assert strange == [], what
        assert before.keys() - bucket.everything().keys() == set(), what


def test_kill_during_repair_is_repaired() -> None:
    start = world().bucket
    for what, bucket in disturbed(start, promoting, (Fault.KILLED,)):
        if len(read_ledger(bucket, RELEASED).entries) < 3:
            continue
        for again, later in disturbed(
            bucket, marking(EntryKind.QUARANTINE, 3), (Fault.KILLED,)
        ):
            publish(later, RELEASED)
            assert list(verify(later, RELEASED)) == [], f"{what}; {again}"
