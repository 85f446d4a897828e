"""Repair of published wheels: results and refusals."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core import versions
from core.model import GfxTarget
from tests.support.fake_site import HIP, PJRT_NEEDED, PLUGIN_NEEDED
from wheelkit.archive.record_check import verify_record
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.elf.snapshot import Elf
from wheelkit.gpu.fatbin import read_targets
from wheelkit.repair.repair_plan import RepairPlan, RepairResult
from wheelkit.repair.wheel_repair import repair

pytestmark = pytest.mark.network

RealWheel = Callable[..., Path]
GFX942 = GfxTarget.parse("gfx942")
GFX950 = GfxTarget.parse("gfx950")
RUNPATH = (
    "$ORIGIN/../_rocm_sdk_core/lib:$ORIGIN/../_rocm_sdk_libraries/lib:/opt/rocm/lib"
)
LIBRARY = "jax_plugins/xla_rocm7/xla_rocm_plugin.so"
WITH_CODE = (
    "jax_rocm7_plugin/_linalg.so",
    "jax_rocm7_plugin/_prng.so",
    "jax_rocm7_plugin/_solver.so",
)
WITHOUT_HIP = ("_linalg", "_rnn", "_solver", "_sparse")


def plan(
    kind: versions.Kind, version: str = "0.10.2+rocm7.2.0", **changes: Any
) -> RepairPlan:
    base = RepairPlan(
        project=f"jax-rocm7-{kind}",
        version=version,
        targets=(GFX942, GFX950),
        runpath={"*.so": RUNPATH},
        hip_soname=HIP,
        device_members=(LIBRARY,) if kind == "pjrt" else WITH_CODE,
        summary=f"JAX {kind} for AMD GPUs (ROCm 7.2.0)",
        requires_python=">=3.11",
        requires_dist=versions.pins(kind, version, major=7),
        license_text=b"Apache License, Version 2.0\n",
        allowed_sonames=frozenset(
            (*(PJRT_NEEDED if kind == "pjrt" else PLUGIN_NEEDED), HIP)
        ),
        build_info={"version": version},
        build_info_path=(
            f"{'jax_plugins/xla_rocm7' if kind == 'pjrt' else 'jax_rocm7_plugin'}/build_info.json"
        ),
    )
    return replace(base, **changes)


@pytest.fixture(scope="module")
def plugin(real_wheel: RealWheel) -> Path:
    """Return the published plugin for Python 3.12."""
    return real_wheel("jax-rocm7-plugin", "0.10.2")


@pytest.fixture(scope="module")
def repaired(plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> RepairResult:
    """Repair the plugin for gfx942 and gfx950."""
    folder = tmp_path_factory.mktemp("plugin")
    return repair(plugin, plan("plugin"), folder, debug_dir=folder / "debug")


@pytest.fixture(scope="module")
def libraries(
    repaired: RepairResult, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Return the extracted files of the repaired plugin by member path."""
    return unpacked(repaired.path, tmp_path_factory.mktemp("libraries"))


def unpacked(wheel: Path, folder: Path) -> dict[str, Path]:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*.so"))}


# Results


def test_repair_published_has_exactly_the_wanted_targets(
    repaired: RepairResult, libraries: dict[str, Path]
) -> None:
    for name, path in libraries.items():
        report = read_targets(path, verify=True)
        assert report.findings == ()
        found = [code.target for code in report.device.targets]
        assert found == (["gfx942", "gfx950"] if name in WITH_CODE else [])
    assert repaired.targets_kept == ("gfx942", "gfx950")
    assert len(repaired.targets_dropped) == 25


def test_repair_published_runpath_and_needed(
    repaired: RepairResult, libraries: dict[str, Path], plugin: Path, tmp_path: Path
) -> None:
    before = {name: Elf.read(path) for name, path in unpacked(plugin, tmp_path).items()}
    for name, path in libraries.items():
        elf = Elf.read(path)
        assert elf.runpath == RUNPATH
        assert elf.rpath is None
        completed = (HIP,) if Path(name).stem in WITHOUT_HIP else ()
        assert elf.needed == (*before[name].needed, *completed)


def test_repair_published_is_valid_for_stock_tools(
    repaired: RepairResult, tmp_path: Path
) -> None:
    """pip installs the wheel, and patchelf reads the edited libraries."""
    target = tmp_path / "site"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--target",
        str(target),
    ]
    install += [
        "--quiet",
        "--disable-pip-version-check",
        "--python-version",
        "3.12",
        "--implementation",
        "cp",
    ]
    subprocess.run([*install, "--only-binary", ":all:", str(repaired.path)], check=True)
    for info in repaired.wheel.members:
        path = target / info.path
        assert path.stat().st_mode & 0o777 == 0o755
        assert patchelf("--print-rpath", path) == [RUNPATH]
        assert patchelf("--print-needed", path) == list(info.needed)


def patchelf(question: str, path: Path) -> list[str]:
    command = Path(sys.executable).with_name("patchelf")
    done = subprocess.run(
        [str(command), question, str(path)], check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()


def test_repair_published_pjrt(real_wheel: RealWheel, tmp_path: Path) -> None:
    """The 154 MB wheel shrinks below 98 MB, without findings, with exactly two targets."""
    source = real_wheel("jax-rocm7-pjrt", "0.10.2")
    made = repair(
        source,
        plan("pjrt", verify_bundles=False),
        tmp_path,
        debug_dir=tmp_path / "debug",
    )
    assert (
        made.path.name
        == "jax_rocm7_pjrt-0.10.2+rocm7.2.0-py3-none-manylinux_2_28_x86_64.whl"
    )
    assert made.wheel.size < 98_000_000
    with zipfile.ZipFile(made.path) as stock:
        assert stock.testzip() is None  # it inflates with zlib
    (info,) = made.wheel.members
    assert (info.path, info.targets) == (LIBRARY, ("gfx942", "gfx950"))
    assert info.symbol_versions["GLIBC"] == "2.27"
    with WheelArchive(made.path) as wheel:
        assert verify_record(wheel, extract={LIBRARY: tmp_path / "lib.so"}) == ()
        assert wheel.headers("WHEEL")["Root-Is-Purelib"] == "false"
    elf = Elf.read(tmp_path / "lib.so")
    assert (elf.runpath, ".symtab" in elf.sections) == (RUNPATH, False)
    assert set(elf.needed) >= {*PJRT_NEEDED}
    assert ".symtab" in Elf.read(made.debug_files[LIBRARY]).sections
    report = read_targets(tmp_path / "lib.so", verify=True)
    assert report.findings == ()
    assert len(report.bundles) == 43
