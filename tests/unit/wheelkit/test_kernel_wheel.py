"""Inspection of kernel wheels: a valid one and broken ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.model import Evidence, GfxTarget, Outcome
from promotion.gates.common.runs import run_gates
from promotion.gates.coverage import gate as coverage_gate
from promotion.stage import stage
from promotion.storage.directory_bucket import DirBucket
from tests.support.made_kernels import LIBRARY, OBJECT, OTHER, clean_kernels, code, manifest, tell
from tests.support.made_wheel import MACHS, MadeWheel, codes, look
from tests.support.silent import NoProcesses, Silent
from tests.support.wheel_sets import TARGETS, make_set, make_wheels, set_wheel, write_set
from tests.support.whole_code import whole_code
from wheelkit.archive.reader import WheelArchive
from wheelkit.inspect.model import member_infos
from wheelkit.kernel_wheel import read_manifest
from wheelkit.repair.plan import RepairPlan
from wheelkit.repair.repair import repair

HSA = "jax_aiter/_kernels/hsa"


def test_kernel_wheel_clean_has_no_findings(tmp_path: Path) -> None:
    report = look(clean_kernels(), tmp_path)
    assert report.findings == ()
    assert {code.target for code in report.targets} == {"gfx942", "gfx950"}
    assert {info.path: info.targets for info in member_infos(report)} == {
        LIBRARY: (),
        OBJECT: ("gfx942",),
        OTHER: ("gfx950",),
    }


Break = Callable[[MadeWheel], object]


def listed(change: Callable[[dict[str, Any]], object], *dropped: str) -> Break:
    """Change module gemm in the manifest, and remove the dropped files from the wheel."""

    def edit(made: MadeWheel) -> None:
        modules = manifest(made.files)["modules"]
        change(modules["gemm"])
        tell(made, modules=modules)
        for path in dropped:
            del made.files[path]

    return edit


def held(path: str, content: bytes) -> Break:
    """Add a file with this content, and its digest to the manifest."""

    def edit(made: MadeWheel) -> None:
        made.files[path] = content
        tell(made)

    return edit


promised_target_without_code = listed(lambda gemm: gemm["objects"].pop("gfx950"), OTHER)


def with_table(
    made: MadeWheel, gfx: str, code: str, *, name: str = "kernels.csv", alone: bool = False, changed: bytes = b""
) -> None:
    """List a table of kernels in addition to a code object or instead of it; the table may be changed afterwards."""
    table = code.replace("a.co", name)
    made.files[table] = b"knl_name,co_name\n"

    def add(gemm: dict[str, Any]) -> None:
        objects = gemm["objects"][gfx]
        objects[table.removeprefix(f"{HSA}/")] = hashlib.sha256(made.files[table]).hexdigest()
        if alone:
            del objects[code.removeprefix(f"{HSA}/")]

    listed(add, *([code] if alone else []))(made)
    made.files[table] += changed


@pytest.mark.parametrize(
    ("break_it", "found"),
    [
        (lambda made: tell(made, load_order=[]), ["kernels-manifest-damaged"]),
        (held(OBJECT, code("gfx942", flags=0x300)), ["code-object-wrong"]),  # runs only with xnack
        (lambda made: with_table(made, "gfx950", OTHER, alone=True), ["target-missing"]),
        (lambda made: with_table(made, "gfx942", OBJECT, changed=b"more\n"), ["kernels-manifest-untrue"]),
        (lambda made: with_table(made, "gfx942", OBJECT), []),
        (lambda made: with_table(made, "gfx942", OBJECT, name="tuned/gemm.csv"), []),
        (lambda made: with_table(made, "gfx942", OBJECT, name="other/gemm.csv"), ["kernels-manifest-untrue"]),
    ],
)
def test_kernel_wheel_broken_has_expected_finding(break_it: Break, found: list[str], tmp_path: Path) -> None:
    made = clean_kernels()
    break_it(made)
    assert codes(look(made, tmp_path)) == found


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


def told(evidence: Evidence) -> list[str]:
    return sorted({finding.code for finding in evidence.findings})


def test_kernel_coverage_checks_each_module_and_target(tmp_path: Path) -> None:
    evidence = covered(tmp_path, clean_kernels())
    assert {target: found.outcome for target, found in evidence.items()} == dict.fromkeys(TARGETS, Outcome.PASSED)
    checked = [check for found in evidence.values() for check in found.details["checks"] if "gemm" in check["name"]]
    assert [check["code_objects"] for check in checked] == [1, 1]


def test_kernel_coverage_fails_only_target_without_code(tmp_path: Path) -> None:
    made = clean_kernels()
    promised_target_without_code(made)
    evidence = covered(tmp_path, made, {OBJECT: ("gfx942",)})
    assert evidence["gfx942"].outcome is Outcome.PASSED
    assert told(evidence["gfx950"]) == ["target-missing"]


def test_kernel_coverage_wrong_object_fails_every_target(tmp_path: Path) -> None:
    made = clean_kernels()
    held(OBJECT, whole_code("gfx950"))(made)
    evidence = covered(tmp_path, made, {OBJECT: ("gfx950",), OTHER: ("gfx950",)})
    assert {found.outcome for found in evidence.values()} == {Outcome.FAILED}
