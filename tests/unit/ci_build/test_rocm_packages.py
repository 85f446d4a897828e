"""Wheels of ROCm are unpacked to the prefix that they were packed from.

Invalid wheels are refused.
"""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from ci_build.rocm import source
from ci_build.rocm.facts import selection
from ci_build.rocm.lock import RocmLock, write_lock
from ci_build.rocm.package_index import fetch_packages
from ci_build.rocm.pip_rocm import Packages, prefix_of
from ci_build.rocm.rocm_request import PipIndex
from ci_build.rocm.rocm_store import RocmStore, StoredTree
from core.errors import ArchiveError, CiBuildError, InputError
from core.http.client import Client
from core.pip import InputStore
from core.process import HostRunner
from core.report import Reporter
from core.unpack.tree_contents import differences
from tests.support.made_packages import CORE, DEVEL, make_packages, make_wheel
from tests.support.made_rocm import VERSION, rocm_request


def unpack(
    folder: Path, wheels: Mapping[str, bytes], *, full: bool = True
) -> StoredTree:
    files = {}
    for name, data in wheels.items():
        files[name] = folder / name
        files[name].write_bytes(data)
    packages = Packages(
        version=VERSION,
        files=files,
        sha256={name: f"{n:064}" for n, name in enumerate(wheels)},
    )
    store = RocmStore(folder / "store", progress=Reporter(terminal=False))
    return store.from_packages(
        packages, selection(full=full), partial(prefix_of, tuple(files.values()))
    )


@pytest.mark.parametrize(("packed", "split"), [("", False), (".xz", True)])
def test_packages_give_packed_prefix(
    tmp_path: Path, packed: str, *, split: bool
) -> None:
    made = tmp_path / "made"
    found = unpack(tmp_path, make_packages(made, VERSION, split=split, packed=packed))
    for path in made.rglob("*"):
        twin = found.root / path.relative_to(made)
        if path.is_symlink():
            assert twin.is_symlink() and twin.readlink() == path.readlink()  # noqa: PT018 - one claim
        elif path.is_file():
            assert twin.read_bytes() == path.read_bytes()
            assert twin.stat().st_mode & 0o111 == path.stat().st_mode & 0o111
    # The tree also has the link that TheRock's trees have since 2026-02-03.
    assert sum(1 for _ in found.root.rglob("*")) == sum(1 for _ in made.rglob("*")) + 1
    assert differences(found.root, found.contents) == ()
    # No link leads out of the prefix, because containers mount only the prefix.
    assert all(
        path.resolve().is_relative_to(found.root.resolve())
        for path in found.root.rglob("*")
    )


def test_packages_digest_covers_every_wheel() -> None:
    one = Packages(version=VERSION, files={}, sha256={"a": "1", "b": "2"})
    assert (
        one.digest
        == Packages(version=VERSION, files={}, sha256={"b": "2", "a": "1"}).digest
    )
    assert (
        one.digest
        != Packages(version=VERSION, files={}, sha256={"a": "1", "b": "3"}).digest
    )


