"""`rocm.lock` in a set.

No paths and secrets of the builder, and the same bytes on every machine.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import urllib3  # noqa: F401 - it tries IPv6 when it is imported, which no test may

from ci_build.cli.options.rocm_options import find_rocm
from ci_build.cli.options.settings import Settings
from ci_build.rocm.lock import RocmLock, load_lock, parse_lock
from ci_build.rocm.rocm_store import RocmStore
from ci_build.rocm.set_lock import set_lock
from ci_build.rocm.source import Rocm, obtain
from core.errors import RequestError
from core.http.client import Client
from core.process import HostRunner
from core.report import Reporter
from tests.support.made_rocm import NAME, make_rocm, rocm_request, tarball

REPORTER = Reporter(terminal=False)
LOCK = RocmLock(
    source="https://host/rocm.tar.gz",
    sha256="1" * 64,
    size=1,
    version="7.2.0",
    families=(),
    targets=("gfx942",),
    compiler="clang 20",
    libraries={"libamdhip64.so.7": "7.2.53211"},
    device_libraries={},
)


def get(tmp_path: Path, source: Path, **more: object) -> Rocm:
    store = RocmStore(tmp_path / "store", progress=REPORTER)
    asked = rocm_request(source, **more)
    return obtain(asked, store, Client(), progress=REPORTER, runner=HostRunner({}))


def read(data: bytes) -> RocmLock:
    return parse_lock(data, "rocm.lock")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("https://host/rocm.tar.gz", "https://host/rocm.tar.gz"),
        (
            "https://user:key@host/a%2Bb.tar.gz?X-Amz-Signature=key#key",
            "https://host/a%2Bb.tar.gz",
        ),
        ("pip+https://key@host/simple/?token=key", "pip+https://host/simple/"),
        ("dnf+https://key@host/rpm?token=key", "dnf+https://host/rpm"),
        ("/home/key/rocm-7.2.0.tar.gz", "rocm-7.2.0.tar.gz"),
    ],
)
def test_set_lock_has_no_secrets_and_paths(source: str, expected: str) -> None:
    data = set_lock(replace(LOCK, source=source))
    assert b"key" not in data
    assert read(data).source == expected
    assert set_lock(read(data)) == data


def test_set_lock_does_not_depend_on_place_of_folder(tmp_path: Path) -> None:
    first = make_rocm(tmp_path / "me/rocm-7")
    data = set_lock(get(tmp_path, first).lock)
    assert str(tmp_path).encode() not in data
    assert b"rocm-7" not in data
    shutil.copytree(first, copy := tmp_path / "you/rocm", symlinks=True)
    assert set_lock(get(tmp_path, copy).lock) == data
    # No other part of a lock depends on this file.
    (copy / "share/doc/rocm/README").write_text("longer " * 1000)
    assert set_lock(get(tmp_path, copy).lock) != data


@pytest.mark.parametrize("kind", ["folder", "tarball"])
def test_set_lock_with_path_is_a_lock(tmp_path: Path, kind: str) -> None:
    """The message about the missing path asks for this."""
    source = root = make_rocm(tmp_path / "rocm")
    if kind == "tarball":
        source = tmp_path / NAME
        source.write_bytes(tarball(root))
    name = NAME if kind == "tarball" else ""
    lock = tmp_path / "rocm.lock"
    lock.write_bytes(set_lock(get(tmp_path, source).lock))
    settings = Settings({"locked": True, "rocm_lock": str(lock)})
    with pytest.raises(
        RequestError,
        match=rf"^rocm\.lock was published with a set .*which was {name or 'a folder'} of",
    ):
        find_rocm(settings, REPORTER, HostRunner({}), Client)
    lock.write_text(
        lock.read_text().replace(f'source = "{name}"', f'source = "{source}"')
    )
    asked = find_rocm(settings, REPORTER, HostRunner({}), Client)
    assert asked is not None
    assert get(tmp_path, source, lock=lock, locked=True).lock == load_lock(lock)
    if kind == "folder":
        (root / "bin/__pycache__").mkdir()
        (root / "bin/__pycache__/tool.cpython-312.pyc").touch()
        assert get(tmp_path, source, lock=lock, locked=True).lock == load_lock(lock)
        (root / "include/new.h").touch()
        with pytest.raises(RequestError, match=r"files: .*, but the lock has"):
            get(tmp_path, source, lock=lock, locked=True)
