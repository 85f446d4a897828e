"""Two traps of auditwheel's command, and the same situations with our repair."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import RepairError
from tests.integration.wheelkit.test_repair_real import PLUGIN_SONAMES, plan
from tests.support.tiny_elf import tiny_elf
from wheelkit.elf.snapshot import Elf
from wheelkit.repair.repair import repair

pytestmark = pytest.mark.network

HIPBLAS = "libhipblas.so.3"
ONE_SHORT = PLUGIN_SONAMES - {HIPBLAS}


@pytest.fixture(scope="module")
def plugin(real_wheel: Callable[..., Path]) -> Path:
    """Return the published plugin for Python 3.12."""
    return real_wheel("jax-rocm7-plugin", "0.10.2")


@pytest.fixture
def findable(tmp_path: Path) -> Path:
    """Return a folder with a libhipblas.so.3, as on a build machine with ROCm."""
    tiny_elf(tmp_path / "rocm" / HIPBLAS)
    return tmp_path / "rocm"


def elf_of(wheel: Path, member: str, folder: Path) -> Elf:
    with zipfile.ZipFile(wheel) as archive:
        return Elf.read(Path(archive.extract(member, folder)))


def test_repair_failure_leaves_nothing(plugin: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(RepairError, match=rf"_linalg\.so \[needed-not-allowed\].*{HIPBLAS}"):
        repair(plugin, plan("plugin", allowed_sonames=ONE_SHORT), out, debug_dir=tmp_path / "debug")
    assert list(tmp_path.iterdir()) == [out]
    assert list(out.iterdir()) == []


def test_repair_refuses_unlisted_library_by_name(
    plugin: Path, findable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(findable))
    monkeypatch.setenv("AUDITWHEEL_LD_LIBRARY_PATH", str(findable))
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(RepairError) as caught:
        repair(plugin, plan("plugin", allowed_sonames=ONE_SHORT), out)
    named = [line for line in caught.value.message.splitlines() if HIPBLAS in line]
    assert [line.split()[1].removesuffix(".so") for line in named] == [
        "jax_rocm7_plugin/_linalg",
        "jax_rocm7_plugin/_solver",
    ]
    assert list(out.iterdir()) == []


def test_repair_grafts_nothing(plugin: Path, findable: Path, tmp_path: Path) -> None:
    made = repair(plugin, plan("plugin", runpath={"*.so": str(findable)}), tmp_path)
    with zipfile.ZipFile(made.path) as archive:
        libraries = {name for name in archive.namelist() if ".so" in name}
    with zipfile.ZipFile(plugin) as archive:
        assert libraries == {name for name in archive.namelist() if ".so" in name}
    elf = elf_of(made.path, "jax_rocm7_plugin/_linalg.so", tmp_path / "after")
    assert HIPBLAS in elf.needed
    assert (elf.runpath, elf.rpath) == (str(findable), None)
