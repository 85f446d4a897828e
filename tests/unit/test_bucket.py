"""DirBucket: create-only, compare-and-swap, crash safety; what any other bucket will have to do as well."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_build.errors import BucketError, BusyError
from promotion.bucket import AbsentError, ConflictError, sha256_of
from promotion.dirbucket import DirBucket


@pytest.fixture
def bucket(tmp_path: Path) -> DirBucket:
    return DirBucket(tmp_path / "bucket", lock_seconds=5)


def put(bucket: DirBucket, key: str, data: bytes) -> bool:
    return bucket.put_if_absent(key, data, sha256=sha256_of(data))


def leftovers(bucket: DirBucket) -> list[str]:
    return [path.name for path in bucket.root.rglob(".*") if path.name != ".lock"]


def test_what_was_put_can_be_read(bucket: DirBucket, tmp_path: Path) -> None:
    assert bucket.head("a/b.txt") is None
    assert put(bucket, "a/b.txt", b"content")
    info = bucket.head("a/b.txt")
    assert info is not None
    assert (info.size, info.sha256) == (7, sha256_of(b"content"))
    assert bucket.get("a/b.txt") == b"content"
    with bucket.open("a/b.txt") as file:
        file.seek(3)
        assert file.read() == b"tent"
    assert bucket.fetch("a/b.txt", tmp_path).read_bytes() == b"content"


def test_a_file_is_copied_in_and_not_aliased(bucket: DirBucket, tmp_path: Path) -> None:
    source = tmp_path / "wheel"
    source.write_bytes(os.urandom(3 << 20))
    bucket.put_if_absent("wheel", source, sha256=sha256_of(source))
    before = bucket.get("wheel")
    assert before == source.read_bytes()
    with source.open("r+b") as file:
        file.write(b"changed")
    assert bucket.get("wheel") == before


def test_the_same_bytes_again_are_a_no_op(bucket: DirBucket) -> None:
    assert put(bucket, "k", b"one")
    stat = bucket.path("k").stat()
    assert not put(bucket, "k", b"one")
    assert bucket.path("k").stat().st_mtime_ns == stat.st_mtime_ns


def test_other_bytes_under_a_taken_key_are_refused(bucket: DirBucket) -> None:
    put(bucket, "k", b"one")
    with pytest.raises(ConflictError, match="k is stored with sha256"):
        put(bucket, "k", b"two")
    assert bucket.get("k") == b"one"


def test_bytes_with_another_hash_are_refused(bucket: DirBucket) -> None:
    with pytest.raises(BucketError, match="hash to"):
        bucket.put_if_absent("k", b"one", sha256=sha256_of(b"two"))
    assert bucket.head("k") is None
    assert leftovers(bucket) == []


def test_a_source_that_is_gone_is_named(bucket: DirBucket, tmp_path: Path) -> None:
    with pytest.raises(BucketError, match=r"gone\.whl cannot be read"):
        bucket.put_if_absent("k", tmp_path / "gone.whl", sha256="0" * 64)
    assert leftovers(bucket) == []


def test_compare_and_swap(bucket: DirBucket) -> None:
    first = bucket.put_if_match("page", b"1", etag=None)
    with pytest.raises(ConflictError):
        bucket.put_if_match("page", b"2", etag=None)
    second = bucket.put_if_match("page", b"2", etag=first.etag)
    with pytest.raises(ConflictError, match="changed by somebody else"):
        bucket.put_if_match("page", b"3", etag=first.etag)
    assert bucket.get("page") == b"2"
    assert bucket.head("page") == second
    assert leftovers(bucket) == []


def test_copy_is_by_digest(bucket: DirBucket) -> None:
    put(bucket, "staged/w", b"wheel")
    digest = sha256_of(b"wheel")
    assert bucket.copy("staged/w", "released/w", sha256=digest)
    assert not bucket.copy("staged/w", "released/w", sha256=digest)
    assert bucket.get("released/w") == b"wheel"
    with pytest.raises(BucketError, match="staged/w has sha256"):
        bucket.copy("staged/w", "released/other", sha256="0" * 64)
    with pytest.raises(BucketError, match="staged/none is absent"):
        bucket.copy("staged/none", "released/other", sha256=digest)
    put(bucket, "released/taken", b"other")
    with pytest.raises(ConflictError):
        bucket.copy("staged/w", "released/taken", sha256=digest)
    assert bucket.head("released/other") is None


def test_list_gives_objects_only(bucket: DirBucket) -> None:
    for key in ("s/b/2", "s/a", "s/b/1", "t/x"):
        put(bucket, key, b"")
    bucket.put_if_match("s/page", b"", etag=None)
    (bucket.root / "s" / ".new-left-by-a-crash").write_bytes(b"half")
    assert list(bucket.list("s/")) == ["s/a", "s/b/1", "s/b/2", "s/page"]
    assert list(bucket.list("nothing/")) == []


BAD_KEYS = ["", "/etc/passwd", "../up", "a/../b", "a//b", "a/", ".hidden", "a/.hidden", "a\\b", "a b", "a\nb", "a%2Fb"]


@pytest.mark.parametrize("key", BAD_KEYS)
def test_keys_that_could_leave_the_folder_are_refused(bucket: DirBucket, key: str) -> None:
    for action in (bucket.head, bucket.get, lambda key: put(bucket, key, b""), bucket.open):
        with pytest.raises(BucketError, match="cannot be a key"):
            action(key)


def test_wheel_names_are_keys(bucket: DirBucket) -> None:
    assert put(bucket, "p/jax_rocm7_plugin-1!0.10.2+rocm7.2.0~x-cp312-cp312-manylinux_2_28_x86_64.whl", b"")


def test_absent_objects_and_folders(bucket: DirBucket) -> None:
    put(bucket, "folder/object", b"")
    for key in ("folder", "folder/object/below", "nowhere"):
        assert bucket.head(key) is None
        with pytest.raises(AbsentError):
            bucket.get(key)


def test_an_object_cannot_lie_below_another_one(bucket: DirBucket) -> None:
    put(bucket, "folder/object", b"")
    with pytest.raises(BucketError):
        put(bucket, "folder/object/below", b"")


def test_without_hard_links_it_works_the_same(bucket: DirBucket, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("broken", ["fsync", "link"])
def test_a_failing_disk_leaves_nothing(bucket: DirBucket, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    bucket.root.mkdir()
    monkeypatch.setattr(os, broken, fail)
    with pytest.raises(BucketError, match="cannot read or write k: No space left"):
        put(bucket, "k", b"one")
    assert bucket.head("k") is None
    assert leftovers(bucket) == []


def test_a_lock_that_is_held_is_reported(tmp_path: Path) -> None:
    first, second = DirBucket(tmp_path), DirBucket(tmp_path, lock_seconds=0.05)
    with first._locked(), pytest.raises(BusyError, match=r"locked for 0\.05 s"):
        second.put_if_match("page", b"", etag=None)


def run_together(actions: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_of_many_creators_one_wins(bucket: DirBucket) -> None:
    for round_ in range(20):
        key = f"k{round_}"
        outcomes: list[int] = []

        def create(number: int, key: str = key, outcomes: list[int] = outcomes) -> None:
            try:
                put(bucket, key, b"%d" % number)
                outcomes.append(number)
            except ConflictError:
                pass

        run_together([lambda n=n: create(n) for n in range(8)])  # type: ignore[misc]
        assert len(outcomes) == 1
        assert bucket.get(key) == b"%d" % outcomes[0]


def test_no_update_is_lost(bucket: DirBucket) -> None:
    bucket.put_if_match("counter", b"0", etag=None)

    def add_five() -> None:
        added = 0
        while added < 5:
            info = bucket.head("counter")
            assert info is not None
            data = bucket.get("counter")
            try:
                if sha256_of(data) == info.sha256:
                    bucket.put_if_match("counter", b"%d" % (int(data) + 1), etag=info.etag)
                    added += 1
            except ConflictError:
                pass

    run_together([add_five] * 4)
    assert bucket.get("counter") == b"20"
