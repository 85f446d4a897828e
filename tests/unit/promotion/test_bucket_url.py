"""Names of buckets on the command line."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from ci_build import cli
from core.errors import BucketError, RequestError
from promotion.storage.bucket_url import bucket_name, open_bucket
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.s3_bucket import S3Bucket


def test_open_bucket_opens_folder(tmp_path: Path) -> None:
    bucket = open_bucket(str(tmp_path))
    assert isinstance(bucket, DirBucket)
    assert bucket.root == tmp_path
    assert bucket.identity == str(tmp_path)


@pytest.fixture(autouse=True)
def unconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing boto3 opens sockets."""
    monkeypatch.setattr("promotion.storage.s3_client.connect", lambda **words: words)


def test_open_bucket_opens_store() -> None:
    bucket = open_bucket(
        "s3://name/some/prefix/?endpoint_url=http://127.0.0.1:1&region=r&signed_as=s3://old/x"
    )
    assert isinstance(bucket, S3Bucket)
    assert bucket.name == "name"
    assert bucket.prefix == "some/prefix/"
    assert bucket.identity == "s3://old/x"
    plain = open_bucket("s3://name/some/prefix/?endpoint_url=http://127.0.0.1:1")
    assert plain.identity == "s3://name/some/prefix"
    bare = open_bucket("s3://name?endpoint_url=http://127.0.0.1:1")
    assert isinstance(bare, S3Bucket)
    assert bare.name == "name"
    assert bare.prefix == ""


@pytest.mark.parametrize(
    "text",
    [
        "http://host/bucket",
        "s3://",
        "s3:/name",
        "s3:name",
        "S3:",
        "gs://name",
        "file:///folder",
        "",
        "s3://[name",
        "s3://key:secret@name",
        "s3://name?endpoint=x",
        "s3://name#part",
        "s3://name/../up",
    ],
)
def test_open_bucket_refuses_other_names(text: str) -> None:
    with pytest.raises((RequestError, BucketError)):
        open_bucket(text)


def test_bucket_name_keeps_folders_and_urls_of_stores() -> None:
    for text in ("bucket", "./s3:name", "a:b", "s3://name/prefix?region=r"):
        assert bucket_name(text) == text


@pytest.mark.parametrize(
    "line",
    [
        "index init wheels reader=*",
        "index init s3:// reader=* --channel=local",
        "index init s3://name/../x --channel=local",
        "index init s3://name",
        "index init wheels --channel=local nobody=arn",
    ],
)
def test_init_refuses_other_buckets_and_roles(line: str, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        assert cli.run(line.split()) == RequestError.exit_code
        assert not Path("wheels").exists()


@pytest.mark.parametrize(
    "line",
    [
        "set stage . --bucket={}",
        "gate structure multi-arch/1 --bucket={}",
        "promote . --bucket={}",
        "release --payload=published --bucket={} --dry-run",
        "nightly multi-arch --payload=published --bucket={}",
        "status --bucket={}",
        "index verify multi-arch --bucket={}",
        "index serve --bucket={}",
    ],
)
def test_commands_refuse_a_bucket_that_does_not_exist(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = tmp_path / "wheels"
    with contextlib.chdir(tmp_path):
        assert cli.run(line.format(absent).split()) == RequestError.exit_code
    assert f"ci_build index init {absent}" in capsys.readouterr().err
    assert not absent.exists()
