"""Errors for damaged, truncated and unknown input and for a full disk."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from core.errors import CiBuildError
from core.model import Tier
from promotion.evidence.evidence import record
from promotion.index.audit import verify
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import history, mark, rollback
from promotion.index.publish import publish, read_head
from promotion.index.retention import RetentionRule, apply
from promotion.index.set_lookup import find_set
from promotion.policy.policy import POLICY_FILE, load_policy
from promotion.promote import promote
from promotion.stage import stage
from promotion.storage import directory_bucket
from promotion.storage.bucket import Bucket
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.keys import StagedSet
from tests.support.memory_bucket import MemoryBucket
from tests.support.promoting import NOW, POLICY, RELEASED, go, objects, offered, staged_in
from tests.support.reading import Reader
from tests.support.wheel_sets import SetWheel, make_set, make_wheels, passing_evidence, write_set

ME: dict[str, Any] = {"actor": "tests", "now": lambda: NOW}
BROKEN = [b"", b"{", b"null", b"[]", b'"text"', b"\x00\xff\xfe", b'{"schema": 99}', b'{"schema": 2}']


def wheels_of(folder: Path, minor: int = 2) -> list[SetWheel]:
    return make_wheels(folder / "w", version=f"0.10.2+rocm7.{minor}.0", pythons=("3.12",))


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
def staged(bucket: MemoryBucket, tmp_path: Path) -> StagedSet:
    return staged_in(bucket, tmp_path / "sets", wheels_of(tmp_path))


def refused(bucket: MemoryBucket, act: Callable[[], object]) -> str:
    """Return the error of an action, after checking that it has a hint and that nothing was changed."""
    before = bucket.everything()
    with pytest.raises(CiBuildError) as caught:
        act()
    assert bucket.everything() == before
    assert caught.value.hint
    return caught.value.message


def test_bad_evidence_is_reported(bucket: MemoryBucket, staged: StagedSet) -> None:
    key = next(key for key in bucket.list(staged.evidence) if key.endswith(".json"))
    good = bucket.get(key)
    for data in (*BROKEN, good[: len(good) // 2], json.dumps({**json.loads(good), "surprise": 1}).encode()):
        bucket.damage(key, data)
        assert key in refused(bucket, lambda: go(bucket, staged))
    for name in ("set_digest", "gate", "target", "tier", "outcome", "started", "ended", "machine", "counts"):
        bucket.damage(key, json.dumps({k: v for k, v in json.loads(good).items() if k != name}).encode())
        assert key in refused(bucket, lambda: go(bucket, staged)), name
    bucket.damage(key, good)
    assert go(bucket, staged).new


@pytest.mark.parametrize("name", ["wheels.json", "SHA256SUMS"])
def test_bad_staged_file_is_reported(bucket: MemoryBucket, staged: StagedSet, name: str) -> None:
    good = bucket.get(staged.file(name))
    for data in (*BROKEN[1:], good[: len(good) // 2], good[:-30]):
        bucket.damage(staged.file(name), data)
        refused(bucket, lambda: go(bucket, staged))
    bucket.damage(staged.file(name), good)
    assert go(bucket, staged).new


def test_bad_set_folder_is_reported(bucket: MemoryBucket, tmp_path: Path) -> None:
    wheels = wheels_of(tmp_path)
    folder = write_set(tmp_path / "set", wheels, make_set(wheels))
    path = folder / "wheels.json"
    good = path.read_bytes()
    for data in (*BROKEN, good[: len(good) // 2], json.dumps({**json.loads(good), "surprise": 1}).encode()):
        path.write_bytes(data)
        refused(bucket, lambda: stage(bucket, folder))
    path.unlink()
    refused(bucket, lambda: stage(bucket, folder))


def test_bad_last_ledger_entry_is_reported(bucket: MemoryBucket, staged: StagedSet, tmp_path: Path) -> None:
    go(bucket, staged)
    other = staged_in(bucket, tmp_path / "sets", wheels_of(tmp_path, 3))
    key = RELEASED.ledger_entry(1)
    good = bucket.get(key)
    for data in (*BROKEN, good[: len(good) // 2], json.dumps({**json.loads(good), "surprise": 1}).encode()):
        bucket.damage(key, data)
        assert key in refused(bucket, lambda: go(bucket, other))
        assert key in refused(bucket, lambda: rollback(bucket, RELEASED, to=0, reason="x", **ME))
        assert any(key in line for line in verify(bucket, RELEASED))
    bucket.damage(key, None)
    for act in (
        lambda: go(bucket, other),
        lambda: rollback(bucket, RELEASED, to=0, reason="x", **ME),
        lambda: mark(bucket, RELEASED, EntryKind.YANK, ["1"], reason="x", **ME),
        lambda: apply(bucket, RELEASED, RetentionRule(days=1), **ME),
        lambda: publish(bucket, RELEASED),
        lambda: publish(bucket, RELEASED, everything=True),
    ):
        assert f"{key}, named in {RELEASED.status}, is missing" in refused(bucket, act)


@pytest.mark.parametrize("hole", [1, 2])
def test_ledger_gap_is_reported(bucket: MemoryBucket, staged: StagedSet, tmp_path: Path, hole: int) -> None:
    go(bucket, staged)
    for minor in (3, 4):
        go(bucket, staged_in(bucket, tmp_path / "sets", wheels_of(tmp_path, minor)))
    key = RELEASED.ledger_entry(hole)
    bucket.damage(key, None)
    for act in (
        lambda: rollback(bucket, RELEASED, to=hole, reason="x", **ME),
        lambda: mark(bucket, RELEASED, EntryKind.PIN, ["3"], reason="x", **ME),
        lambda: apply(bucket, RELEASED, RetentionRule(days=1), **ME),
        lambda: publish(bucket, RELEASED, everything=True),
        lambda: list(history(bucket, RELEASED)),
    ):
        assert key in refused(bucket, act)
    assert any(key in line for line in verify(bucket, RELEASED))
    bucket.damage(RELEASED.status, None)
    assert key in refused(bucket, lambda: publish(bucket, RELEASED))


def test_set_is_found_if_status_lacks_projects_with_pages(bucket: MemoryBucket, staged: StagedSet) -> None:
    go(bucket, staged)
    status = json.loads(bucket.get(RELEASED.status))
    assert status["pages"]
    bucket.damage(RELEASED.status, json.dumps({**status, "pages": {}}).encode())
    head, entries = read_head(bucket, RELEASED)
    assert find_set(bucket, RELEASED, staged.digest, head.state, entries) == 1


def test_wrong_clocks_are_reported(bucket: MemoryBucket, tmp_path: Path) -> None:
    wheel_set = make_set(wheels_of(tmp_path))
    staged = stage(bucket, write_set(tmp_path / "set", wheels_of(tmp_path), wheel_set))
    for evidence in passing_evidence(wheel_set):
        record(bucket, staged, replace(evidence, started="2026-01-02T04:00:00Z", ended="2026-01-02T05:00:00Z"))
    assert "a clock is wrong" in refused(bucket, lambda: go(bucket, staged))
    assert promote(bucket, staged, POLICY, now=lambda: NOW.replace(hour=6)).new


def test_invalid_times_are_reported(bucket: MemoryBucket, staged: StagedSet, tmp_path: Path) -> None:
    evidence = passing_evidence(make_set(wheels_of(tmp_path)))[0]
    for ended in ("", "yesterday", "2026-13-40T00:00:00Z", "2026-01-02T03:04:06+01:00"):
        fresh = bucket.copied()
        record(fresh, staged, replace(evidence, ended=ended, tier=Tier.STRUCTURE))
        assert "invalid times" in refused(fresh, lambda fresh=fresh: go(fresh, staged))  # type: ignore[misc]


@pytest.mark.parametrize("line", ["surprise = 1\n", "[local]\n", "[local.gates.inspection]\ntier = 3\n", "= \n"])
def test_bad_policy_is_reported(tmp_path: Path, line: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY_FILE.read_text().replace("[local]\n", f"[local]\n{line}", 1))
    with pytest.raises(CiBuildError) as caught:
        load_policy("multi-arch", file=path)
    assert str(path) in caught.value.message
    assert caught.value.hint


PLACES: dict[str, tuple[object, str]] = {
    "write": (directory_bucket, "_write"),
    "flush": (os, "fsync"),
    "link": (os, "link"),
    "folder": (Path, "mkdir"),
    "file": (tempfile, "mkstemp"),
}
"""Every operation goes through these many times."""


def full_from(patch: pytest.MonkeyPatch, place: str, at: int) -> None:
    """Make the disk full from a given call on."""
    where, name = PLACES[place]
    real, calls = getattr(where, name), count()

    def call(*words: Any, **more: Any) -> Any:
        if next(calls) >= at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*words, **more)

    patch.setattr(where, name, call)


@pytest.mark.parametrize("place", PLACES)
def test_full_disk_is_reported(tmp_path: Path, place: str) -> None:
    groups = [wheels_of(tmp_path, 2), wheels_of(tmp_path, 3)]
    reader = Reader(wheel for group in groups for wheel in group)
    before, folder = DirBucket(tmp_path / "before"), write_set(tmp_path / "set", groups[1], make_set(groups[1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        go(before, staged_in(before, tmp_path / "sets", groups[0]))

        def act(bucket: Bucket) -> None:
            staged = stage(bucket, folder)
            for evidence in passing_evidence(make_set(groups[1])):
                record(bucket, staged, evidence)
            go(bucket, staged)

        undisturbed = DirBucket(shutil.copytree(before.root, tmp_path / "undisturbed"))
        act(undisturbed)
        for at in range(0, 400, 3):
            bucket = DirBucket(shutil.copytree(before.root, tmp_path / f"b{at}"))
            with pytest.MonkeyPatch.context() as full:
                full_from(full, place, at)
                problem = failure(act, bucket)
            if problem is None:
                break
            assert "No space left on device" in problem.message
            assert problem.hint == "Check the disk."
            assert reader.unsatisfied(set(offered(bucket))) == ()
            assert list(bucket.root.rglob(".new-*")) == []
            bucket.path(RELEASED.claim).unlink(missing_ok=True)  # it ends after some minutes
            act(bucket)
            assert objects(bucket) == objects(undisturbed)
            shutil.rmtree(bucket.root)
        assert at > 0


def failure(act: Callable[[Bucket], None], bucket: Bucket) -> CiBuildError | None:
    """Return the CiBuildError of an action."""
    try:
        act(bucket)
    except CiBuildError as error:
        return error
    return None
