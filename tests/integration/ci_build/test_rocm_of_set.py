"""`gate device --rocm=set`.

The tests load the ROCm that the set was built with, from a real server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ci_build.release.set_rocm import with_rocm_of_set
from ci_build.rocm.lock import RocmLock
from ci_build.rocm.rocm_request import RocmStorage
from ci_build.rocm.rocm_store import RocmStore
from ci_build.rocm.set_lock import set_lock
from ci_build.rocm.source import obtain
from core.errors import BucketError, InputError
from core.http.client import Client, RetryPolicy
from core.process import HostRunner
from core.report import Reporter
from promotion.gates.device.device_request import DeviceRequest
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support.file_server import Behaviour, serving
from tests.support.made_rocm import NAME, VERSION, make_rocm, rocm_request, tarball
from tests.support.promoting import staged_in
from tests.support.wheel_sets import make_wheels

PATH = f"/tarball/{NAME}"
KERNELS = "lib/rocblas/library/Kernels_gfx942.hsaco"
REPORTER = Reporter(terminal=False)
QUICK = RetryPolicy(connect=2, read=2, tries=2, first_wait=0.01, longest_wait=0.01)
REQUEST = DeviceRequest(platform="rocm", family="gfx94X-dcgpu", rocm_of_set=True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Behaviour]:
    root = make_rocm(tmp_path / "made")
    (root / KERNELS).parent.mkdir(parents=True, exist_ok=True)
    (root / KERNELS).write_bytes(b"kernels")
    with serving(Behaviour(files={PATH: tarball(root)})) as behaviour:
        yield behaviour


@pytest.fixture
def lock(tmp_path: Path, server: Behaviour) -> RocmLock:
    """Return the lock of a build with this ROCm."""
    store = RocmStore(tmp_path / "builder", progress=REPORTER)
    source = rocm_request(
        server.url + PATH, version=VERSION, lock=tmp_path / "rocm.lock"
    )
    rocm = obtain(
        source, store, Client(policy=QUICK), progress=REPORTER, runner=HostRunner({})
    )
    assert not (rocm.root / KERNELS).exists(), "a build needs no kernels"
    return rocm.lock


def staged(tmp_path: Path, rocm_lock: bytes) -> tuple[StagedSet, DirBucket]:
    bucket = DirBucket(tmp_path / "bucket")
    return staged_in(
        bucket, tmp_path, make_wheels(tmp_path), rocm_lock=rocm_lock
    ), bucket


def asked(tmp_path: Path, one: StagedSet, bucket: DirBucket) -> DeviceRequest:
    storage = RocmStorage(cache=tmp_path / "cache", limit=1 << 40)
    return with_rocm_of_set(
        REQUEST,
        one,
        bucket,
        storage,
        REPORTER,
        HostRunner({}),
        lambda: Client(policy=QUICK),
    )


def test_tests_load_whole_rocm_of_set(
    tmp_path: Path, server: Behaviour, lock: RocmLock
) -> None:
    place = staged(tmp_path, set_lock(lock))
    root = asked(tmp_path, *place).rocm
    assert root is not None
    assert (root / KERNELS).read_bytes() == b"kernels"
    requests = len(server.seen)
    assert asked(tmp_path, *place).rocm == root
    assert [path for path, _ in server.seen[requests:] if path == PATH] == [], (
        "the ROCm was downloaded again"
    )


def test_replaced_rocm_is_refused(
    tmp_path: Path, server: Behaviour, lock: RocmLock
) -> None:
    place = staged(tmp_path, set_lock(lock))
    server.files[PATH] = tarball(make_rocm(tmp_path / "other"), extra=b"replaced")
    with pytest.raises(
        InputError,
        match=r"The ROCm of multi-arch/\w+ cannot be used: .* has sha256 .* --rocm\.",
    ):
        asked(tmp_path, *place)


@pytest.mark.parametrize("kind", ["no lock", "folder of the builder"])
def test_set_without_public_rocm_uses_rocm_of_machine(
    tmp_path: Path, lock: RocmLock, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    local = replace(lock, source="/home/builder/rocm", sha256="", files="1" * 64)
    request = asked(
        tmp_path, *staged(tmp_path, b"" if kind == "no lock" else set_lock(local))
    )
    assert request.rocm is None
    assert "the tests use the ROCm that the loader finds" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


def test_damaged_lock_is_refused(tmp_path: Path, lock: RocmLock) -> None:
    one, bucket = staged(tmp_path, set_lock(lock))
    file = bucket.path(one.file("rocm.lock"))
    file.chmod(0o644)
    file.write_bytes(set_lock(replace(lock, version="7.9.9")))
    with pytest.raises(
        BucketError, match=r"rocm\.lock of .* has other bytes than were staged"
    ):
        asked(tmp_path, one, bucket)
