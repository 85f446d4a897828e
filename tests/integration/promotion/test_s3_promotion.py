"""Promotion on a real S3 server: all operations, concurrent processes, readers, and killed processes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.counting import watch
from benchmarks.promotion import goals, moving
from ci_build import cli
from core.errors import RequestError
from promotion.index.audit import verify
from promotion.index.ledger_state import EntryKind
from promotion.index.operations import mark, rollback
from promotion.index.serve import IndexServer
from promotion.index.served_files import served_files
from promotion.stage import fetch_set, read_staged
from promotion.staged_sets import remove, staged_folders
from promotion.storage.bucket import sha256_of
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.s3_bucket import S3Bucket
from tests.support import ceph, live
from tests.support.live import Scene, staged_sets
from tests.support.promoting import NOW, RELEASED
from tests.support.promotion_child import act

pytestmark = [pytest.mark.heavy, pytest.mark.network]
NUMBERS = itertools.count()
PREFIX = "wheels/"


@pytest.fixture
def bucket(s3_client: Any) -> S3Bucket:
    """Return a bucket that is publicly readable."""
    name = f"index-{next(NUMBERS)}"
    s3_client.create_bucket(Bucket=name)
    statement = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{name}/*"}
    listing = {"Effect": "Allow", "Principal": "*", "Action": "s3:ListBucket", "Resource": f"arn:aws:s3:::{name}"}
    policy = {"Version": "2012-10-17", "Statement": [statement, listing]}
    s3_client.put_bucket_policy(Bucket=name, Policy=json.dumps(policy))
    return S3Bucket(s3_client, name, prefix=PREFIX)


def scene_of(s3_server: ceph.Ceph, bucket: S3Bucket, folder: Path, count: int) -> Scene:
    sets, groups = staged_sets(bucket, folder, count)
    return Scene(
        bucket=bucket,
        where=f"s3://{bucket.name}/{PREFIX.rstrip('/')}?endpoint_url={s3_server.url}",
        simple=f"{s3_server.url}/{bucket.name}/{PREFIX}{RELEASED.simple}",
        sets=sets,
        groups=groups,
        environment={},
    )


def installed(simple: str, folder: Path) -> str:
    """Return the version of the plugin that pip installs without credentials of the store."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "AWS_"))}
    argv = [sys.executable, "-m", "pip", "install", "--target", str(folder), "--no-cache-dir", "--only-binary=:all:"]
    argv += ["--index-url", simple, "jax-rocm7-plugin"]
    done = subprocess.run(
        argv, env={**kept, "PIP_CONFIG_FILE": os.devnull}, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(path.stem.split("-") for path in folder.glob("*.dist-info"))
    assert found["jax_rocm7_plugin"] == found["jax_rocm7_pjrt"]
    return found["jax_rocm7_plugin"]


def test_set_is_promoted_on_s3(s3_server: ceph.Ceph, bucket: S3Bucket, tmp_path: Path) -> None:
    scene = scene_of(s3_server, bucket, tmp_path, 2)
    for number in (0, 1):
        act(bucket, "promote", scene.sets[number].digest)
        assert installed(scene.simple, tmp_path / f"promoted-{number}") == f"0.10.2+rocm7.{number}.0"
    rollback(bucket, RELEASED, to=None, reason="wrong numbers", actor="tests", now=lambda: NOW)
    assert installed(scene.simple, tmp_path / "rolled-back") == "0.10.2+rocm7.0.0"
    scene.sound()
    # The same operations on a folder create the same bytes.
    folder = DirBucket(tmp_path / "folder")
    for staged in staged_sets(folder, tmp_path / "other", 2)[0]:
        act(folder, "promote", staged.digest)
    rollback(folder, RELEASED, to=None, reason="wrong numbers", actor="tests", now=lambda: NOW)
    for key in folder.list(RELEASED.root):
        if not key.endswith("status.json"):  # contains the store's etags
            assert bucket.get(key) == folder.get(key), key
    bucket.delete(f"{RELEASED.simple}jaxlib/index.html", sha256=_sha256(bucket, f"{RELEASED.simple}jaxlib/index.html"))
    assert any("jaxlib/index.html is missing" in line for line in verify(bucket, RELEASED))


def _sha256(bucket: S3Bucket, key: str) -> str:
    info = bucket.head(key)
    assert info is not None
    return info.sha256


def test_promote_in_eight_processes_keeps_all_sets(s3_server: ceph.Ceph, bucket: S3Bucket, tmp_path: Path) -> None:
    live.check_processes_that_promote_at_once(scene_of(s3_server, bucket, tmp_path, 8))


def test_promote_in_eight_threads_keeps_all_sets(s3_server: ceph.Ceph, bucket: S3Bucket, tmp_path: Path) -> None:
    live.check_threads_that_promote_at_once(scene_of(s3_server, bucket, tmp_path, 8))


def test_readers_always_see_consistent_pages(s3_server: ceph.Ceph, bucket: S3Bucket, tmp_path: Path) -> None:
    live.check_readers_while_everything_happens(scene_of(s3_server, bucket, tmp_path, 5))


def test_promote_killed_at_any_time_is_completed(s3_server: ceph.Ceph, bucket: S3Bucket, tmp_path: Path) -> None:
    live.check_killed_at_any_time(scene_of(s3_server, bucket, tmp_path, 4), (0.9, 1.1, 1.3, 1.6))


def test_promote_killed_at_some_writes_is_completed(
    s3_server: ceph.Ceph, bucket: S3Bucket, s3_client: Any, tmp_path: Path
) -> None:
    scene = scene_of(s3_server, bucket, tmp_path, 1)
    other = S3Bucket(s3_client, bucket.name, prefix="undisturbed/")
    staged_sets(other, tmp_path / "other", 1)
    act(other, "promote", scene.sets[0].digest)
    expected = {key: other.get(key) for key in other.list("v2/")}
    live.check_killed_and_run_again(scene, expected, (0, 13, 18, 1, 3))


def test_promote_killed_at_some_writes_is_repaired(s3_server: ceph.Ceph, bucket: S3Bucket, tmp_path: Path) -> None:
    live.check_killed_and_repaired(scene_of(s3_server, bucket, tmp_path, 2), (0, 5, 12))


def test_index_serve_streams_from_store(
    s3_server: ceph.Ceph, bucket: S3Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scene_of(s3_server, bucket, tmp_path, 1)
    act(bucket, "promote", scene.sets[0].digest)
    large, data = "v2/multi-arch/packages/large/large-1-py3-none-any.whl", os.urandom(17 << 20)
    bucket.put_if_absent(large, data, sha256=sha256_of(data))
    empty = tmp_path / "no files"
    empty.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(empty))
    ranges: list[int] = []
    read_range = S3Bucket.read_range

    def counted(self: S3Bucket, key: str, start: int, size: int, etag: str) -> bytes:
        ranges.append(size)
        return read_range(self, key, start, size, etag)

    monkeypatch.setattr(S3Bucket, "read_range", counted)
    with IndexServer(served_files(bucket, pytest.fail)) as server:
        with monkeypatch.context() as patch:
            patch.setattr("tempfile.tempdir", None)
            assert installed(server.url + RELEASED.simple, tmp_path / "installed") == "0.10.2+rocm7.0.0"
        ranges.clear()
        with urllib.request.urlopen(server.url + large) as answer:
            assert answer.read() == data
            etag = answer.headers["ETag"]
        assert max(ranges) <= 4 << 20
        part = urllib.request.Request(server.url + large, headers={"Range": "bytes=5000000-5000009", "If-Range": etag})
        with urllib.request.urlopen(part) as answer:
            assert (answer.status, answer.read()) == (206, data[5000000:5000010])
        for path, status in (("v2/multi-arch/nothing", 404), ("v2/../x", 404), ("v2-staging/", 404)):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(server.url + path)
            with caught.value as error:
                assert error.code == status
        with urllib.request.urlopen(server.url + RELEASED.simple.rstrip("/")) as answer:
            assert answer.url.endswith("/simple/")
    assert list(empty.iterdir()) == []


def test_reproduce_reads_set_from_store(
    s3_server: ceph.Ceph, bucket: S3Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = scene_of(s3_server, bucket, tmp_path, 1)
    act(bucket, "promote", scene.sets[0].digest)
    words = ["reproduce", str(scene.sets[0]), "--bucket", scene.where, "--cache-dir", str(tmp_path / "cache")]
    for _ in ("staged", "released"):
        assert fetch_set(bucket, scene.sets[0], tmp_path / "fetched").digest == scene.sets[0].digest
        assert cli.run(words) == RequestError.exit_code
        assert "The recorded request has no" in capsys.readouterr().err, "the set of the tests was not built"
        remove(bucket, staged_folders(bucket, RELEASED.index, days=0))
        shutil.rmtree(tmp_path / "fetched")


def test_staging_gc_removes_unpinned_sets(s3_server: ceph.Ceph, bucket: S3Bucket, tmp_path: Path) -> None:
    scene = scene_of(s3_server, bucket, tmp_path, 2)
    act(bucket, "promote", scene.sets[0].digest)
    mark(bucket, RELEASED, EntryKind.PIN, ["1"], reason="customer", actor="tests")
    young = staged_folders(bucket, RELEASED.index, days=1)
    assert {folder.kept for folder in young} == {"pinned: customer", "used less than 1 days ago"}
    folders = [folder for folder in staged_folders(bucket, RELEASED.index, days=0) if not folder.kept]
    assert [folder.staged for folder in folders] == [scene.sets[1]]
    remove(bucket, folders)
    assert list(bucket.list(scene.sets[1].root)) == []
    assert read_staged(bucket, scene.sets[0]).digest == scene.sets[0].digest
    scene.sound()


def test_promote_copies_wheels_within_store(bucket: S3Bucket, tmp_path: Path) -> None:
    move = moving(bucket, tmp_path, 60)
    assert move.copies <= move.files
    assert move.sent + move.received < 200_000
    assert all(goal.met for goal in goals([], move))
    assert not all(goal.met for goal in goals([], replace(move, received=move.wheel_bytes)))


def test_traffic_is_counted(bucket: S3Bucket) -> None:
    with watch(bucket, NotImplemented) as traffic:
        bucket.put_if_match("v2/k", b"12345", etag=None)
        assert bucket.get("v2/k") == b"12345"
    assert traffic.received == 5
    assert traffic.sent >= 5
    assert traffic.requests >= 2