def devel(*entries: tuple[str, bytes, str]) -> dict[str, bytes]:
    """Return a devel package whose tar has these entries: name, type, and link or content."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, kind, word in entries:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(word)
                tar.addfile(info, io.BytesIO(word.encode()))
            else:
                info.linkname = word
                tar.addfile(info)
    return dict(
        [
            make_wheel(
                "rocm-sdk-devel",
                VERSION,
                {"rocm_sdk_devel/_devel.tar": (file.getvalue(), 0o644)},
            )
        ]
    )


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (
            (f"{DEVEL}/lib/x", tarfile.SYMTYPE, "../../../../etc/passwd"),
            "which no package contains",
        ),
        ((f"{DEVEL}/../x", tarfile.REGTYPE, "x"), "outside its prefix"),
        ((f"{DEVEL}/lib/x", tarfile.LNKTYPE, "etc/passwd"), "not a file in it"),
        ((f"{DEVEL}/lib/x", tarfile.CHRTYPE, ""), "a character device"),
    ],
)
def test_packages_refuse_entries_outside_prefix(
    tmp_path: Path, entry: tuple[str, bytes, str], says: str
) -> None:
    with pytest.raises(CiBuildError, match=says):
        unpack(
            tmp_path,
            devel((f"{DEVEL}/.info/version", tarfile.REGTYPE, "7.10.0"), entry),
        )
    assert list((tmp_path / "store" / "trees").iterdir()) == []


def test_packages_refuse_incomplete_set(tmp_path: Path) -> None:
    wheels = make_packages(tmp_path / "made", VERSION, split=True)
    without = {name: data for name, data in wheels.items() if "devel" not in name}
    with pytest.raises(InputError, match="rocm-sdk-devel must contain one of"):
        unpack(tmp_path, without)
    core = {name: data for name, data in wheels.items() if "core" not in name}
    with pytest.raises(
        InputError, match=f"links to {CORE}/.*, which no package contains"
    ):
        unpack(tmp_path, core)
    with pytest.raises(ArchiveError, match="is not a wheel"):
        unpack(tmp_path, {"broken-1-py3-none-any.whl": b"no zip"})


def test_device_package_without_its_kernels_is_refused(tmp_path: Path) -> None:
    wheels = make_packages(tmp_path / "made", VERSION, split=True)
    path = "_rocm_sdk_libraries/.devel_links/gfx942.json"
    links = json.dumps(
        {"links": [{"relpath": "lib/x", "target": "../absent"}]}
    ).encode()
    wheels |= [make_wheel("rocm-sdk-device-gfx942", VERSION, {path: (links, 0o644)})]
    with pytest.raises(InputError, match=r"links to .*absent"):
        unpack(tmp_path, wheels)


LOCK = RocmLock(
    source="pip+https://host/",
    sha256="",
    size=0,
    version=VERSION,
    families=(),
    targets=(),
    compiler="",
    libraries={},
    device_libraries={},
    packages={"a.whl": "1" * 64},
)


def test_replaced_package_of_the_lock_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = tmp_path / "rocm.lock"
    write_lock(lock, LOCK)
    packages = Packages(version=VERSION, files={}, sha256={"a.whl": "2" * 64})
    monkeypatch.setattr(source, "fetch_packages", lambda *_, **__: packages)
    progress = Reporter(terminal=False)
    store = RocmStore(tmp_path / "store", progress=progress)
    asked = rocm_request(LOCK.source, lock=lock)
    with pytest.raises(InputError, match=r"differ from .*rocm.lock: a.whl"):
        source.obtain(asked, store, Client(), progress=progress, runner=HostRunner({}))


def test_packages_refuse_lock_without_wheels(tmp_path: Path) -> None:
    asked = rocm_request("pip+https://host/", version=VERSION)
    progress = Reporter(terminal=False)
    with pytest.raises(InputError, match="files that are not wheels"):
        fetch_packages(
            asked,
            PipIndex(url="https://host/"),
            replace(LOCK, packages={"x": "0" * 64}),
            client=Client(),
            runner=HostRunner({}),
            store=InputStore(tmp_path),
            progress=progress,
        )


def test_packages_refuse_damaged_wheel(tmp_path: Path) -> None:
    wheels = make_packages(tmp_path / "made", VERSION)
    name = next(name for name in wheels if "core" in name)
    with zipfile.ZipFile(io.BytesIO(wheels[name])) as archive:
        info = next(
            info
            for info in archive.infolist()
            if info.filename.endswith("libamdhip64.so.7.2.53211")
        )
    at = info.header_offset + 30 + len(info.filename) + info.compress_size // 2
    damaged = bytearray(wheels[name])
    damaged[at] ^= 0xFF
    with pytest.raises(ArchiveError):
        unpack(tmp_path, wheels | {name: bytes(damaged)})
