"""Promotion.

Only passed sets, byte for byte, in an order that is consistent at every instant, once.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from core.digests import sha256_of
from core.errors import BucketError, PromotionBlockedError
from core.model import Tier
from promotion import stage as promotion_stage
from promotion.evidence.evidence import record
from promotion.index.audit import repair, verify
from promotion.index.ledger import read_ledger
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import mark, rollback
from promotion.index.publish import publish
from promotion.index.retention import RetentionRule, apply
from promotion.promote import Promotion, promote
from promotion.stage import read_staged, stage
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.promoting import (
    NOW,
    POLICY,
    RELEASED,
    TIER,
    go,
    objects,
    offered,
    staged_in,
    staged_releases,
)
from tests.support.wheel_sets import (
    SetWheel,
    make_set,
    make_wheels,
    passing_evidence,
    write_set,
)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[SetWheel]:
    return make_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def next_wheels(tmp_path_factory: pytest.TempPathFactory) -> list[SetWheel]:
    return make_wheels(tmp_path_factory.mktemp("wheels"), version="0.10.2+rocm7.3.0")


@pytest.fixture
def staged(bucket: DirBucket, tmp_path: Path, wheels: list[SetWheel]) -> StagedSet:
    return staged_in(bucket, tmp_path, wheels)


def test_promote_publishes_staged_bytes(
    bucket: DirBucket, staged: StagedSet, wheels: list[SetWheel]
) -> None:
    done = go(bucket, staged)
    assert done.new
    assert done.simple == "v2/multi-arch/simple/"
    seen = offered(bucket)
    assert set(seen) == {wheel.wheel.filename for wheel in wheels}
    for wheel in wheels:
        assert (
            bucket.get(RELEASED.wheel(wheel.wheel.name, wheel.wheel.filename))
            == wheel.data
        )
        file = seen[wheel.wheel.filename]
        assert file["hashes"]["sha256"] == hashlib.sha256(wheel.data).hexdigest()
        assert file["size"] == len(wheel.data)
        assert file["upload-time"] == "2026-01-02T03:04:05Z"
        assert file["_set"] == staged.digest
        assert file["_tiers"] == {"gfx942": TIER, "gfx950": TIER}
        metadata = bucket.get(
            RELEASED.wheel(wheel.wheel.name, wheel.wheel.filename) + ".metadata"
        )
        assert file["core-metadata"]["sha256"] == sha256_of(metadata)


def test_promote_copies_evidence(bucket: DirBucket, staged: StagedSet) -> None:
    entry = go(bucket, staged).promoted
    names = [name for name in entry.files if name.startswith("evidence/")]
    assert len(names) == len(passing_evidence(read_staged(bucket, staged)))
    for name in (
        *names,
        "wheels.json",
        "SHA256SUMS",
        "constraints.txt",
        "debug/library.debug",
    ):
        assert bucket.get(RELEASED.set_file(staged.digest, name)) == bucket.get(
            staged.file(name)
        )
        assert entry.files[name] == sha256_of(bucket.get(staged.file(name)))


def test_promote_records_tier_of_each_target(
    bucket: DirBucket, tmp_path: Path, wheels: list[SetWheel]
) -> None:
    staged = stage(bucket, write_set(tmp_path / "set", wheels, make_set(wheels)))
    rules = {name: rule for name, rule in POLICY.gates.items() if name != "compile"}
    device = replace(rules["coverage"], tier=Tier.DEVICE, per="tier")
    policy = replace(
        POLICY, gates={**rules, "device": device}, tiers={"gfx942": Tier.DEVICE}
    )
    for evidence in passing_evidence(read_staged(bucket, staged), policy):
        record(bucket, staged, evidence)
    entry = promote(bucket, staged, policy, now=lambda: NOW).promoted
    assert entry.tiers == {"gfx942": "device", "gfx950": "structure"}
    assert [*entry.policy["tested"]] == ["gfx942"]
    assert [file["_tiers"] for file in offered(bucket).values()] == [
        dict(entry.tiers)
    ] * len(wheels)
    page = bucket.get(f"{RELEASED.simple}jaxlib/index.html").decode()
    assert "gfx942 device, gfx950 structure" in page


def test_promote_twice_changes_nothing(bucket: DirBucket, staged: StagedSet) -> None:
    go(bucket, staged)
    before = {key: bucket.path(key).stat().st_mtime_ns for key in bucket.list("v2/")}
    again = go(bucket, staged)
    assert not again.new
    assert again.pages == ()
    assert {
        key: bucket.path(key).stat().st_mtime_ns for key in bucket.list("v2/")
    } == before


def test_promote_adds_second_set(
    bucket: DirBucket,
    staged: StagedSet,
    tmp_path: Path,
    wheels: list[SetWheel],
    next_wheels: list[SetWheel],
) -> None:
    first = go(bucket, staged).entry
    jaxlib = bucket.get(f"{RELEASED.simple}jaxlib/index.html")
    second = go(bucket, staged_in(bucket, tmp_path, next_wheels)).entry
    assert second.number == 2
    assert second.previous == sha256_of(bucket.get(RELEASED.ledger_entry(1)))
    assert read_ledger(bucket, RELEASED).entries == (first, second)
    assert set(offered(bucket)) == {
        wheel.wheel.filename for wheel in (*wheels, *next_wheels)
    }
    assert bucket.get(f"{RELEASED.simple}jaxlib/index.html") == jaxlib, (
        "both sets hold the same jaxlib"
    )
    status = json.loads(bucket.get(RELEASED.status))
    assert [s["digest"] for s in status["sets"]] == [
        e.promoted.set_digest for e in (second, first) if e.promoted
    ]


# Blocking problems


def unmet(bucket: DirBucket, staged: StagedSet) -> str:
    """Return the message of a refused promotion, after checking that nothing was released."""
    before = objects(bucket)
    with pytest.raises(PromotionBlockedError) as caught:
        go(bucket, staged)
    assert objects(bucket) == before
    return str(caught.value)


def swap(bucket: DirBucket, key: str, data: bytes) -> None:
    bucket.path(key).unlink()
    bucket.path(key).write_bytes(data)


def test_promote_names_every_changed_and_missing_file(
    bucket: DirBucket, staged: StagedSet, wheels: list[SetWheel]
) -> None:
    wheel, other, missing = (one.wheel.filename for one in wheels[:3])
    changed = (wheel, f"{other}.metadata", "constraints.txt")
    for name in changed:
        swap(bucket, staged.file(name), b"other")
    for name in ("SHA256SUMS", missing):
        bucket.path(staged.file(name)).unlink()
    message = unmet(bucket, staged)
    assert all(f"{name} has sha256" in message for name in changed)
    for name in ("SHA256SUMS", missing):
        assert f"{name} is not in the bucket" in message


def test_promote_refuses_wrong_sizes(
    bucket: DirBucket,
    tmp_path: Path,
    wheels: list[SetWheel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The digest of the set covers the sizes, so that only its builder can record wrong ones."""
    true = make_set(wheels)
    first = replace(wheels[0].wheel, size=wheels[0].wheel.size + 1)
    lie = replace(
        true,
        wheels=(first, *true.wheels[1:]),
        file_sizes={**true.file_sizes, "constraints.txt": 7},
    )
    monkeypatch.setattr(promotion_stage, "file_problems", lambda *_: {})
    message = unmet(bucket, stage(bucket, write_set(tmp_path / "set", wheels, lie)))
    assert (
        f"{first.filename} has {first.size - 1} bytes; wheels.json records {first.size}."
        in message
    )
    assert "bytes; wheels.json records 7." in message


