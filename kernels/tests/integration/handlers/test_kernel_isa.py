"""Portable kernels compiled for gfx942 and gfx1100, interpreted instruction by instruction, against float64."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import pytest

from kernels.tests.support.fake.trees import KernelTree
from kernels.tests.support.isa.code_object import CodeObject
from kernels.tests.support.isa.machine import GpuMachine
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
)

pytestmark = pytest.mark.network

TARGETS = ("gfx942", "gfx1100")
"""Wavefronts of 64 lanes (CDNA3) and of 32 (RDNA3)."""
RUNS = [(target, *run) for target in TARGETS for run in ((0, (1, 64, 1000)), (1, (7, 1024)))]
"""Target, seed, lengths of a row."""


@pytest.fixture(scope="module")
def code(kernel_tree: KernelTree) -> Callable[[str], CodeObject]:
    """Return the built kernels of a target, decoded once."""
    objects = {target: CodeObject(kernel_tree.hsa / target / "rms_norm" / "rms_norm.co") for target in TARGETS}
    return lambda target: objects[target]


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
def test_zeros_of_the_gradient_are_written(code: Callable[[str], CodeObject], target: str) -> None:
    machine = GpuMachine(code(target), 0)
    for form in ("held", "wide", "narrow"):
        partial = machine.put(b"\xff" * (2 * 8 * 4))
        blank = machine.put(bytes(8 * 4))
        arguments = struct.pack("<8QII", 0, 0, blank, 0, 0, partial, 0, 8, 64, 2)
        machine.launch(f"rms_norm_bwd_f32_{form}", arguments, 2, 64)
        assert machine.get(partial) == bytes(2 * 8 * 4), form
