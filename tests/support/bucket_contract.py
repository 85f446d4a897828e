"""Contract of every Bucket.

Run on a folder in tests/unit and on a real S3 server in tests/integration.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from core.digests import sha256_of
from core.errors import BucketError
from promotion.storage.bucket import AbsentError, Bucket, ConflictError

BAD_KEYS = [
    "",
    "/etc/passwd",
    "../up",
    "a/../b",
    "a//b",
    "a/",
    ".hidden",
    "a/.hidden",
    "a\\b",
    "a b",
    "a\nb",
    "a%2Fb",
]
_RACES = 8


def put(bucket: Bucket, key: str, data: bytes) -> bool:
    return bucket.put_if_absent(key, data, sha256=sha256_of(data))


def run_together(actions: Sequence[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class BucketContract:
    """Tests of a bucket; subclasses define a fixture `bucket` that returns an empty bucket."""

    def test_put_object_can_be_read(self, bucket: Bucket, tmp_path: Path) -> None:
        assert bucket.head("a/b.txt") is None
        assert put(bucket, "a/b.txt", b"content")
        info = bucket.head("a/b.txt")
        assert info is not None
        assert info.key == "a/b.txt"
        assert info.size == 7
        assert info.sha256 == sha256_of(b"content")
        assert bucket.get("a/b.txt") == b"content"
        assert bucket.read("a/b.txt") == (b"content", info)
        assert bucket.read("a/none") is None
        with bucket.open("a/b.txt") as file:
            file.seek(3)
            assert file.read() == b"tent"
            file.seek(-2, os.SEEK_END)
            assert file.read(1) == b"n"
        fetched = bucket.fetch("a/b.txt", tmp_path)
        assert fetched.name == "b.txt"
        assert fetched.read_bytes() == b"content"

    def test_put_same_bytes_changes_nothing(self, bucket: Bucket) -> None:
        assert put(bucket, "p/k", b"one")
        before = bucket.head("p/k")
        assert not put(bucket, "p/k", b"one")
        assert bucket.head("p/k") == before

    def test_put_other_bytes_is_refused(self, bucket: Bucket) -> None:
        put(bucket, "p/k", b"one")
        with pytest.raises(ConflictError, match="p/k is stored with sha256"):
            put(bucket, "p/k", b"two")
        assert bucket.get("p/k") == b"one"

    def test_put_refuses_other_digest(self, bucket: Bucket) -> None:
        with pytest.raises(BucketError, match="have sha256"):
            bucket.put_if_absent("p/k", b"one", sha256=sha256_of(b"two"))
        assert bucket.head("p/k") is None

    def test_put_names_missing_source(self, bucket: Bucket, tmp_path: Path) -> None:
        with pytest.raises(BucketError, match=r"gone\.whl cannot be read"):
            bucket.put_if_absent("p/k", tmp_path / "gone.whl", sha256="0" * 64)

    def test_put_if_match_compares_etag(self, bucket: Bucket) -> None:
        first = bucket.put_if_match("p/page", b"1", etag=None)
        with pytest.raises(ConflictError):
            bucket.put_if_match("p/page", b"2", etag=None)
        second = bucket.put_if_match("p/page", b"2", etag=first.etag)
        with pytest.raises(ConflictError, match="changed by another process"):
            bucket.put_if_match("p/page", b"3", etag=first.etag)
        assert bucket.get("p/page") == b"2"
        assert bucket.head("p/page") == second
        with pytest.raises(ConflictError):
            bucket.put_if_match("p/never-there", b"", etag=first.etag)

    def test_put_page_keeps_key(self, bucket: Bucket) -> None:
        for key in (
            "v2/i/simple/index.html",
            "v2/i/simple/p/index.html",
            "v2/i/simple/p/index.json",
        ):
            bucket.put_if_match(key, key.encode(), etag=None)
        listed = list(bucket.list("v2/i/simple/"))
        assert listed == [
            "v2/i/simple/index.html",
            "v2/i/simple/p/index.html",
            "v2/i/simple/p/index.json",
        ]
        assert all(bucket.get(key) == key.encode() for key in listed)

    def test_copy_checks_digest(self, bucket: Bucket) -> None:
        put(bucket, "staged/w", b"wheel")
        digest = sha256_of(b"wheel")
        assert bucket.copy("staged/w", "released/w", sha256=digest)
        assert not bucket.copy("staged/w", "released/w", sha256=digest)
        assert bucket.get("released/w") == b"wheel"
        copied = bucket.head("released/w")
        assert copied is not None
        assert copied.sha256 == digest
        with pytest.raises(BucketError, match="staged/w has sha256"):
            bucket.copy("staged/w", "released/other", sha256="0" * 64)
        with pytest.raises(BucketError, match="staged/none is absent"):
            bucket.copy("staged/none", "released/other", sha256=digest)
        put(bucket, "released/taken", b"other")
        with pytest.raises(ConflictError):
            bucket.copy("staged/w", "released/taken", sha256=digest)
        assert bucket.get("released/taken") == b"other"
        assert bucket.head("released/other") is None

    def test_list_returns_objects_only(self, bucket: Bucket) -> None:
        for key in ("s/b/2", "s/a", "s/b/1", "t/x"):
            put(bucket, key, b"")
        bucket.put_if_match("s/page", b"", etag=None)
        assert list(bucket.list("s/")) == ["s/a", "s/b/1", "s/b/2", "s/page"]
        assert list(bucket.list("nothing/")) == []
        assert list(bucket.list("s/b/")) == ["s/b/1", "s/b/2"]

    def test_delete_checks_digest(self, bucket: Bucket) -> None:
        put(bucket, "s/k", b"one")
        with pytest.raises(ConflictError, match="Cannot remove s/k: its sha256 is"):
            bucket.delete("s/k", sha256=sha256_of(b"two"))
        assert bucket.get("s/k") == b"one"
        assert bucket.delete("s/k", sha256=sha256_of(b"one"))
        assert not bucket.delete("s/k", sha256=sha256_of(b"one"))
        assert bucket.head("s/k") is None
        assert list(bucket.list("s/")) == []

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_invalid_keys_are_refused(self, bucket: Bucket, key: str) -> None:
        for action in (
            bucket.head,
            bucket.get,
            lambda key: put(bucket, key, b""),
            bucket.open,
        ):
            with pytest.raises(BucketError, match="is not a valid key"):
                action(key)

    def test_absent_objects_are_reported(self, bucket: Bucket, tmp_path: Path) -> None:
        put(bucket, "folder/object", b"")
        for key in ("folder", "folder/object/below", "nowhere"):
            assert bucket.head(key) is None
            for action in (
                bucket.get,
                bucket.open,
                lambda key: bucket.fetch(key, tmp_path),
            ):
                with pytest.raises(AbsentError):
                    action(key)


class SharedBucketContract(BucketContract):
    """Further tests of a bucket that stores the bytes and accepts concurrent writers."""

    def test_put_copies_source_file(self, bucket: Bucket, tmp_path: Path) -> None:
        source = tmp_path / "wheel"
        source.write_bytes(os.urandom(3 << 20))
        assert bucket.put_if_absent("p/wheel", source, sha256=sha256_of(source))
        before = bucket.get("p/wheel")
        assert before == source.read_bytes()
        with source.open("r+b") as file:
            file.write(b"changed")
        assert bucket.get("p/wheel") == before
        with pytest.raises(ConflictError):
            bucket.put_if_absent("p/wheel", source, sha256=sha256_of(source))

    def test_concurrent_creators_have_one_winner(self, bucket: Bucket) -> None:
        for round_ in range(_RACES):
            key = f"p/k{round_}"
            outcomes: list[int] = []

            def create(
                number: int, key: str = key, outcomes: list[int] = outcomes
            ) -> None:
                try:
                    put(bucket, key, b"%d" % number)
                    outcomes.append(number)
                except ConflictError:
                    pass

            run_together([lambda n=n: create(n) for n in range(8)])  # type: ignore[misc]
            assert len(outcomes) == 1
            assert bucket.get(key) == b"%d" % outcomes[0]

    def test_concurrent_copies_have_one_winner(self, bucket: Bucket) -> None:
        contents = [b"%d" % number for number in range(8)]
        for content in contents:
            put(bucket, f"staged/{content.decode()}", content)
        for round_ in range(_RACES // 4):
            key = f"released/k{round_}"
            won: list[bytes] = []

            def copy(content: bytes, key: str = key, won: list[bytes] = won) -> None:
                try:
                    bucket.copy(
                        f"staged/{content.decode()}", key, sha256=sha256_of(content)
                    )
                    won.append(content)
                except ConflictError:
                    pass

            run_together([lambda c=c: copy(c) for c in contents])  # type: ignore[misc]
            assert len(won) == 1
            assert bucket.get(key) == won[0]

    def test_concurrent_updates_are_all_applied(self, bucket: Bucket) -> None:
        bucket.put_if_match("p/counter", b"0", etag=None)

        def add_five() -> None:
            added = 0
            while added < 5:
                info = bucket.head("p/counter")
                assert info is not None
                data = bucket.get("p/counter")
                try:
                    if sha256_of(data) == info.sha256:
                        bucket.put_if_match(
                            "p/counter", b"%d" % (int(data) + 1), etag=info.etag
                        )
                        added += 1
                except ConflictError:
                    pass

        run_together([add_five] * 4)
        assert bucket.get("p/counter") == b"20"
