"""DryRunBucket: the contract of all buckets; writes are reported but not done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.digests import sha256_of
from promotion.storage.bucket import AbsentError
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.dry_run import DryRunBucket
from tests.support.bucket_contract import BucketContract, put


class TestDryRunBucket(BucketContract):
    """The contract of all buckets on a DryRunBucket; the bucket below stays unchanged."""

    @pytest.fixture
    def bucket(self, tmp_path: Path) -> Iterator[DryRunBucket]:
        yield DryRunBucket(DirBucket(tmp_path / "bucket"), lambda line: None)
        assert not (tmp_path / "bucket").exists()


@pytest.fixture
def under(tmp_path: Path) -> DirBucket:
    bucket = DirBucket(tmp_path / "bucket")
    put(bucket, "s/old", b"old")
    bucket.put_if_match("s/page", b"1", etag=None)
    return bucket


def files(bucket: DirBucket) -> dict[str, bytes]:
    return {key: bucket.get(key) for key in bucket.list("s/")}


def test_dry_run_reports_writes_without_writing(under: DirBucket) -> None:
    told: list[str] = []
    bucket = DryRunBucket(under, told.append)
    before = files(under)
    page = bucket.head("s/page")
    assert page is not None
    put(bucket, "s/new", b"new")
    bucket.put_if_match("s/page", b"2", etag=page.etag)
    bucket.copy("s/old", "s/copy", sha256=sha256_of(b"old"))
    bucket.delete("s/old", sha256=sha256_of(b"old"))
    put(bucket, "s/new", b"new")
    assert told == [
        "create s/new (3 B)",
        "replace s/page (1 B)",
        "copy s/old to s/copy (3 B)",
        "remove s/old (3 B)",
    ]
    assert list(bucket.list("s/")) == ["s/copy", "s/new", "s/page"]
    assert bucket.get("s/copy") == b"old"
    assert bucket.get("s/page") == b"2"
    with pytest.raises(AbsentError):
        bucket.get("s/old")
    assert files(under) == before
