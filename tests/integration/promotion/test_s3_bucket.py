"""S3Bucket on a real S3 server: the contract of all buckets, and behaviour of S3."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Any

import boto3
import pytest

from core.errors import BucketError
from promotion.storage.bucket_url import open_bucket
from promotion.storage.s3_bucket import S3Bucket
from promotion.storage.s3_client import connect
from tests.support import ceph
from tests.support.bucket_contract import SharedBucketContract, put

pytestmark = pytest.mark.network
NUMBERS = itertools.count()


@pytest.fixture
def bucket(s3_client: Any) -> S3Bucket:
    name = f"bucket-{next(NUMBERS)}"
    s3_client.create_bucket(Bucket=name)
    return S3Bucket(s3_client, name, prefix="some/prefix/")


class TestS3Bucket(SharedBucketContract):
    """The contract of all buckets on an S3 store."""


def test_put_refuses_bytes_changed_in_transit(
    bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "promotion.storage.s3_bucket.sha256_of",
        lambda data: hashlib.sha256(b"promised").hexdigest(),
    )
    with pytest.raises(BucketError, match="BadDigest"):
        bucket.put_if_absent(
            "p/k", b"sent", sha256=hashlib.sha256(b"promised").hexdigest()
        )
    assert bucket.head("p/k") is None


class Deaf:
    """A client of a store that accepts the conditions of writes but ignores them."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        real: Callable[..., Any] = getattr(self._client, name)
        if name not in ("put_object", "copy_object"):
            return real
        return lambda **words: real(
            **{k: v for k, v in words.items() if k not in ("IfNoneMatch", "IfMatch")}
        )


def test_put_refuses_store_without_conditional_writes(
    bucket: S3Bucket, s3_client: Any
) -> None:
    deaf: Any = Deaf(s3_client)
    with pytest.raises(BucketError, match="ignores If-None-Match"):
        put(S3Bucket(deaf, bucket.name), "v2/k", b"")
    with pytest.raises(BucketError, match="ignores If-None-Match"):
        S3Bucket(deaf, bucket.name).put_if_match("v2/k", b"", etag=None)
    assert bucket.head("v2/k") is None


def test_store_errors_are_reported(
    s3_server: ceph.Ceph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.owner.access)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(BucketError, match=r"refused the request for v2/k: 403"):
        S3Bucket(connect(endpoint=s3_server.url), "none").head("v2/k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.owner.secret)
    with pytest.raises(BucketError, match="The bucket does not exist"):
        put(S3Bucket(connect(endpoint=s3_server.url), "none-such"), "v2/k", b"")
    monkeypatch.setattr(boto3.session.Session, "get_credentials", lambda self: None)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(BucketError, match="requires credentials"):
        put(S3Bucket(connect(endpoint=s3_server.url), "none-such"), "v2/k", b"")


def test_open_bucket_refuses_invalid_endpoint() -> None:
    with pytest.raises(BucketError, match="Cannot connect to the store"):
        open_bucket("s3://name?endpoint_url=nonsense")
