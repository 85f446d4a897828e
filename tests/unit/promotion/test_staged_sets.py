"""Staged sets: their age, the reasons why they stay, and their removal."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ci_build import cli
from core.digests import sha256_of
from core.errors import BucketError, RequestError, WheelSetError
from promotion.evidence.evidence import record
from promotion.index.audit import verify
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import mark
from promotion.stage import read_staged
from promotion.staged_sets import find_set, remove, staged_folders
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.memory_bucket import Fault, FaultyBucket, KilledError
from tests.support.promoting import RELEASED, go, offered, staged_in
from tests.support.wheel_sets import make_wheels, passing_evidence

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def made(
    bucket: DirBucket,
    folder: Path,
    minor: int,
    *,
    age: float,
) -> StagedSet:
    """Stage a set with evidence, all written `age` days before NOW."""
    version = f"0.10.2+rocm7.{minor}.0"
    staged = staged_in(
        bucket,
        folder / version,
        make_wheels(folder / "w", version=version, pythons=("3.12",)),
    )
    then = (NOW - timedelta(days=age)).timestamp()
    for key in bucket.list(staged.root):
        os.utime(bucket.path(key), (then, then))
    return staged


def test_old_sets_go_and_used_or_pinned_ones_stay(
    bucket: DirBucket, tmp_path: Path
) -> None:
    ages = {2: 31, 3: 29, 4: 99, 5: 99}
    old, young, pinned, gated = (
        made(bucket, tmp_path, minor, age=age) for minor, age in ages.items()
    )
    foreign = "v2-staging/multi-arch/notes/readme.txt"
    bucket.put_if_absent(foreign, b"", sha256=sha256_of(b""))
    go(bucket, pinned)
    mark(bucket, RELEASED, EntryKind.PIN, ["1"], reason="customer")
    for key in bucket.list(gated.evidence):
        os.utime(bucket.path(key), (NOW.timestamp(), NOW.timestamp()))
    folders = staged_folders(bucket, "multi-arch", days=30, now=lambda: NOW)
    assert {folder.staged.digest: folder.kept for folder in folders} == {
        old.digest: "",
        young.digest: "used less than 30 days ago",
        pinned.digest: "pinned: customer",
        gated.digest: "used less than 30 days ago",
    }


def test_find_set_accepts_digest_first_digits_and_ledger_entry(
    bucket: DirBucket, tmp_path: Path
) -> None:
    first, second, unreleased = (
        made(bucket, tmp_path, minor, age=1) for minor in (2, 3, 4)
    )
    for staged in (first, second):
        go(bucket, staged)
    for staged in (first, second, unreleased):
        for name in (staged.digest, staged.digest[:6], staged.digest.upper()):
            assert find_set(bucket, f"multi-arch/{name}") == staged
    assert [find_set(bucket, f"multi-arch/{number}") for number in (1, 2)] == [
        first,
        second,
    ]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("abcdef", "'abcdef' is not the name of a set"),
        ("multi-arch/abcde", "The index multi-arch has no set abcde"),
        ("multi-arch/7", "The index multi-arch has no set 7"),
        ("multi-arch/000000", "The index multi-arch has no set 000000"),
    ],
)
def test_find_set_refuses_other_names(
    bucket: DirBucket, tmp_path: Path, name: str, problem: str
) -> None:
    go(bucket, made(bucket, tmp_path, 2, age=1))
    with pytest.raises(RequestError) as raised:
        find_set(bucket, name)
    assert problem in str(raised.value)


def test_find_set_refuses_ambiguous_digits(bucket: DirBucket) -> None:
    for end in "01":
        digest = "abcdef" + end * 58
        bucket.put_if_absent(
            f"v2-staging/multi-arch/{digest}/wheels.json",
            b"{}",
            sha256=sha256_of(b"{}"),
        )
    with pytest.raises(
        RequestError, match="several sets of multi-arch start with abcdef"
    ):
        find_set(bucket, "multi-arch/abcdef")
    assert find_set(bucket, "multi-arch/abcdef0").digest == "abcdef" + "0" * 58


def test_find_set_refuses_released_set_that_is_no_longer_staged(
    bucket: DirBucket, tmp_path: Path
) -> None:
    staged = made(bucket, tmp_path, 2, age=99)
    go(bucket, staged)
    remove(bucket, staged_folders(bucket, "multi-arch", days=30, now=lambda: NOW))
    for name in ("1", staged.digest):
        with pytest.raises(RequestError, match="was released and is no longer staged"):
            find_set(bucket, f"multi-arch/{name}")


def test_remove_leaves_released_set(bucket: DirBucket, tmp_path: Path) -> None:
    staged, other = (made(bucket, tmp_path, minor, age=99) for minor in (2, 3))
    go(bucket, staged)
    before = offered(bucket)
    folders = [
        folder
        for folder in staged_folders(bucket, "multi-arch", days=30)
        if folder.staged == staged
    ]
    (count,) = remove(bucket, folders).values()
    assert count > len(before)
    assert [*bucket.list(staged.root)] == []
    assert [*bucket.list(other.root)]
    assert offered(bucket) == before
    assert [*verify(bucket, RELEASED)] == []


def test_interrupted_removal_leaves_no_usable_set(
    bucket: DirBucket, tmp_path: Path
) -> None:
    staged = made(bucket, tmp_path, 2, age=99)
    folders = staged_folders(bucket, "multi-arch", days=30, now=lambda: NOW)
    with pytest.raises(KilledError):
        remove(FaultyBucket(bucket, Fault.KILLED, 1), folders)
    with pytest.raises(BucketError, match="not in the bucket"):
        read_staged(bucket, staged)
    (left,) = staged_folders(bucket, "multi-arch", days=30, now=lambda: NOW)
    assert left.complete is False
    assert left.kept == ""
    remove(bucket, [left])
    assert [*bucket.list(staged.root)] == []


def test_gated_set_stays_although_it_was_listed_as_old(
    bucket: DirBucket, tmp_path: Path
) -> None:
    staged = made(bucket, tmp_path, 2, age=99)
    folders = staged_folders(bucket, "multi-arch", days=30, now=lambda: NOW)
    record(
        bucket,
        staged,
        replace(
            passing_evidence(read_staged(bucket, staged))[0],
            ended="2026-06-01T00:00:00Z",
        ),
    )
    assert remove(bucket, folders) == {}
    assert read_staged(bucket, staged)


def test_set_that_is_removed_meanwhile_is_passed_over(
    bucket: DirBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two collections may run at the same time."""
    made(bucket, tmp_path, 2, age=99)
    folders = staged_folders(bucket, "multi-arch", days=30, now=lambda: NOW)
    with monkeypatch.context() as patch:
        patch.setattr(DirBucket, "head", lambda *_: None)
        (folder,) = staged_folders(bucket, "multi-arch", days=30, now=lambda: NOW)
        assert folder.kept == ""
    remove(bucket, folders)
    assert remove(bucket, folders) == {folders[0].staged: 0}


def test_collect_prints_plan_and_applies_it(
    bucket: DirBucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    staged = made(bucket, tmp_path, 2, age=99)
    words = ["set", "collect", "multi-arch", f"--bucket={bucket.root}"]
    assert cli.run(words) == 0
    said = capsys.readouterr().err
    assert f"{staged} is removed; last used 2026-02-22 00:00" in said
    assert "--apply removes the sets" in said
    assert cli.run([*words, "--json"]) == 0
    (item,) = json.loads(capsys.readouterr().out)
    assert item["staged"]["digest"] == staged.digest
    assert item["used"] == "2026-02-22T00:00:00+00:00"
    assert read_staged(bucket, staged)
    assert cli.run([*words, "--apply"]) == 0
    with pytest.raises((BucketError, WheelSetError)):
        read_staged(bucket, staged)
    assert cli.run(words) == 0
    assert "nothing to do" in capsys.readouterr().err
