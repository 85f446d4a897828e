"""Repair refuses wheels of another ROCm than the plan's: by compiler, else by Summary."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import RepairError
from tests.support.made_wheel import LIB, clean_pjrt, with_sections
from tests.unit.core.test_rocm_releases import C849, ROCM_LLVM
from wheelkit.repair.repair_plan import RepairPlan
from wheelkit.repair.wheel_repair import repair

C7_12 = f"{ROCM_LLVM}{C849}+PATCHED:9a6ac45c)"


def attempt(
    folder: Path, rocm: str, *compilers: str, summary: str = "JAX (ROCm:unknown)"
) -> Path:
    """Repair a wheel with these compilers and this Summary for a ROCm."""
    made = clean_pjrt()
    comments = "".join(f"{text}\0" for text in compilers).encode()
    made.files[LIB] = with_sections(made.files[LIB], (".comment", 1, 0x30, comments))
    made.replace("Summary", summary)
    plan = RepairPlan(
        project="jax-rocm7-pjrt",
        version="1.2.3+x",
        rocm_version=rocm,
        summary="JAX",
        requires_python=">=3.11",
        license_text=b"",
        strip=False,
        device_members=(LIB,),
    )
    (folder / "in").mkdir()
    (folder / "out").mkdir()
    return repair(made.write(folder / "in"), plan, folder / "out").path


@pytest.mark.parametrize("rocm", ["7.12.0", "7.13.0", ""])
def test_repair_accepts_rocms_of_commit(rocm: str, tmp_path: Path) -> None:
    # Development versions of 7.13 have the compiler of 7.12.0; an empty version skips
    # the check.
    assert attempt(tmp_path, rocm, C7_12, summary="JAX (ROCm:7.14.0)").is_file()


@pytest.mark.parametrize(
    ("rocm", "compilers", "hint"),
    [
        ("7.2.0", ("clang 18", C7_12), "Use --rocm-version=7.12.0 or another wheel."),
        ("10.0.0", (C7_12,), "Use another release of the wheel."),
    ],
)
def test_repair_refuses_other_rocm_of_commit(
    rocm: str, compilers: tuple[str, ...], hint: str, tmp_path: Path
) -> None:
    with pytest.raises(RepairError) as caught:
        attempt(tmp_path, rocm, *compilers)
    assert "was compiled with ROCm 7.12.0" in caught.value.message
    assert caught.value.hint == hint
    assert list((tmp_path / "out").iterdir()) == []


def test_repair_refuses_other_rocm_of_summary(tmp_path: Path) -> None:
    with pytest.raises(RepairError, match=r"Summary names ROCm 7\.14\.0"):
        attempt(tmp_path, "7.2.0", "clang 18", summary="JAX (ROCm:7.14.0)")
