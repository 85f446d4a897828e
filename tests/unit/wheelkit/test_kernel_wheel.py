"""Inspection of kernel wheels: a valid one and broken ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from core.model import Evidence, GfxTarget, Outcome
from promotion.gates.common.runs import run_gates
from promotion.gates.coverage import gate as coverage_gate
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from tests.support.made_kernels import LIBRARY, OBJECT, OTHER, clean_kernels, tell
from tests.support.made_wheel import MACHS, MadeWheel
from tests.support.silent import NoProcesses, Silent
from tests.support.wheel_sets import TARGETS, make_set, make_wheels, set_wheel, write_set
from tests.support.whole_code import whole_code
from wheelkit.archive.reader import WheelArchive
from wheelkit.kernel_wheel import read_manifest
from wheelkit.repair.plan import RepairPlan
from wheelkit.repair.repair import repair

Break = Callable[[MadeWheel], object]


def held(path: str, content: bytes) -> Break:
    """Add a file with this content, and its digest to the manifest."""

    def edit(made: MadeWheel) -> None:
        made.files[path] = content
        tell(made)

    return edit


def test_repair_keeps_and_lists_code_objects(tmp_path: Path) -> None:
    source = clean_kernels().write(tmp_path)
    plan = RepairPlan(
        project="jax-aiter",
        version="1.2.4",
        machs=MACHS,
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
    assert {info.path: info.targets for info in done.members} == {
        LIBRARY: (),
        OBJECT: ("gfx942",),
        OTHER: ("gfx950",),
    }
    with WheelArchive(done.path) as archive:
        assert archive.read(OBJECT) == whole_code("gfx942", ("a",))
        assert {module.name for module in read_manifest(archive).modules} == {"gemm"}


# The coverage gate.


def covered(folder: Path, made: MadeWheel, held: dict[str, tuple[str, ...]] | None = None) -> dict[str, Evidence]:
    (folder / "k").mkdir()
    kernels = set_wheel(made, folder / "k", {OBJECT: ("gfx942",), OTHER: ("gfx950",)} if held is None else held)
    wheels = [kernels, *make_wheels(folder / "others", pythons=("3.12",))]
    bucket = DirBucket(folder / "bucket")
    staged = stage(bucket, write_set(folder / "set", wheels, make_set(wheels, python_versions=("3.12",))))
    return {e.target: e for e in run_gates(bucket, staged, [coverage_gate.GATE], NoProcesses(), Silent())}


def test_kernel_coverage_checks_each_module_and_target(tmp_path: Path) -> None:
    evidence = covered(tmp_path, clean_kernels())
    assert {target: found.outcome for target, found in evidence.items()} == dict.fromkeys(TARGETS, Outcome.PASSED)
    checked = [check for found in evidence.values() for check in found.details["checks"] if "gemm" in check["name"]]
    assert [check["code_objects"] for check in checked] == [1, 1]
