"""A ROCm from a folder of .rpm files, which rpmbuild makes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ci_build.rocm.rpms import prefix_of_rpms
from core.errors import ArchiveError, InputError
from tests.integration.conftest import ci_build
from tests.support.made_repositories import make_rpm, require_tools
from tests.support.made_rocm import make_rocm, make_useless_tools

PREFIX = "opt/rocm-7.2.0"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the tree of a ROCm in two parts, and `rpms` with a package of each."""
    require_tools()
    folder = tmp_path_factory.mktemp("rpms")
    root = make_rocm(folder / "rocm" / PREFIX, told="7.2.0-43")
    device = folder / "device" / PREFIX / "lib/llvm"
    device.mkdir(parents=True)
    (root / "lib/llvm/amdgcn").rename(device / "amdgcn")
    (root / "amdgcn").symlink_to(f"/{PREFIX}/lib/llvm/amdgcn")
    os.link(root / "bin/hipcc", root / "bin/hipcc-link")
    (root / "include/empty.h").touch()
    os.link(root / "include/empty.h", root / "include/empty-link.h")
    (folder / "rocm/etc").mkdir()
    (folder / "rocm/etc/rocm.conf").write_text("for the system")
    make_rpm(folder / "rpms", "rocm-device-libs", folder / "device", payload="w3.gzdio")
    make_rpm(folder / "rpms", "rocm-core", folder / "rocm")
    return folder


def run(folder: Path, rpms: Path, *words: str) -> subprocess.CompletedProcess[str]:
    work = folder / "work"
    work.mkdir(exist_ok=True)
    # Steps after the ROCm do not matter here.
    asked = ["--rocm-version=7.2.0", "--targets=gfx942", f"--therock-path={rpms}"]
    tools = make_useless_tools(folder / "tools")
    env = {"PATH": str(tools), "CI_BUILD_BAZEL_PATH": str(tools / "bazel")}
    return ci_build("--host", f"--cache-dir={folder / 'cache'}", *asked, *words, "dist_wheels", cwd=work, env=env)


def test_rpms_become_locked_prefix(tmp_path: Path, made: Path) -> None:
    done = run(tmp_path, made / "rpms")
    assert "ROCm 7.2.0, clang 20.0.0git" in done.stderr, done.stderr
    assert "its packages are local files" in done.stderr
    lock = tmp_path / "work/rocm.lock"
    assert all(path.name in lock.read_text() for path in (made / "rpms").iterdir())
    assert json.loads(ci_build("rocm", "show", str(lock), "--json").stdout)["targets"] == ["gfx942"]
    (tree,) = (tmp_path / "cache/rocm/trees").iterdir()
    root, packed = tree / "rocm", made / "rocm" / PREFIX
    for path in packed.rglob("*"):
        relative = path.relative_to(packed)
        if path.is_symlink() or not path.is_file() or not (root / relative).exists():
            continue
        assert (root / relative).read_bytes() == path.read_bytes(), relative
        assert (root / relative).stat().st_mode & 0o111 == path.stat().st_mode & 0o111
    assert (root / "bin/hipcc-link").samefile(root / "bin/hipcc")
    assert (root / "include/empty-link.h").read_bytes() == b""
    assert (root / "amdgcn").readlink() == Path("lib/llvm/amdgcn")
    assert (root / "amdgcn/bitcode/ocml.bc").read_text() == "ocml"
    assert not (root / "etc").exists()
    verified = ci_build("rocm", "verify", str(lock), f"--cache-dir={tmp_path / 'cache'}")
    assert verified.returncode == 0, verified.stderr


@pytest.mark.parametrize("payload", ["w1.zstdio", "w0.gzdio"])
def test_rpms_with_other_compressions_are_unpacked(tmp_path: Path, made: Path, payload: str) -> None:
    path = make_rpm(tmp_path / "rpms", "rocm-core", made / "device", payload=payload)
    assert b"ocml" in b"".join(prefix_of_rpms([path]))


def test_rpms_refuse_other_compression_prefix_and_kinds(tmp_path: Path, made: Path) -> None:
    path = make_rpm(tmp_path / "bz", "rocm-core", made / "device", payload="w1.bzdio")
    with pytest.raises(ArchiveError, match=r"rocm-core-.*cpio with bzip2, which is not supported"):
        b"".join(prefix_of_rpms([path]))
    (made / "device/opt").rename(made / "device/usr")
    try:
        other = make_rpm(tmp_path / "usr", "rocm-core", made / "device")
    finally:
        (made / "device/usr").rename(made / "device/opt")
    with pytest.raises(InputError, match="None of the packages installs anything into /opt/rocm"):
        b"".join(prefix_of_rpms([other]))
    (tmp_path / "usr/more.deb").touch()
    both = run(tmp_path, tmp_path / "usr")
    assert (both.returncode, "has .deb and .rpm files" in both.stderr) == (2, True), both.stderr


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (lambda data: b"nothing", "is not an RPM package"),
        (lambda data: data[:96] + b"x" * 60, "the header is damaged"),
        (lambda data: data[:3000], "the header is damaged"),
        (lambda data: data[: len(data) - 200], "is damaged|is truncated"),
    ],
)
def test_rpms_refuse_damaged_package(tmp_path: Path, made: Path, cut: Callable[[bytes], bytes], words: str) -> None:
    (source,) = (made / "rpms").glob("rocm-core*")
    path = tmp_path / source.name
    path.write_bytes(cut(source.read_bytes()))
    with pytest.raises(ArchiveError, match=rf"^rocm-core-7.2.0.*({words}).* Fetch it again\.$"):
        b"".join(prefix_of_rpms([path]))
