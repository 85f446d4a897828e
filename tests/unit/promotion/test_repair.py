"""Repairs of an index.

Pages come back, leftovers of killed promotions go, and nothing else changes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from datetime import timedelta
from typing import Any

import pytest

from ci_build import cli
from core.digests import sha256_of
from core.errors import BucketError, BusyError, RequestError
from core.model import Verdict
from promotion.check import check
from promotion.index.audit import IndexRepair, repair, verify
from promotion.index.claim import Claim, claimed
from promotion.index.ledger import read_ledger
from promotion.index.ledger_state import EntryKind
from promotion.index.retention import RetentionRule, apply
from promotion.storage.bucket import Bucket
from promotion.storage.directory_bucket import DirBucket
from tests.support.memory_bucket import Fault, FaultyBucket, KilledError
from tests.support.promoting import (
    NOW,
    RELEASED,
    Scene,
    objects,
)

pytestmark = pytest.mark.usefixtures("clean_main")

DAY = timedelta(days=1)


def killed(scene: Scene, bucket: Bucket, at: int) -> bool:
    """Kill a promotion at one of its writes; return whether it has so many."""
    try:
        scene.promote(FaultyBucket(bucket, Fault.KILLED, at), 1)
    except KilledError:
        return True
    return False


def mended(bucket: Bucket) -> IndexRepair:
    """Repair after the claim of a killed process has expired."""
    return repair(bucket, RELEASED, now=lambda: NOW + DAY)


def stored(bucket: Bucket) -> dict[str, bytes]:
    """Return the objects of an index without its ledger and pages, which name each repair."""
    folders = (f"{RELEASED.root}packages/", f"{RELEASED.root}sets/")
    return {
        key: data for key, data in objects(bucket).items() if key.startswith(folders)
    }


def problems(bucket: Bucket) -> list[str]:
    return [*verify(bucket, RELEASED)]


def test_promotion_killed_anywhere_is_repaired_and_repeated(scene: Scene) -> None:
    whole = scene.start.copied()
    scene.promote(whole, 1)
    for at in itertools.count():
        bucket = scene.start.copied()
        if not killed(scene, bucket, at):
            assert at > 20
            return
        done = mended(bucket)
        assert problems(bucket) == []
        assert done.kept == {}
        # Either the set was promoted before the kill, or nothing of it is left.
        promoted = len(read_ledger(bucket, RELEASED).entries[-1].state.visible) == 2
        assert stored(bucket) == stored(whole if promoted else scene.start)
        scene.promote(bucket, 1, NOW + DAY)
        assert problems(bucket) == []
        assert stored(bucket).keys() == stored(whole).keys()


def test_promotion_that_was_checked_before_a_repair_is_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = scene.start.copied()
    killed(scene, bucket, 9)

    def check_and_repair(*words: Any, **more: Any) -> Verdict:
        verdict = check(*words, **more)
        assert mended(bucket).removed
        return verdict

    with monkeypatch.context() as patch:
        patch.setattr("promotion.promote.check", check_and_repair)
        with pytest.raises(BusyError, match="Another repair changed"):
            scene.promote(bucket, 1)
    mended(bucket)
    assert problems(bucket) == []


def test_repair_keeps_files_that_were_promoted_before_its_claim(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = scene.start.copied()
    killed(scene, bucket, 9)

    def promote_and_claim(
        *words: Any, **more: Any
    ) -> contextlib.AbstractContextManager[Claim]:
        scene.promote(bucket, 1, NOW + DAY)
        return claimed(*words, **more)

    monkeypatch.setattr("promotion.index.audit.claimed", promote_and_claim)
    assert mended(bucket).removed == ()
    assert problems(bucket) == []


# On disk


@pytest.fixture
def index(two_sets: DirBucket) -> DirBucket:
    return two_sets


def put(bucket: DirBucket, name: str) -> str:
    """Write an object to the index."""
    key = RELEASED.root + name
    bucket.put_if_absent(key, b"x", sha256=sha256_of(b"x"))
    return key


FOREIGN = (
    "stranger",
    "simple/evil/index.html",
    f"sets/{'a' * 64}/report.html",
    "packages/jaxlib/jaxlib-0.10.2-cp311-cp311-manylinux_2_28_x86_64.whl",
)


def test_foreign_objects_are_removed_from_folders_of_the_index(
    index: DirBucket,
) -> None:
    before = stored(index)
    stranger, *keys = [put(index, name) for name in FOREIGN]
    link = f"{RELEASED.root}sets/link"
    (index.root / link).symlink_to("status.json")
    assert sum("--repair` removes it" in problem for problem in problems(index)) == 4
    done = repair(index, RELEASED)
    assert set(done.removed) == {*keys}
    assert done.kept.keys() == {stranger, link}
    assert {*problems(index)} == {
        f"{stranger} is no file of an index. Remove it by hand.",
        (
            f"{link} belongs to no set that the index holds: `ci_build index verify"
            " multi-arch --repair` removes it."
        ),
    }
    index.path(stranger).unlink()
    (index.root / link).unlink()
    assert stored(index) == before
    assert problems(index) == []


def test_object_that_may_not_be_removed_is_kept_and_named(
    index: DirBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The promoter may only remove packages and files of sets."""
    delete = DirBucket.delete
    key = put(index, "simple/stranger")
    other = put(index, "packages/jaxlib/readme.txt")

    def deny(self: DirBucket, key: str, *, sha256: str) -> bool:
        if key.endswith("stranger"):
            raise BucketError("403 AccessDenied.")
        return delete(self, key, sha256=sha256)

    monkeypatch.setattr(DirBucket, "delete", deny)
    done = repair(index, RELEASED)
    assert (done.removed, done.kept) == (
        (other,),
        {key: "it cannot be removed: 403 AccessDenied."},
    )


