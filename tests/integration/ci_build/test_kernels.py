"""`ci_build kernels`.

AITER's sdist from the package index, every module that needs no ROCm, 11 targets.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from core.targets import machs
from tests.support.kernels_command import build
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.gpu.code_object import mach_of
from wheelkit.kernel_wheel import read_manifest

pytestmark = pytest.mark.network
TARGETS = (
    "gfx906",
    "gfx90a",
    "gfx942",
    "gfx950",
    "gfx1030",
    "gfx1100",
    "gfx1103",
    "gfx1151",
    "gfx1200",
    "gfx1201",
    "gfx9-4-generic",
)
LAUNCHERS_LIMIT = 6_000_000
"""Maximum bytes of a wheel with the co-launchers for gfx942 and gfx950."""


def test_build_covers_every_module_and_target(work_cache: Path, tmp_path: Path) -> None:
    receipt = build(tmp_path / "all", work_cache, ",".join(TARGETS))
    with WheelArchive(Path(receipt["wheel"])) as archive:
        manifest = read_manifest(archive)
        assert manifest.targets == tuple(receipt["targets"])
        assert set(manifest.targets) == set(TARGETS)
        assert manifest.missing == ()
        for module in manifest.modules:
            assert module.name != "rms_norm" or set(module.objects) == set(TARGETS)
            for gfx, files in module.objects.items():
                for path in (path for path in files if path.endswith(".co")):
                    assert mach_of(archive.read(path)[:64]) == machs()[gfx], path
    small = build(tmp_path, work_cache, "gfx942,gfx950")
    assert small["steps"]["made"] == 0
    assert small["size"] < LAUNCHERS_LIMIT
