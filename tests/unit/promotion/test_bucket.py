"""DirBucket: the contract of all buckets, crash safety, locks and failing disks."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from core.digests import sha256_of
from core.errors import BucketError, BusyError
from promotion.index.audit import verify
from promotion.storage import directory_bucket
from promotion.storage.bucket import ConflictError
from promotion.storage.directory_bucket import DirBucket
from tests.support.bucket_contract import SharedBucketContract, put
from tests.support.memory_bucket import MemoryBucket
from tests.support.promoting import RELEASED, go, staged_in
from tests.support.wheel_sets import make_wheels


def leftovers(bucket: DirBucket) -> list[str]:
    return [path.name for path in bucket.root.rglob(".*") if path.name != ".lock"]


class TestDirBucket(SharedBucketContract):
    """The contract of all buckets on a folder."""

    @pytest.fixture(autouse=True)
    def nothing_left(self, bucket: DirBucket) -> object:
        yield
        assert leftovers(bucket) == []


class TestMemoryBucket(SharedBucketContract):
    @pytest.fixture
    def bucket(self) -> MemoryBucket:
        return MemoryBucket()


def test_list_skips_files_of_crashes(bucket: DirBucket) -> None:
    put(bucket, "s/a", b"")
    (bucket.root / "s" / ".new-left-by-a-crash").write_bytes(b"half")
    assert list(bucket.list("s/")) == ["s/a"]


def test_put_below_object_is_refused(bucket: DirBucket) -> None:
    put(bucket, "folder/object", b"")
    with pytest.raises(BucketError):
        put(bucket, "folder/object/below", b"")


def test_bucket_works_without_hard_links(
    bucket: DirBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*args: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    assert put(bucket, "k", b"one")
    assert not put(bucket, "k", b"one")
    with pytest.raises(ConflictError):
        put(bucket, "k", b"two")
    assert bucket.copy("k", "copy", sha256=sha256_of(b"one"))
    assert bucket.get("copy") == b"one"
    assert leftovers(bucket) == []


def test_copy_is_not_damaged_with_its_source(bucket: DirBucket) -> None:
    put(bucket, "k", b"one")
    bucket.copy("k", "copy", sha256=sha256_of(b"one"))
    assert not bucket.path("k").samefile(bucket.path("copy"))


@pytest.mark.parametrize(
    "broken",
    [
        "os.fsync",
        "os.link",
        "promotion.storage.directory_bucket._write",
        "pathlib.Path.mkdir",
        "tempfile.mkstemp",
    ],
)
def test_full_disk_leaves_no_file(
    bucket: DirBucket, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*args: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    bucket.root.mkdir()
    monkeypatch.setattr(broken, fail)
    with pytest.raises(BucketError, match="cannot read or write k: No space left"):
        put(bucket, "k", b"one")
    assert bucket.head("k") is None
    assert leftovers(bucket) == []


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (errno.EXDEV, ""),
        (errno.EIO, "Input/output error"),
        (0, "have sha256"),
    ],
)
def test_file_is_copied_whole_or_not_at_all(
    bucket: DirBucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    problem: str,
) -> None:
    """Code 0 stands for a file that ends early."""
    source = tmp_path / "file"
    calls = list[int]()
    source.write_bytes(b"one")

    def copy(*args: int) -> int:
        calls.append(code)
        if code or len(calls) > 1:
            raise OSError(code, os.strerror(code))
        return 0

    monkeypatch.setattr(os, "copy_file_range", copy)
    if problem:
        with pytest.raises(BucketError, match=problem):
            bucket.put_if_absent("k", source, sha256=sha256_of(b"one"))
    else:
        assert bucket.put_if_absent("k", source, sha256=sha256_of(b"one"))
    assert (bucket.head("k") is None) == bool(problem)


def test_list_reports_failing_reads(
    bucket: DirBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing that lacks a folder could cause a second ledger or missing files."""
    put(bucket, "s/a", b"")
    put(bucket, "s/folder/b", b"")
    scandir = os.scandir

    def fail(path: str) -> object:
        if str(path).endswith("folder"):
            raise OSError(errno.EIO, "Input/output error")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(BucketError, match="cannot read or write s/"):
        list(bucket.list("s/"))


def test_verify_reports_unreadable_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = DirBucket(tmp_path / "bucket")
    go(
        bucket,
        staged_in(bucket, tmp_path, make_wheels(tmp_path / "w", pythons=("3.12",))),
    )
    monkeypatch.setattr(DirBucket, "fetch", lambda self, key, folder: tmp_path)
    found = list(verify(bucket, RELEASED, read=True))
    assert found
    assert all(line.endswith("cannot be read: Is a directory.") for line in found)


def test_put_reports_held_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_bucket, "_LOCK_SECONDS", 0.05)
    first = DirBucket(tmp_path)
    second = DirBucket(tmp_path)
    with first._locked(), pytest.raises(BusyError, match=r"locked .* 0\.05 s"):
        second.put_if_match("page", b"", etag=None)


@pytest.mark.parametrize("key", ["p/link", "linked/k"])
def test_bucket_refuses_symbolic_links(
    bucket: DirBucket, tmp_path: Path, key: str
) -> None:
    put(bucket, "p/k", b"one")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/k").write_bytes(b"one")
    (bucket.root / "p/link").symlink_to(tmp_path / "outside/k")
    (bucket.root / "linked").symlink_to(tmp_path / "outside")
    digest = sha256_of(b"one")
    for action in (
        lambda: bucket.head(key),
        lambda: bucket.get(key),
        lambda: bucket.read(key),
        lambda: bucket.fetch(key, tmp_path),
        lambda: put(bucket, key, b"one"),
        lambda: bucket.put_if_match(key, b"two", etag=None),
        lambda: bucket.copy(key, "copy", sha256=digest),
        lambda: bucket.copy("p/k", key, sha256=digest),
        lambda: bucket.delete(key, sha256=digest),
    ):
        with pytest.raises(BucketError, match="is a symbolic link"):
            action()
    assert (tmp_path / "outside/k").read_bytes() == b"one"
    assert bucket.head("copy") is None


def test_list_shows_symbolic_links(bucket: DirBucket, tmp_path: Path) -> None:
    put(bucket, "s/a", b"")
    (bucket.root / "s/folder").symlink_to(tmp_path)
    (bucket.root / "s/dangling").symlink_to(tmp_path / "nothing")
    assert list(bucket.list("s/")) == ["s/a", "s/dangling", "s/folder"]
