"""Tables of libraries, run paths and targets, compared with the published wheels."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from core import targets as gfx
from core.model import RocmVersion
from core.rocm_layouts import allowed_sonames, runpath
from wheelkit.elf.snapshot import Elf
from wheelkit.gpu.fatbin import read_targets

pytestmark = pytest.mark.network

RealWheels = Callable[..., Path]
# ROCm of each release, by the compiler's name in .comment (0.7.1 to 0.10.2) or by its
# Summary (0.12.0).
ROCM = {
    "0.7.1": "7.1.0",
    "0.9.1": "7.2.0",
    "0.10.2": "7.2.0",
    "0.12.0": "7.14.0",
}
PLATFORM = {
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "librt.so.1",
    "libpthread.so.0",
    "libgcc_s.so.1",
    "libstdc++.so.6",
    "ld-linux-x86-64.so.2",
}


@pytest.fixture(scope="module", params=ROCM)
def plugin(
    request: pytest.FixtureRequest,
    real_wheel: RealWheels,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    version: str = request.param
    folder = tmp_path_factory.mktemp(version)
    with zipfile.ZipFile(real_wheel("jax-rocm7-plugin", version)) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                (folder / Path(name).name).write_bytes(archive.read(name))
    return folder


def test_allowed_sonames_cover_published_plugins(plugin: Path) -> None:
    version = next(v for v in ROCM if plugin.name.startswith(v))
    allowed = allowed_sonames(RocmVersion(text=ROCM[version]))
    needed: set[str] = set()
    for file in plugin.iterdir():
        needed.update(Elf.read(file).needed)
    assert needed - PLATFORM <= allowed


def test_runpath_fits_in_place_of_the_published_one(plugin: Path) -> None:
    version = next(v for v in ROCM if plugin.name.startswith(v))
    shortest = min(
        len(elf.runpath or elf.rpath or "") for elf in map(Elf.read, plugin.iterdir())
    )
    # Before 0.10 the wheels had three entries only; an edit refuses entries that do not
    # fit.
    assert (len(runpath("plugin", None)) < shortest) == (
        version in ("0.10.2", "0.12.0")
    )


def test_targets_table_matches_published_code_objects(plugin: Path) -> None:
    report = read_targets(plugin / "_prng.so", verify=True)
    assert report.device.targets
    assert not report.findings
    assert {code.target.split(":")[0] for code in report.device.targets} <= set(
        gfx.load_table().targets
    )