def test_pages_are_restored(index: DirBucket) -> None:
    before = objects(index)
    pages = [
        f"{RELEASED.simple}jaxlib/index.html",
        f"{RELEASED.simple}index.json",
        RELEASED.overview,
        RELEASED.status,
    ]
    for page in pages:
        index.path(page).unlink()
    index.path(f"{RELEASED.simple}jaxlib/index.json").write_bytes(b"defaced")
    assert sum("--repair" in problem for problem in problems(index)) == 5
    done = repair(index, RELEASED)
    assert {*pages, f"{RELEASED.simple}jaxlib/index.json"} == {*done.written}
    assert objects(index) == before


def test_lost_files_of_sets_are_not_hidden(index: DirBucket) -> None:
    key = next(key for key in index.list(RELEASED.root) if key.endswith(".whl"))
    index.path(key).unlink()
    repair(index, RELEASED)
    assert problems(index) == [f"{key} is missing. Restore it from a backup."]


# Sweeps

RULE = RetentionRule(days=0.5, keep_newest=1, grace_days=0)


def retain(bucket: Bucket, day: int) -> None:
    apply(bucket, RELEASED, RULE, now=lambda: NOW + day * DAY)


def test_interrupted_sweep_is_completed(scene: Scene) -> None:
    start = scene.start.copied()
    scene.promote(start, 1)
    retain(start, 1)
    states = set()
    for at in itertools.count():
        bucket = start.copied()
        try:
            retain(FaultyBucket(bucket, Fault.KILLED, at), 2)
        except KilledError:
            done = repair(bucket, RELEASED, now=lambda: NOW + 9 * DAY)
            assert problems(bucket) == [], at
            kinds = {entry.kind for entry in read_ledger(bucket, RELEASED).entries}
            states.add((bool(done.removed), EntryKind.SWEEP in kinds))
            continue
        assert {(False, False), (True, True)} <= states
        return


# Refusals


def test_repair_removes_nothing_from_cut_ledger(index: DirBucket) -> None:
    """The files of a lost entry would look like leftovers."""
    index.path(RELEASED.ledger_entry(2)).unlink()
    index.path(RELEASED.status).unlink()
    before = objects(index)
    with pytest.raises(BucketError, match="was cut"):
        repair(index, RELEASED)
    assert objects(index) == before


# Command line


def run(bucket: DirBucket, *words: str) -> int:
    return cli.run(
        ["index", "verify", "multi-arch", "--bucket", str(bucket.root), *words]
    )


def test_verify_names_command_that_repairs(
    index: DirBucket, capsys: pytest.CaptureFixture[str]
) -> None:
    before = stored(index)
    index.path(RELEASED.overview).unlink()
    foreign = put(index, "sets/stranger")
    assert run(index) == BucketError.exit_code
    assert (
        f"{RELEASED.overview} is missing. `ci_build index verify multi-arch --repair` restores it."
        in (capsys.readouterr().err)
    )
    assert run(index, "--repair", "--dry-run") == 0
    assert f"would remove {foreign}" in capsys.readouterr().err
    assert index.head(RELEASED.overview) is None
    assert index.head(foreign) is not None
    assert run(index, "--repair", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (
        found["problems"],
        found["repaired"]["removed"],
        found["repaired"]["kept"],
    ) == ([], [foreign], {})
    assert stored(index) == before
    assert run(index, "--repair") == 0
    assert "nothing to repair" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--dry-run",), ("--ledger-key", "key")])
def test_options_of_repair_need_repair(
    index: DirBucket, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(index, *words) == RequestError.exit_code
    assert f"{words[0]} has no effect without --repair." in capsys.readouterr().err