def test_promote_refuses_damaged_copy(
    bucket: DirBucket,
    staged: StagedSet,
    wheels: list[SetWheel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = DirBucket.copy
    name = wheels[0].wheel.filename

    def damage(
        self: DirBucket,
        source: str,
        target: str,
        *,
        sha256: str,
    ) -> bool:
        done = copy(self, source, target, sha256=sha256)
        if target.endswith(name):
            swap(bucket, target, wheels[0].data[:-1] + b"?")
        return done

    monkeypatch.setattr(DirBucket, "copy", damage)
    with pytest.raises(BucketError, match=r"v2/.* has sha256"):
        go(bucket, staged)
    assert not [*bucket.list(RELEASED.ledger)]
    assert not offered(bucket)


# A ledger that cannot be trusted


@pytest.mark.parametrize("name", ["00000001.json", "notes.txt"])
def test_gap_and_foreign_file_stop_everything(
    bucket: DirBucket,
    staged: StagedSet,
    tmp_path: Path,
    next_wheels: list[SetWheel],
    name: str,
) -> None:
    go(bucket, staged)
    go(bucket, staged_in(bucket, tmp_path, next_wheels))
    path = bucket.path(RELEASED.ledger + name)
    if path.exists():
        path.unlink()
    else:
        path.write_bytes(b"{}")
    before = objects(bucket)
    for act in (
        lambda: mark(bucket, RELEASED, EntryKind.PIN, ["2"], reason="x"),
        lambda: rollback(bucket, RELEASED, to=1, reason="x"),
        lambda: publish(bucket, RELEASED, everything=True),
        lambda: repair(bucket, RELEASED),
        lambda: read_ledger(bucket, RELEASED),
    ):
        with pytest.raises(BucketError, match=name):
            act()
    assert [
        f"{RELEASED.ledger}{name}" in problem for problem in verify(bucket, RELEASED)
    ] == [True]
    bucket.path(RELEASED.status).unlink()
    with pytest.raises(BucketError, match=name):
        publish(bucket, RELEASED)
    assert objects(bucket) == {
        key: data for key, data in before.items() if key != RELEASED.status
    }


@pytest.mark.parametrize("data", [b"", b"[]", None])
def test_damaged_last_entry_stops_everything(
    bucket: DirBucket,
    staged: StagedSet,
    tmp_path: Path,
    next_wheels: list[SetWheel],
    data: bytes | None,
) -> None:
    go(bucket, staged)
    other = staged_in(bucket, tmp_path, next_wheels)
    key = RELEASED.ledger_entry(1)
    bucket.path(key).unlink()
    if data is not None:
        bucket.path(key).write_bytes(data)
    before = objects(bucket)
    for act in (
        lambda: go(bucket, other),
        lambda: rollback(bucket, RELEASED, to=0, reason="x"),
        lambda: apply(bucket, RELEASED, RetentionRule(days=1)),
        lambda: publish(bucket, RELEASED),
    ):
        with pytest.raises(BucketError, match=key):
            act()
    assert objects(bucket) == before


# Crashes and races


class OvertakenBucket(DirBucket):
    """A bucket that calls a function before one of its accesses."""

    def __init__(
        self,
        root: Path,
        *,
        at: int,
        other: Callable[[], object],
    ) -> None:
        super().__init__(root)
        self._accesses = count()
        self._at = at
        self._other = other
        self._inside = False

    def _overtake(self) -> None:
        if not self._inside and next(self._accesses) == self._at:
            self._other()

    def head(self, key: str) -> Any:
        self._overtake()
        return super().head(key)

    def read(self, key: str) -> Any:
        self._overtake()
        return super().read(key)

    def put_if_match(
        self,
        key: str,
        data: bytes,
        *,
        etag: str | None,
    ) -> Any:
        self._overtake()
        self._inside = True  # inspects the object while the lock is held
        try:
            return super().put_if_match(key, data, etag=etag)
        finally:
            self._inside = False


def test_overtaken_publisher_writes_no_old_page(tmp_path: Path) -> None:
    before = DirBucket(tmp_path / "before")
    sets = staged_releases(before, tmp_path, 2, 3)
    go(before, sets[0])
    for key in before.list(RELEASED.root):
        if "/simple/" in key or key == RELEASED.status:
            before.path(
                key
            ).unlink()  # as if the first promoter had stopped after its ledger entry
    expected: dict[str, bytes] = {}
    for number in count():
        bucket = DirBucket(shutil.copytree(before.root, tmp_path / "bucket"))
        overtaken: list[Promotion] = []

        def other(
            bucket: DirBucket = bucket, overtaken: list[Promotion] = overtaken
        ) -> None:
            overtaken.append(go(bucket, sets[1]))

        publish(OvertakenBucket(bucket.root, at=number, other=other), RELEASED)
        if not overtaken:
            assert number >= 15
            return
        expected = expected or objects(bucket)
        assert len(offered(bucket)) == 5
        assert objects(bucket) == expected, f"overtaken at access {number}"
        shutil.rmtree(bucket.root)
