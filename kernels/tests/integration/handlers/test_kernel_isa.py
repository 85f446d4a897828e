"""Portable kernels compiled for gfx942 and gfx1100, interpreted instruction by instruction, against float64."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from core.process import HostRunner
from kernels.steps import SRC
from kernels.tests.support.fake.building import compile_device
from kernels.tests.support.fake.trees import KernelTree
from kernels.tests.support.isa.code_object import CodeObject
from kernels.tests.support.isa.machine import GpuMachine
from kernels.tests.support.isa.memory import AccessError
from kernels.tests.support.rms_norm_cases import (
    BF16,
    BWD_HELD,
    DTYPES,
    F16,
    F32,
    HELD,
    Case,
    Dtype,
    cases,
    check_backward,
    check_forward,
    numbers,
    plan,
)
from kernels.toolchains import obtain_pypi
from tests.support.silent import Silent

pytestmark = pytest.mark.network

TARGETS = ("gfx942", "gfx1100")
"""Wavefronts of 64 lanes (CDNA3) and of 32 (RDNA3)."""
RUNS = [(target, *run) for target in TARGETS for run in ((0, (1, 64, 1000)), (1, (7, 1024)))]
"""Target, seed, lengths of a row."""
BARRIER = "__builtin_amdgcn_s_barrier();"
MUTANTS = {"no-barrier": (BARRIER, ""), "shift-2": ("(lane ^ mask) * 4", "(lane ^ mask) * 2")}
"""Faults in gpu.h: name -> text and its replacement."""


@pytest.fixture(scope="module")
def code(kernel_tree: KernelTree) -> Callable[[str], CodeObject]:
    """Return the built kernels of a target, decoded once."""
    objects = {target: CodeObject(kernel_tree.hsa / target / "rms_norm" / "rms_norm.co") for target in TARGETS}
    return lambda target: objects[target]


@pytest.fixture(scope="module")
def mutant(work_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], CodeObject]:
    """Compile the kernels for f32 with a fault in gpu.h."""

    @cache
    def build(name: str, target: str) -> CodeObject:
        folder = tmp_path_factory.mktemp(name) / "src"
        shutil.copytree(SRC, folder)
        before, after = MUTANTS[name]
        text = (folder / "gpu.h").read_text(encoding="utf-8")
        assert text.count(before) == 1
        (folder / "gpu.h").write_text(text.replace(before, after), encoding="utf-8")
        kernels = (folder / "rms_norm.hip").read_text(encoding="utf-8").partition("\nRMS_NORM_KERNELS(f16, ")[0]
        (folder / "f32.hip").write_text(kernels + "\n", encoding="utf-8")
        runner = HostRunner(os.environ)
        toolchain = obtain_pypi(work_cache / "kernels", runner, Silent())
        compile_device(toolchain, runner, folder / "f32.hip", target, folder / "out.co")
        return CodeObject(folder / "out.co")

    return build


@pytest.mark.parametrize(("target", "seed", "sizes"), RUNS)
def test_forward_of_compiled_kernels_matches_float64(
    code: Callable[[str], CodeObject], target: str, seed: int, sizes: tuple[int, ...]
) -> None:
    machine = GpuMachine(code(target), seed)
    for case in [*cases(sizes, held=HELD), Case(BF16, 1, 4160, "held", 256, 1)]:
        assert check_forward(machine, case, add=False) <= 1, case
        assert check_forward(machine, case, add=True) <= 1, case


@pytest.mark.parametrize(("target", "seed", "sizes"), RUNS)
def test_backward_of_compiled_kernels_matches_float64(
    code: Callable[[str], CodeObject], target: str, seed: int, sizes: tuple[int, ...]
) -> None:
    machine = GpuMachine(code(target), seed)
    for case in cases(sizes, held=BWD_HELD):
        assert check_backward(machine, case) <= 1, case


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("dtype", "scale"), [(F32, 1e12), (F32, 1e-25), (F16, 1e4), (F16, 1e-6), (BF16, 1e12)])
def test_large_and_small_numbers(code: Callable[[str], CodeObject], target: str, dtype: Dtype, scale: float) -> None:
    case = Case(dtype, 2, 250, "narrow", 128, 2, epsilon=1e-12, scale=scale)
    assert check_forward(GpuMachine(code(target), 0), case, add=False) <= 1


@pytest.mark.parametrize("target", TARGETS)
def test_nan_and_infinity_propagate(code: Callable[[str], CodeObject], target: str) -> None:
    machine = GpuMachine(code(target), 0)
    for dtype in DTYPES:
        x = [math.nan, 1.0, 2.0, 3.0, math.inf, 1.0, 2.0, 3.0]
        at = [machine.put(dtype.encode(x)), 0, machine.put(dtype.encode([1.0] * 4)), machine.put(bytes(8 * dtype.size))]
        at += [0, machine.put(bytes(8))]
        machine.launch(f"rms_norm_{dtype.name}_narrow", struct.pack("<8QfIII", *at, 2, 4, 1e-6, 64, 2, 0), 2, 64)
        y, rstd = dtype.decode(machine.get(at[3])), F32.decode(machine.get(at[5]))
        assert all(map(math.isnan, y[:5])), dtype
        assert math.isnan(rstd[0])
        assert rstd[1] == 0
        assert y[5:] == [0, 0, 0]


@pytest.mark.parametrize("target", TARGETS)
def test_norm_with_add_equals_norm_of_sum(code: Callable[[str], CodeObject], target: str) -> None:
    machine = GpuMachine(code(target), 0)
    for dtype, n in itertools.product(DTYPES, (7, 512)):
        form, threads = plan(n, dtype, aligned=True, held=HELD)
        data = [dtype.encode(numbers(name, n, dtype)) for name in ("x", "residual", "gamma")]
        x, residual, gamma = (machine.put(one) for one in data)
        y, total, again = (machine.put(bytes(n * dtype.size)) for _ in range(3))
        rstd = machine.put(bytes(4))
        rest = (1, n, 1e-6, threads, 1, 0)
        fused = struct.pack("<8QfIII", x, residual, gamma, y, total, rstd, *rest)
        machine.launch(f"rms_norm_with_add_{dtype.name}_{form}", fused, 1, threads)
        plain = struct.pack("<8QfIII", total, 0, gamma, again, 0, rstd, *rest)
        machine.launch(f"rms_norm_{dtype.name}_{form}", plain, 1, threads)
        assert machine.get(again) == machine.get(y)


@pytest.mark.parametrize("target", TARGETS)
def test_zeros_of_the_gradient_are_written(code: Callable[[str], CodeObject], target: str) -> None:
    machine = GpuMachine(code(target), 0)
    for form in ("held", "wide", "narrow"):
        partial = machine.put(b"\xff" * (2 * 8 * 4))
        blank = machine.put(bytes(8 * 4))
        arguments = struct.pack("<8QII", 0, 0, blank, 0, 0, partial, 0, 8, 64, 2)
        machine.launch(f"rms_norm_bwd_f32_{form}", arguments, 2, 64)
        assert machine.get(partial) == bytes(2 * 8 * 4), form


@pytest.mark.parametrize("target", TARGETS)
def test_missing_barrier_is_a_race(mutant: Callable[[str, str], CodeObject], target: str) -> None:
    case = Case(F32, 3, 1024, "held", 256, 1)
    with pytest.raises(AccessError, match="race: wave"):
        check_forward(GpuMachine(mutant("no-barrier", target), 0), case, add=False)


@pytest.mark.parametrize("target", TARGETS)
def test_missing_barrier_changes_results(mutant: Callable[[str, str], CodeObject], target: str) -> None:
    """The shuffled order of wavefronts alone shows the fault, without the check for races."""
    case, built = Case(F32, 3, 1024, "held", 256, 1), mutant("no-barrier", target)
    machines = (GpuMachine(built, seed, races=False) for seed in range(8))
    assert any(check_forward(machine, case, add=False) > 1 for machine in machines)


@pytest.mark.parametrize("target", TARGETS)
def test_wrong_lane_of_shuffle_changes_results(mutant: Callable[[str, str], CodeObject], target: str) -> None:
    case = Case(F32, 2, 256, "held", 64, 2)
    assert check_forward(GpuMachine(mutant("shift-2", target), 0), case, add=False) > 100
    assert check_backward(GpuMachine(mutant("shift-2", target), 0), case) > 100
