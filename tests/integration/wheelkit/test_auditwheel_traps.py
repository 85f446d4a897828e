"""Two traps of auditwheel's command, and the same situations with our repair."""

from __future__ import annotations

import os
import subprocess
import sys
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


def auditwheel_repair(
    wheel: Path, out: Path, *, exclude: frozenset[str], library_path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    tools = Path(sys.executable).parent
    argv = [str(tools / "auditwheel"), "repair", "--plat", "manylinux_2_28_x86_64", "--wheel-dir", str(out), str(wheel)]
    argv += [word for soname in sorted(exclude) for word in ("--exclude", soname)]
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "LD_LIBRARY_PATH": str(library_path or "")}
    return subprocess.run(argv, env=env, check=False, capture_output=True, text=True)


def elf_of(wheel: Path, member: str, folder: Path) -> Elf:
    with zipfile.ZipFile(wheel) as archive:
        return Elf.read(Path(archive.extract(member, folder)))


def test_auditwheel_failure_leaves_unrepaired_wheel(plugin: Path, tmp_path: Path) -> None:
    """The unrepaired wheel has the final name, so a later step would publish it."""
    out = tmp_path / "out"
    done = auditwheel_repair(plugin, out, exclude=ONE_SHORT)
    assert done.returncode != 0
    assert f'"{HIPBLAS}" could not be located' in done.stderr
    (left,) = out.iterdir()
    assert left.name == plugin.name
    with zipfile.ZipFile(left) as unrepaired, zipfile.ZipFile(plugin) as original:
        libraries = [name for name in original.namelist() if name.endswith(".so")]
        assert all(unrepaired.read(name) == original.read(name) for name in libraries)


def test_repair_failure_leaves_nothing(plugin: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(RepairError, match=rf"_linalg\.so \[needed-not-allowed\].*{HIPBLAS}"):
        repair(plugin, plan("plugin", allowed_sonames=ONE_SHORT), out, debug_dir=tmp_path / "debug")
    assert list(tmp_path.iterdir()) == [out]
    assert list(out.iterdir()) == []


def test_auditwheel_grafts_libraries_and_writes_rpath(plugin: Path, findable: Path, tmp_path: Path) -> None:
    """Without one --exclude on a machine with ROCm, auditwheel copies a library of that machine into the wheel."""
    out = tmp_path / "out"
    done = auditwheel_repair(plugin, out, exclude=ONE_SHORT, library_path=findable)
    assert done.returncode == 0
    (made,) = out.iterdir()
    with zipfile.ZipFile(made) as archive:
        (grafted,) = [Path(n).name for n in archive.namelist() if n.startswith("jax_rocm7_plugin.libs/lib")]
    before = elf_of(plugin, "jax_rocm7_plugin/_linalg.so", tmp_path / "before")
    after = elf_of(made, "jax_rocm7_plugin/_linalg.so", tmp_path / "after")
    assert (HIPBLAS in before.needed, HIPBLAS in after.needed, grafted in after.needed) == (True, False, True)
    assert before.runpath is not None
    assert before.runpath.endswith("/opt/rocm/lib")
    assert (before.rpath, after.runpath) == (None, None)
    assert after.rpath is not None
    assert "/opt/rocm/lib" not in after.rpath.split(":")


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


def test_repair_refuses_unlisted_library_found_by_runpath(plugin: Path, findable: Path, tmp_path: Path) -> None:
    """RUNPATH is searched as at run time, for siblings in the wheel only; libraries outside are never added."""
    chosen = plan("plugin", allowed_sonames=ONE_SHORT, runpath={"*.so": str(findable)})
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(RepairError, match=HIPBLAS):
        repair(plugin, chosen, out)
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
