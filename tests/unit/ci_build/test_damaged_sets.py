"""One damaged object of a bucket is named, and hides nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ci_build import cli
from core.errors import BucketError
from promotion.index.audit import verify
from promotion.storage import bucket as storage
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.bucket_contract import put
from tests.support.promoting import RELEASED, go, staged_in
from tests.support.wheel_sets import make_wheels

DAMAGE = {
    "no JSON": b"{",
    "nested too deeply": b"[" * 100_000,
    "another type": b"[]",
    "missing keys": b'{"schema": 1, "digest": 3}',
    "another schema": b'{"schema": 99}',
}


@pytest.fixture
def sets(bucket: DirBucket, tmp_path: Path) -> tuple[StagedSet, StagedSet]:
    """Stage two sets of the same wheels."""
    wheels = make_wheels(tmp_path / "w", pythons=("3.12",))
    first = staged_in(bucket, tmp_path / "1", wheels)
    return first, staged_in(bucket, tmp_path / "2", wheels, tools={"tests": "2"})


def damage(bucket: DirBucket, key: str, data: bytes) -> None:
    bucket.path(key).chmod(0o644)
    bucket.path(key).write_bytes(data)


def run(bucket: DirBucket, *words: str) -> int:
    return cli.run([*words, "--bucket", str(bucket.root)])


def staged_rows(
    bucket: DirBucket, capsys: pytest.CaptureFixture[str]
) -> dict[str, dict[str, Any]]:
    """Return digest -> what `status` says of each staged set."""
    assert run(bucket, "status", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["staged"]
    return {row["digest"]: row for row in rows}


@pytest.mark.parametrize("data", DAMAGE.values(), ids=DAMAGE)
def test_damaged_set_is_named_and_hides_no_other(
    bucket: DirBucket,
    sets: tuple[StagedSet, StagedSet],
    capsys: pytest.CaptureFixture[str],
    data: bytes,
) -> None:
    bad, good = sets
    key = bad.file("wheels.json")
    damage(bucket, key, data)
    rows = staged_rows(bucket, capsys)
    assert rows[good.digest]["state"] == "ready"
    assert rows[bad.digest]["state"] == "damaged"
    (reason,) = rows[bad.digest]["blocked_by"]
    assert reason.startswith(key)
    assert go(bucket, good).new
    assert [*verify(bucket, RELEASED)] == []
    assert run(bucket, "status") == 0


@pytest.mark.parametrize("data", DAMAGE.values(), ids=DAMAGE)
def test_damaged_evidence_is_named(
    bucket: DirBucket,
    sets: tuple[StagedSet, StagedSet],
    capsys: pytest.CaptureFixture[str],
    data: bytes,
) -> None:
    bad, good = sets
    key = next(k for k in bucket.list(bad.evidence) if k.endswith(".json"))
    damage(bucket, key, data)
    rows = staged_rows(bucket, capsys)
    assert rows[bad.digest]["state"] == "blocked"
    assert key in rows[bad.digest]["blocked_by"][0]
    assert rows[good.digest]["state"] == "ready"


def test_object_that_is_too_large_is_not_read(
    bucket: DirBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "MOST_READ", 10)
    put(bucket, "v2/small", os.urandom(10))
    put(bucket, "v2/large", os.urandom(11))
    assert len(bucket.get("v2/small")) == 10
    with pytest.raises(BucketError, match=r"v2/large has 11 bytes; at most 10 are"):
        bucket.get("v2/large")
