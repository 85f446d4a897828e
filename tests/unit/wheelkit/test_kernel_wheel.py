"""Repair of kernel wheels."""

from __future__ import annotations

from pathlib import Path

from core.model import GfxTarget
from tests.support.made_kernels import LIBRARY, OBJECT, OTHER, clean_kernels
from tests.support.whole_code import whole_code
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.kernel_wheel import read_manifest
from wheelkit.repair.repair_plan import RepairPlan
from wheelkit.repair.wheel_repair import repair


def test_repair_keeps_and_lists_code_objects(tmp_path: Path) -> None:
    source = clean_kernels().write(tmp_path)
    plan = RepairPlan(
        project="jax-aiter",
        version="1.2.4",
        strip=True,
        members=(LIBRARY,),
        targets=(GfxTarget.parse("gfx942"),),
        summary="x",
        requires_python=">=3.11",
        license_text=b"x",
    )
    out = tmp_path / "out"
    out.mkdir()
    done = repair(source, plan, out)
    assert {info.path: info.targets for info in done.wheel.members} == {
        LIBRARY: (),
        OBJECT: ("gfx942",),
        OTHER: ("gfx950",),
    }
    with WheelArchive(done.path) as archive:
        assert archive.read(OBJECT) == whole_code("gfx942", ("a",))
        assert {module.name for module in read_manifest(archive).modules} == {"gemm"}
