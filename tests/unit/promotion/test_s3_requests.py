"""Requests to an S3 store whose responses are lost, cut or repeated; the client is a stand-in."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, ResponseStreamingError

from core.digests import sha256_of
from core.errors import BucketError, BusyError
from promotion.storage import s3_bucket, s3_conditions
from promotion.storage.bucket import AbsentError, ConflictError
from promotion.storage.s3_bucket import S3Bucket
from promotion.storage.s3_client import connect

DATA = b"content"
HEAD = {
    "ContentLength": len(DATA),
    "ETag": '"e"',
    "LastModified": datetime(2026, 1, 1, tzinfo=UTC),
    "ChecksumSHA256": s3_bucket.base64_of(sha256_of(DATA)),
}


def refused(status: int, code: str) -> ClientError:
    return ClientError(
        {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "operation",
    )


class CutBody(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        raise ResponseStreamingError(error="cut")


class StandIn:
    """A client that gives each operation its answers in turn, the last one again and again.

    An error is raised.
    """

    def __init__(self, **answers: Any) -> None:
        self._answers = {
            name: [*given] if isinstance(given, list) else [given]
            for name, given in answers.items()
        }
        self.sent: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def operation(**words: Any) -> Any:
            self.sent.append(name)
            answers = self._answers[name]
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return operation

    def get_paginator(self, name: str) -> Any:
        return type(
            "Paginator",
            (),
            {"paginate": lambda _, **words: iter([getattr(self, name)(**words)])},
        )()


def bucket_of(**answers: Any) -> S3Bucket:
    client: Any = StandIn(**answers)
    return S3Bucket(client, "b")


def body(data: io.BytesIO) -> Mapping[str, Any]:
    return {
        "Body": data,
        "ContentLength": len(DATA),
        "ETag": '"e"',
    }


@pytest.mark.parametrize("head", [{"ETag": '"e"'}, {**HEAD, "ETag": '"e'}])
def test_head_refuses_cut_headers(head: dict[str, Any]) -> None:
    with pytest.raises(BucketError, match="incomplete"):
        bucket_of(head_object=head).head("v2/k")


def test_unreadable_headers_are_reported() -> None:
    with pytest.raises(BucketError, match="request for v2/k failed"):
        bucket_of(head_object=KeyError("ContentLength")).head("v2/k")


def test_list_refuses_cut_response() -> None:
    """Without this, a cut response would be an empty listing."""
    with pytest.raises(BucketError, match="incomplete"):
        list(bucket_of(list_objects_v2={}).list("v2/"))


def test_clock_is_that_of_the_store() -> None:
    headers = {"date": "Fri, 02 Jan 2026 03:04:05 GMT"}
    answer = {"IsTruncated": False, "ResponseMetadata": {"HTTPHeaders": headers}}
    told = bucket_of(list_objects_v2=answer).clock()
    assert told == datetime(
        2026,
        1,
        2,
        3,
        4,
        5,
        tzinfo=UTC,
    )


def test_get_requests_cut_body_again() -> None:
    assert (
        bucket_of(get_object=[body(CutBody()), body(io.BytesIO(DATA))]).get("v2/k")
        == DATA
    )
    with pytest.raises(BucketError, match="cut"):
        bucket_of(get_object=body(CutBody())).get("v2/k")


def test_fetch_downloads_cut_file_again(tmp_path: Path) -> None:
    """Headers that end early leave an empty file, which the client library accepts."""
    contents = [b"", DATA]

    class Cut(StandIn):
        def download_file(
            self,
            bucket: str,
            key: str,
            path: str,
        ) -> None:
            Path(path).write_bytes(
                contents.pop(0) if len(contents) > 1 else contents[0]
            )

    client: Any = Cut(head_object=HEAD)
    assert S3Bucket(client, "b").fetch("v2/k", tmp_path).read_bytes() == DATA
    with pytest.raises(AbsentError):
        bucket_of(head_object=refused(404, "NotFound")).fetch("v2/k", tmp_path)
    contents[:] = [b""]
    with pytest.raises(BucketError, match="was downloaded with sha256"):
        S3Bucket(client, "b").fetch("v2/other", tmp_path)
    assert not (tmp_path / "other").exists()


CONDITIONS = {"put_object": refused(412, "PreconditionFailed")}


def test_store_that_ignores_conditions_is_refused() -> None:
    with pytest.raises(BucketError, match="ignores If-None-Match"):
        bucket_of(put_object={"ETag": '"e"'}).put_if_absent(
            "v2/k", DATA, sha256=sha256_of(DATA)
        )


def test_object_that_is_removed_during_a_write_is_reported() -> None:
    bucket = bucket_of(**CONDITIONS, head_object=refused(404, "NotFound"))
    with pytest.raises(ConflictError, match="was removed by another process"):
        bucket.put_if_absent("v2/k", DATA, sha256=sha256_of(DATA))


def test_refused_write_is_not_repeated() -> None:
    bucket = bucket_of(put_object=refused(403, "AccessDenied"))
    with pytest.raises(BucketError, match=r"refused the request .*: 403"):
        bucket.put_if_absent("v2/k", DATA, sha256=sha256_of(DATA))


def test_probe_is_repeated_while_store_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_conditions, "_RACE_SECONDS", 0)
    busy = refused(409, "ConditionalRequestConflict")
    stored = {"ETag": '"e"'}
    put = [busy, *[CONDITIONS["put_object"]] * 4, stored]
    assert bucket_of(put_object=put).put_if_absent("v2/k", DATA, sha256=sha256_of(DATA))
    with pytest.raises(BusyError, match="is being written by another process"):
        bucket_of(put_object=busy).put_if_absent("v2/k", DATA, sha256=sha256_of(DATA))


def test_copy_is_repeated_while_store_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_conditions, "_RACE_SECONDS", 0)
    probe = CONDITIONS["put_object"]
    busy = refused(409, "ConditionalRequestConflict")
    bucket = bucket_of(
        head_object=HEAD, put_object=probe, copy_object=[probe, probe, busy, {}]
    )
    assert bucket.copy("v2-staging/k", "v2/k", sha256=sha256_of(DATA))


def test_copies_are_claimed_when_source_of_probe_is_gone() -> None:
    """A missing source says nothing of conditions; unclaimed copies could replace an object."""
    probe = CONDITIONS["put_object"]
    gone = refused(404, "NoSuchKey")
    stored = {"ETag": '"e"'}
    client: Any = StandIn(
        head_object=[HEAD, refused(404, "NotFound")],
        put_object=[*[probe] * 4, stored],
        copy_object=[gone] * 3 + [{}],
    )
    assert S3Bucket(client, "b").copy("v2-staging/k", "v2/k", sha256=sha256_of(DATA))
    assert client.sent[-2:] == ["put_object", "copy_object"]


def test_copies_are_claimed_after_one_refused_probe() -> None:
    """A gateway's refusal of one request must not make this process trust conditions."""
    probe = CONDITIONS["put_object"]
    absent = refused(404, "NotFound")
    stored = {"ETag": '"e"'}
    client: Any = StandIn(
        head_object=[HEAD, absent],
        put_object=[*[probe] * 4, stored],
        copy_object=[probe, {}, {}, {}],
    )
    assert S3Bucket(client, "b").copy("v2-staging/k", "v2/k", sha256=sha256_of(DATA))
    assert client.sent[-2:] == ["put_object", "copy_object"]


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Give credentials, so that the client does not ask a metadata server for them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    return monkeypatch


@pytest.mark.parametrize(
    "endpoint", ["http://store.example", "http://10.0.0.1:9000", "http://127.1.example"]
)
def test_store_without_tls_is_refused(
    endpoint: str, credentials: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BucketError, match=f"The store {endpoint} is not encrypted"):
        connect(endpoint=endpoint)
    credentials.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(BucketError, match="is not encrypted"):
        connect(region="us-east-1")


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://store.example",
        "http://127.0.0.1:9000",
        "http://[::1]:9",
        "http://localhost",
    ],
)
@pytest.mark.usefixtures("credentials")
def test_store_with_tls_or_of_this_machine_is_accepted(endpoint: str) -> None:
    assert connect(endpoint=endpoint).meta.endpoint_url == endpoint
