"""Staging of a set's folder."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from core import wheelset
from core.errors import BucketError, WheelSetError
from core.wheels_json import dump_wheel_set
from promotion.stage import fetch_set, read_staged, stage, write_if_changed
from promotion.storage.bucket import ConflictError, ObjectInfo
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.promoting import go, staged_in
from tests.support.wheel_sets import SetWheel, make_set, make_wheels, write_set


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[SetWheel]:
    return make_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture
def folder(tmp_path: Path, wheels: list[SetWheel]) -> Path:
    return write_set(tmp_path / "set", wheels, make_set(wheels))


def snapshot(bucket: DirBucket) -> dict[str, tuple[bytes, int]]:
    return {
        key: (bucket.get(key), bucket.path(key).stat().st_mtime_ns)
        for key in bucket.list("v2-staging/")
    }


def test_stage_stores_set_under_digest(
    bucket: DirBucket, folder: Path, wheels: list[SetWheel]
) -> None:
    staged = stage(bucket, folder)
    wheel_set = make_set(wheels)
    assert staged == StagedSet(index="multi-arch", digest=wheel_set.digest)
    assert read_staged(bucket, staged) == wheel_set
    names = {key.removeprefix(staged.root) for key in bucket.list(staged.root)}
    files = {wheel.wheel.filename for wheel in wheels}
    pages: set[str] = set()
    for p in ("jax-rocm7-pjrt", "jax-rocm7-plugin", "jaxlib"):
        pages.update(f"simple/{p}/index.{kind}" for kind in ("html", "json"))
    expected = (
        files
        | {f"{name}.metadata" for name in files}
        | pages
        | {"simple/index.html", "simple/index.json"}
    )
    expected |= {"constraints.txt", "debug/library.debug", "SHA256SUMS", "wheels.json"}
    assert names == expected
    for wheel in wheels:
        assert bucket.get(staged.file(wheel.wheel.filename)) == wheel.data


def test_stage_writes_index_of_set(
    bucket: DirBucket, folder: Path, wheels: list[SetWheel]
) -> None:
    staged = stage(bucket, folder)
    offered = {}
    for project in ("jax-rocm7-pjrt", "jax-rocm7-plugin", "jaxlib"):
        page = json.loads(bucket.get(f"{staged.simple}{project}/index.json"))
        for file in page["files"]:
            offered[file["filename"]] = file["hashes"]["sha256"]
            metadata = bucket.get(staged.file(file["filename"] + ".metadata"))
            assert (
                hashlib.sha256(metadata).hexdigest() == file["core-metadata"]["sha256"]
            )
            assert b"Requires-Python: >=3.11" in metadata
            assert file["requires-python"] == ">=3.11"
    assert offered == {wheel.wheel.filename: wheel.wheel.sha256 for wheel in wheels}


def test_stage_twice_changes_nothing(bucket: DirBucket, folder: Path) -> None:
    stage(bucket, folder)
    before = snapshot(bucket)
    stage(bucket, folder)
    assert snapshot(bucket) == before


def test_stage_refuses_other_stored_bytes(
    bucket: DirBucket, folder: Path, wheels: list[SetWheel]
) -> None:
    staged = stage(bucket, folder)
    path = bucket.path(staged.file(wheels[0].wheel.filename))
    path.unlink()
    path.write_bytes(b"other")
    with pytest.raises(BucketError, match=r"jax_rocm7_pjrt.* is stored with sha256"):
        stage(bucket, folder)


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def first_wheel(folder: Path) -> Path:
    return min(folder.glob("*.whl"))


FAULTS: list[tuple[Callable[[Path], object], str]] = [
    (lambda f: (f / "wheels.json").unlink(), r"wheels\.json cannot be read"),
    (lambda f: first_wheel(f).unlink(), r"jax_rocm7_pjrt.*\.whl is missing"),
    (
        lambda f: flip_a_byte(first_wheel(f)),
        r"jax_rocm7_pjrt.*\.whl has sha256 \w+; \w+ was expected",
    ),
    (
        lambda f: (f / "x-1-py3-none-any.whl").write_bytes(b""),
        "x-1-py3-none-any.whl is not part",
    ),
    (
        lambda f: (f / "constraints.txt").write_text("x"),
        r"constraints\.txt has 1 bytes; 95 were",
    ),
    (lambda f: (f / "SHA256SUMS").write_bytes(b"\xff\x80"), "SHA256SUMS cannot be"),
    (lambda f: (f / "SHA256SUMS").write_text("nonsense\n"), "disagree on"),
    (
        lambda f: (f / "SHA256SUMS").write_text(f"{'0' * 64}  {first_wheel(f).name}\n"),
        "disagree on jax_rocm7_pjrt",
    ),
    (
        lambda f: (f / "SHA256SUMS").write_text(f"{'0' * 64}  ../../etc/passwd\n"),
        r"disagree on \.\./",
    ),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS)
def test_stage_refuses_changed_folder(
    bucket: DirBucket, folder: Path, fault: Callable[[Path], object], message: str
) -> None:
    fault(folder)
    with pytest.raises(WheelSetError, match=message):
        stage(bucket, folder)
    assert snapshot(bucket) == {}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("version", "0.10.2", "METADATA has Version"),
        ("name", "jax-rocm8-pjrt", "METADATA has Name"),
        ("requires_python", "", "METADATA has Requires-Python"),
        ("requires_dist", (), "METADATA has Requires-Dist"),
    ],
)
def test_stage_refuses_different_metadata(
    bucket: DirBucket,
    folder: Path,
    wheels: list[SetWheel],
    field: str,
    value: object,
    message: str,
) -> None:
    made = make_set(wheels)
    first = replace(made.wheels[0], **{field: value})  # type: ignore[arg-type]
    (folder / "wheels.json").write_text(
        dump_wheel_set(replace(made, wheels=(first, *made.wheels[1:])))
    )
    with pytest.raises(WheelSetError, match=message):
        stage(bucket, folder)
    assert snapshot(bucket) == {}


def test_read_staged_refuses_other_set(
    bucket: DirBucket, folder: Path, wheels: list[SetWheel]
) -> None:
    staged = stage(bucket, folder)
    path = bucket.path(staged.file("wheels.json"))
    path.unlink()
    path.write_text(dump_wheel_set(make_set(wheels, jax_version="0.11.0")))
    with pytest.raises(WheelSetError, match="belongs to another set: multi-arch/"):
        read_staged(bucket, staged)


@pytest.mark.parametrize("same", [True, False])
def test_write_if_changed_accepts_equal_bytes_of_another_process(
    tmp_path: Path, *, same: bool
) -> None:
    class Raced(DirBucket):
        """A bucket where another process writes just before."""

        def put_if_match(
            self, key: str, data: bytes, *, etag: str | None
        ) -> ObjectInfo:
            super().put_if_match(key, data if same else b"other", etag=etag)
            return super().put_if_match(key, data, etag=etag)

    bucket = Raced(tmp_path / "bucket")
    if same:
        write_if_changed(bucket, "v2-staging/page", b"page")
    else:
        with pytest.raises(ConflictError):
            write_if_changed(bucket, "v2-staging/page", b"page")


@pytest.mark.parametrize("released", [False, True])
def test_fetch_set_downloads_staged_or_released_set(
    bucket: DirBucket, tmp_path: Path, released: bool
) -> None:
    staged = staged_in(bucket, tmp_path, make_wheels(tmp_path / "w", pythons=("3.12",)))
    if released:
        go(bucket, staged)
        shutil.rmtree(bucket.path(staged.root.rstrip("/")))
    folder = tmp_path / "fetched"
    made = fetch_set(bucket, staged, folder)
    assert made.digest == staged.digest
    assert wheelset.file_problems(folder, made) == {}
    assert wheelset.foreign_files(folder) == ()
    assert stage(DirBucket(tmp_path / "other"), folder) == staged


def test_fetch_set_refuses_changed_and_missing_sets(
    bucket: DirBucket, tmp_path: Path
) -> None:
    staged = staged_in(bucket, tmp_path, make_wheels(tmp_path / "w", pythons=("3.12",)))
    path = bucket.path(staged.file("constraints.txt"))
    path.unlink()
    path.write_bytes(b"forged")
    with pytest.raises(BucketError, match=r"has other files: constraints\.txt"):
        fetch_set(bucket, staged, tmp_path / "fetched")
    with pytest.raises(BucketError, match="has no set"):
        fetch_set(
            bucket, StagedSet(index="multi-arch", digest="0" * 64), tmp_path / "other"
        )
