"""A ROCm from a distribution's packages, created with the distribution's own tool."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ci_build.rocm.debs import prefix_of_debs
from core.errors import ArchiveError, InputError
from tests.integration.conftest import ci_build
from tests.support.made_rocm import VERSION, make_rocm, make_useless_tools

CONTROL = (
    "Package: {name}\nVersion: 7.10.0.1\nArchitecture: amd64\nMaintainer: nobody <a@localhost>\nDescription: ROCm\n"
)


@pytest.fixture
def debs(tmp_path: Path) -> Path:
    """Return a folder with two packages: device libraries, and the rest; each has another compression."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("needs dpkg-deb")
    make_rocm(tmp_path / "rocm-all" / "opt" / "rocm-7.10.0")
    # A link as in packages: its target is the installed path of the file.
    llvm = tmp_path / "rocm-all" / "opt" / "rocm-7.10.0" / "lib" / "llvm"
    device = tmp_path / "rocm-device-libs" / "opt" / "rocm-7.10.0" / "lib" / "llvm"
    device.mkdir(parents=True)
    (llvm / "amdgcn").rename(device / "amdgcn")
    (llvm.parents[1] / "amdgcn").symlink_to("/opt/rocm-7.10.0/lib/llvm/amdgcn")
    (llvm.parents[3] / "etc").mkdir()
    (llvm.parents[3] / "etc" / "rocm.conf").write_text("for the system")
    pack(tmp_path, "rocm-device-libs", "-Zgzip")
    pack(tmp_path, "rocm-all", "-Zxz")
    return tmp_path / "debs"


def pack(folder: Path, name: str, how: str) -> None:
    control = folder / name / "DEBIAN" / "control"
    control.parent.mkdir(exist_ok=True)
    control.write_text(CONTROL.format(name=name))
    (folder / "debs").mkdir(exist_ok=True)
    words = ["dpkg-deb", "--root-owner-group", how, "--build", str(folder / name), str(folder / "debs" / f"{name}.deb")]
    subprocess.run(words, check=True, capture_output=True)


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    work = folder / "work"
    work.mkdir(exist_ok=True)
    # Steps after the ROCm do not matter here.
    asked = [f"--rocm-version={VERSION}", "--targets=gfx942", f"--therock-path={folder / 'debs'}"]
    tools = make_useless_tools(folder / "tools")
    env = {"PATH": str(tools), "CI_BUILD_BAZEL_PATH": str(tools / "bazel")}
    return ci_build("--host", f"--cache-dir={folder / 'cache'}", *asked, *words, "dist_wheels", cwd=work, env=env)


def test_debs_become_locked_prefix(tmp_path: Path, debs: Path) -> None:
    done = run(tmp_path)
    assert f"ROCm {VERSION}, clang 20.0.0git" in done.stderr, done.stderr
    assert "its packages are local files" in done.stderr
    lock = tmp_path / "work" / "rocm.lock"
    shown = ci_build("rocm", "show", str(lock), "--json")
    assert json.loads(shown.stdout)["targets"] == ["gfx942"]
    assert all(path.name in lock.read_text() for path in debs.iterdir())
    (tree,) = (tmp_path / "cache" / "rocm" / "trees").iterdir()
    root = tree / "rocm"
    assert os.access(root / "bin" / "hipcc", os.X_OK)
    assert (root / "amdgcn").readlink() == Path("lib/llvm/amdgcn")
    assert (root / "amdgcn" / "bitcode" / "ocml.bc").read_text() == "ocml"
    assert (root / "lib" / "libamdhip64.so.7").resolve().is_file()
    assert not (root / "etc").exists()
    verified = ci_build("rocm", "verify", str(lock), f"--cache-dir={tmp_path / 'cache'}")
    assert verified.returncode == 0, verified.stderr
    # Other packages are another ROCm.
    with (tmp_path / "rocm-all" / "opt" / "rocm-7.10.0" / "bin" / "hipcc").open("a") as file:
        file.write("# changed\n")
    pack(tmp_path, "rocm-all", "-Zxz")
    refused = run(tmp_path, "--locked")
    assert refused.returncode == 2
    assert "rocm-all.deb" in refused.stderr


def test_debs_of_therock_become_prefix_of_core(tmp_path: Path, debs: Path) -> None:
    prefix = tmp_path / "amdrocm-base7.10" / "opt" / "rocm" / "core-7.10"
    make_rocm(prefix)
    (prefix / "compiler").symlink_to("/opt/rocm/core-7.10/lib/llvm")
    (prefix.parent / "core").symlink_to("core-7.10")
    (prefix.parent / "extras-7" / "lib").mkdir(parents=True)
    (prefix.parent / "extras-7" / "lib" / "libextra.so").touch()
    pack(tmp_path, "amdrocm-base7.10", "-Znone")
    package = debs / "amdrocm-base7.10.deb"
    with tarfile.open(fileobj=io.BytesIO(b"".join(prefix_of_debs([package])))) as tar:
        names = {member.name: member.linkname for member in tar}
    assert {"bin/hipcc", "lib/libamdhip64.so.7"} <= names.keys()
    assert names["compiler"] == "lib/llvm"
    assert not [name for name in names if "core" in name or "extra" in name]


def test_debs_refuse_two_rocms_or_none(tmp_path: Path, debs: Path) -> None:
    other = tmp_path / "other"
    make_rocm(other / "opt" / "rocm-7.9.0")
    pack(tmp_path, "other", "-Znone")
    with pytest.raises(
        InputError, match=r"installs into /opt/rocm-7\.9\.0, but other packages into /opt/rocm-7\.10\.0"
    ):
        unpacked([debs / "rocm-all.deb", debs / "other.deb"])
    (other / "opt").rename(other / "usr")
    pack(tmp_path, "other", "-Znone")
    with pytest.raises(InputError, match="None of the packages installs anything into /opt/rocm"):
        unpacked([debs / "other.deb"])


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (lambda data: b"nothing", "Not a Debian package"),
        (lambda data: b"!<arch>\n", "The package has no data member: data.tar"),
        (lambda data: data[:8] + b"x" * 60, "The package has no data member: data.tar"),
        (lambda data: data[: len(data) // 2], "is damaged"),
    ],
)
def test_debs_refuse_damaged_package(debs: Path, cut: Callable[[bytes], bytes], words: str) -> None:
    path = debs / "rocm-all.deb"
    path.write_bytes(cut(path.read_bytes()))
    with pytest.raises(ArchiveError, match=rf"^rocm-all\.deb: .*{words}.* Fetch it again\.$"):
        unpacked([debs / "rocm-device-libs.deb", path])


def unpacked(files: Sequence[Path]) -> int:
    """Return the bytes of the whole stream."""
    return sum(map(len, prefix_of_debs(files)))
