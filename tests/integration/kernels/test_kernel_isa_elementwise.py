"""RoPE and SwiGLU compiled for gfx942 and gfx1100, interpreted instruction by instruction, against float64."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from core.process import HostRunner
from kernels.steps import SRC
from kernels.toolchains import obtain_pypi
from tests.support.elementwise_cases import (
    RopeCase,
    SiluCase,
    check_rope,
    check_silu,
    check_silu_bwd,
    rope_cases,
    silu_cases,
)
from tests.support.isa.code_object import CodeObject
from tests.support.isa.machine import GpuMachine
from tests.support.isa.memory import AccessError
from tests.support.kernels_fake.building import compile_device
from tests.support.kernels_fake.trees import KernelTree
from tests.support.rms_norm_cases import F32
from tests.support.silent import Silent

pytestmark = [pytest.mark.network, pytest.mark.heavy]

TARGETS = ("gfx942", "gfx1100")
"""Wavefronts of 64 lanes (CDNA3) and of 32 (RDNA3)."""
ROPE, SILU = RopeCase(F32, 5, 3, 20, 8, False, False, wide=True), SiluCase(F32, 5, 12, True, wide=True)
MUTANTS: dict[str, tuple[str, str, str, str]] = {
    "sign": ("rope", "rope.hip", "a * c - b * s", "a * c + b * s"),
    "row": ("rope", "spread.h", "if (row < spread.rows) work(", "work("),
    "slope": ("silu_and_mul", "silu_and_mul.hip", "1.0f + g * s.rest", "1.0f + g * s.value"),
    "exponent": ("silu_and_mul", "gpu.h", "gpu_fma(n, -0.693147182f, x)", "gpu_fma(n, -0.693f, x)"),
}
"""Faults: name -> module, file, text and its replacement."""


@pytest.mark.parametrize("target", TARGETS)
def test_rope_matches_float64(kernel_tree: KernelTree, target: str) -> None:
    machine = GpuMachine(CodeObject(kernel_tree.hsa / target / "rope" / "rope.co"), 0)
    for case in [*rope_cases(), RopeCase(F32, 3, 16, 96, 16, False, False, wide=True, threads=256)]:
        assert check_rope(machine, case) <= 1, case


@pytest.mark.parametrize("target", TARGETS)
def test_swiglu_matches_float64(kernel_tree: KernelTree, target: str) -> None:
    machine = GpuMachine(CodeObject(kernel_tree.hsa / target / "silu_and_mul" / "silu_and_mul.co"), 0)
    for case in [*silu_cases(), SiluCase(F32, 3, 1040, False, wide=True, threads=256)]:
        assert check_silu(machine, case) <= 1, case
        assert check_silu_bwd(machine, case) <= 1, case


@pytest.fixture(scope="module")
def mutant(work_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], GpuMachine]:
    """Compile the kernels for f32 with a fault."""

    def build(name: str, target: str) -> GpuMachine:
        module, file, before, after = MUTANTS[name]
        folder = tmp_path_factory.mktemp(name) / "src"
        shutil.copytree(SRC, folder)
        text = (folder / file).read_text(encoding="utf-8")
        assert text.count(before) == 1
        (folder / file).write_text(text.replace(before, after), encoding="utf-8")
        kernels = (folder / f"{module}.hip").read_text(encoding="utf-8").partition(f"\n{module.upper()}_KERNELS(f16, ")
        assert kernels[1]
        (folder / "f32.hip").write_text(kernels[0] + "\n", encoding="utf-8")
        runner = HostRunner(os.environ)
        toolchain = obtain_pypi(work_cache / "kernels", runner, Silent())
        compile_device(toolchain, runner, folder / "f32.hip", target, folder / "out.co")
        return GpuMachine(CodeObject(folder / "out.co"), 0)

    return build


@pytest.mark.parametrize("target", TARGETS)
def test_wrong_sign_changes_results(mutant: Callable[[str, str], GpuMachine], target: str) -> None:
    assert check_rope(mutant("sign", target), ROPE) > 100


def test_row_beyond_the_last_is_an_access_error(mutant: Callable[[str, str], GpuMachine]) -> None:
    with pytest.raises(AccessError):
        check_rope(mutant("row", "gfx1100"), ROPE)


def test_wrong_slope_and_exponent_change_results(mutant: Callable[[str, str], GpuMachine]) -> None:
    assert check_silu_bwd(mutant("slope", "gfx942"), SILU) > 100
    assert check_silu(mutant("exponent", "gfx1100"), SILU) > 100
