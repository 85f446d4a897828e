"""`ci_build kernels`.

AITER's sdist from the package index, every module that needs no ROCm, 11 targets.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from core.errors import KernelError
from core.model import GfxTarget, KernelRequest
from core.process import HostRunner
from core.store import hold_lock
from core.targets import machs
from kernels.build import KernelBuild, KernelBuildResult
from kernels.compiler_steps import SRC
from kernels.graph import Capacity
from kernels.toolchains import Toolchain, obtain_pypi
from tests.support.kernels_command import build
from tests.support.silent import Silent
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


@pytest.fixture(scope="module")
def receipt(work_cache: Path, shared_folder: Path) -> dict[str, Any]:
    """Build everything for all targets of the list."""
    told = shared_folder / "kernels.json"
    with hold_lock(shared_folder / "kernels.lock"):
        if not told.exists():
            told.write_text(
                json.dumps(
                    build(shared_folder / "kernels", work_cache, ",".join(TARGETS))
                )
            )
    found: dict[str, Any] = json.loads(told.read_text())
    return found


def test_build_covers_every_module_and_target(
    receipt: dict[str, Any], work_cache: Path, tmp_path: Path
) -> None:
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


# One module, in separate folders


@pytest.fixture(scope="module")
def pypi(work_cache: Path) -> Toolchain:
    return obtain_pypi(work_cache / "kernels", HostRunner(os.environ), Silent())


@pytest.fixture
def own_src(tmp_path: Path) -> Path:
    """Return a copy of our own sources, which tests may change."""
    return Path(shutil.copytree(SRC, tmp_path / "somewhere else" / "src"))


ONLY = KernelRequest(modules=("rms_norm",), allow_partial=True)


def run(
    toolchain: Toolchain, cache: Path, *targets: str, **more: Any
) -> KernelBuildResult:
    request = more.pop("request", ONLY)
    job = KernelBuild(
        request,
        [GfxTarget.parse(target) for target in targets],
        toolchain,
        cache=cache,
        runner=HostRunner(os.environ),
        progress=Silent(),
        **more,
    )
    return job.run(Capacity())


def test_failed_unit_is_named_with_target_and_command(
    pypi: Toolchain, work_cache: Path, own_src: Path
) -> None:
    unit = own_src / "rms_norm.hip"
    unit.write_text(
        '#ifdef __gfx1100__\n#error "not for this one"\n#endif\n' + unit.read_text()
    )
    with pytest.raises(KernelError) as caught:
        run(pypi, work_cache / "kernels", "gfx90a", "gfx1100", src=own_src)
    said = str(caught.value)
    assert "rms_norm/rms_norm for gfx1100 (rms_norm, gfx1100)" in said
    assert "--offload-arch=gfx1100" in said
    assert '#error "not for this one"' in said.replace("error: ", "#error ")
    assert "gfx90a (" not in said
    partial = run(pypi, work_cache / "kernels", "gfx90a", src=own_src)
    assert partial.forecast.steps == 0  # what did not fail was kept
