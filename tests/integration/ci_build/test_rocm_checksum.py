"""Checksums of ROCms from a real server.

Their origin, servers without one, --require-checksum, and the record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ci_build.rocm.rocm_request import RocmRequest, check_request
from ci_build.rocm.rocm_store import RocmStore
from ci_build.rocm.source import Rocm, obtain
from core.digests import sha256_of
from core.errors import CiBuildError, InputError
from core.http.client import Client, RetryPolicy
from core.process import HostRunner
from core.report import Reporter
from core.rocm_trust import ChecksumOrigin, RocmTrust
from tests.support.file_server import Behaviour, serving
from tests.support.made_rocm import (
    NAME,
    VERSION,
    locked_now,
    make_rocm,
    rocm_request,
    tarball,
)

PATH = f"/tarball/{NAME}"
SIDECAR = f"{PATH}.sha256"
REPORTER = Reporter(terminal=False)
QUICK = RetryPolicy(connect=2, read=2, tries=2, first_wait=0.01, longest_wait=0.01)


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Behaviour]:
    with serving(
        Behaviour(files={PATH: tarball(make_rocm(tmp_path / "made"))})
    ) as server:
        yield server


@pytest.fixture
def asked(tmp_path: Path, told: Behaviour) -> RocmRequest:
    return rocm_request(told.url + PATH, version=VERSION, lock=tmp_path / "rocm.lock")


def get(tmp_path: Path, asked: RocmRequest) -> Rocm:
    asked = locked_now(asked)
    check_request(asked)
    store = RocmStore(tmp_path / "store", progress=REPORTER)
    return obtain(
        asked, store, Client(policy=QUICK), progress=REPORTER, runner=HostRunner({})
    )


def digest(told: Behaviour) -> str:
    return sha256_of(told.files[PATH])


@pytest.mark.parametrize("answer", [404, 500])
def test_rocm_without_checksum_is_trusted_on_first_use(
    tmp_path: Path, told: Behaviour, asked: RocmRequest, answer: int
) -> None:
    told.broken[SIDECAR] = answer
    rocm = get(tmp_path, asked)
    assert rocm.trust == RocmTrust(checksum=ChecksumOrigin.FIRST_USE, transport="http")
    (note,) = (note for note in rocm.notes if "first use" in note)
    assert f"{tmp_path / 'rocm.lock'} pins it for later builds" in note
    # The lock has the digest now.
    again = get(tmp_path, asked)
    assert again.trust.checksum is ChecksumOrigin.LOCK
    assert not [note for note in again.notes if "first use" in note]


def test_require_checksum_refuses_rocm_without_one(
    tmp_path: Path, told: Behaviour, asked: RocmRequest
) -> None:
    words = f"{PATH} has no checksum: none was given or locked, and .*{SIDECAR}"
    with pytest.raises(InputError, match=words) as caught:
        get(tmp_path, replace(asked, require_checksum=True))
    assert "Give --therock-sha256, or a rocm.lock" in str(caught.value)
    assert not [path for path, _ in told.seen if path == PATH], (
        "the tarball was requested"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


@pytest.mark.parametrize("origin", [ChecksumOrigin.OPTION, ChecksumOrigin.LOCK])
def test_given_or_locked_checksum_needs_no_server(
    tmp_path: Path, told: Behaviour, asked: RocmRequest, origin: ChecksumOrigin
) -> None:
    if origin is ChecksumOrigin.LOCK:
        get(tmp_path / "before", asked)
    told.broken[SIDECAR] = 500
    told.seen.clear()
    sha256 = digest(told) if origin is ChecksumOrigin.OPTION else ""
    rocm = get(tmp_path, replace(asked, sha256=sha256, require_checksum=True))
    assert rocm.trust == RocmTrust(checksum=origin, transport="http")
    assert not [path for path, _ in told.seen if path == SIDECAR]
    assert [note for note in rocm.notes if "is not encrypted" in note]


def test_published_checksum_is_required(
    tmp_path: Path, told: Behaviour, asked: RocmRequest
) -> None:
    told.files[SIDECAR] = f"{digest(told)}  {NAME}\n".encode()
    asked = replace(asked, require_checksum=True)
    rocm = get(tmp_path, asked)
    assert rocm.trust.checksum is ChecksumOrigin.SIDECAR
    (tmp_path / "rocm.lock").unlink()
    told.files[SIDECAR] = f"{'1' * 64}  {NAME}\n".encode()
    with pytest.raises(InputError, match=f"has sha256 .*, not {'1' * 64}"):
        get(tmp_path / "new", asked)


@pytest.mark.parametrize("what", ["tarball", "folder"])
def test_local_rocm_is_recorded_as_local(
    tmp_path: Path, told: Behaviour, what: str
) -> None:
    source = tmp_path / "made"
    if what == "tarball":
        source = tmp_path / NAME
        source.write_bytes(told.files[PATH])
    asked = rocm_request(source, lock=tmp_path / "rocm.lock")
    with pytest.raises(CiBuildError, match="checksum"):
        get(tmp_path, replace(asked, require_checksum=True))
    rocm = get(tmp_path, asked)
    assert rocm.trust == RocmTrust(checksum=ChecksumOrigin.LOCAL, transport="local")
    assert [
        note for note in rocm.notes if "first use" in note or "encrypted" in note
    ] == []
    if what == "tarball":
        locked = get(tmp_path, replace(asked, require_checksum=True))
        assert locked.trust.checksum is ChecksumOrigin.LOCK
        source.write_bytes(tarball(tmp_path / "made", extra=b"replaced"))
        with pytest.raises(InputError, match="has sha256"):
            get(tmp_path, replace(asked, require_checksum=True))
