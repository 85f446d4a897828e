"""Portable RMSNorm: numerics of the original source on the host against float64, and launches of its handlers."""

from __future__ import annotations

import itertools
import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.catalog import load_catalog
from kernels.tests.support.fake import golden
from kernels.tests.support.fake.building import BARRIERS, TARGETS
from kernels.tests.support.fake.calls import LAUNCH, LOAD, FakeMachine, Record, Tensor, tensors
from kernels.tests.support.fake.host import HostMachine
from kernels.tests.support.fake.trees import GPUS, Gpu, KernelTree
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

pytestmark = pytest.mark.network

SIZES = (1, 2, 7, 64, 1000, 4096)
LONG = [
    Case(F32, 1, 65536, "wide", 512, 1),
    Case(F16, 1, 65537, "narrow", 512, 1),
    Case(BF16, 2, 69632, "wide", 512, 1),
]
PORTABLE = {"gfx1100": "gfx1100", "gfx1103": "gfx11-generic", "gfx90a": "gfx90a", "gfx942": "gfx942"}
"""Processor -> the folder that serves it."""


@pytest.mark.parametrize("seed", [0, 1])
def test_numerics_forward(kernel_tree: KernelTree, seed: int) -> None:
    machine = HostMachine(kernel_tree.fake / "rms_norm_host.so", seed)
    for case in [*cases(SIZES, held=HELD), *LONG]:
        assert check_forward(machine, case, add=False) <= 1, case
        assert check_forward(machine, case, add=True) <= 1, case


@pytest.mark.parametrize("seed", [0, 1])
def test_numerics_backward(kernel_tree: KernelTree, seed: int) -> None:
    machine = HostMachine(kernel_tree.fake / "rms_norm_host.so", seed)
    for case in [*cases(SIZES, held=BWD_HELD), *LONG]:
        assert check_backward(machine, case) <= 1, case


@pytest.mark.parametrize(("dtype", "scale"), [(F32, 1e12), (F32, 1e-25), (F16, 1e4), (F16, 1e-6), (BF16, 1e12)])
def test_numerics_of_large_and_small_numbers(kernel_tree: KernelTree, dtype: Dtype, scale: float) -> None:
    machine = HostMachine(kernel_tree.fake / "rms_norm_host.so", 0)
    case = Case(dtype, 2, 1000, "narrow", 128, 2, epsilon=1e-12, scale=scale)
    assert check_forward(machine, case, add=False) <= 1


@pytest.mark.parametrize("barrier", range(BARRIERS))
def test_missing_barrier_is_detected(kernel_tree: KernelTree, barrier: int) -> None:
    library = kernel_tree.fake / f"racing-{barrier}.so"
    case = Case(F32, 3, 1024, "held", 256, 1)
    assert any(check_forward(HostMachine(library, seed), case, add=False) > 1 for seed in range(8))


def test_nan_and_infinity_propagate(kernel_tree: KernelTree) -> None:
    machine = HostMachine(kernel_tree.fake / "rms_norm_host.so", 0)
    for dtype in DTYPES:
        x = [math.nan, 1.0, 2.0, 3.0, math.inf, 1.0, 2.0, 3.0]
        at = [machine.put(dtype.encode(x)), 0, machine.put(dtype.encode([1.0] * 4)), machine.put(bytes(8 * dtype.size))]
        at += [0, machine.put(bytes(8))]
        machine.launch(f"rms_norm_{dtype.name}_narrow", struct.pack("<8QfIII", *at, 2, 4, 1e-6, 64, 2, 0), 2, 64)
        y, rstd = dtype.decode(machine.get(at[3])), F32.decode(machine.get(at[5]))
        assert all(map(math.isnan, y[:4])), dtype
        assert math.isnan(rstd[0])
        assert rstd[1] == 0
        assert math.isnan(y[4])
        assert y[5:] == [0, 0, 0]


def test_norm_with_add_equals_norm_of_sum(kernel_tree: KernelTree) -> None:
    machine = HostMachine(kernel_tree.fake / "rms_norm_host.so", 0)
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


def shifted(made: list[Tensor], *, aligned: bool) -> list[Tensor]:
    """Return tensors; unless `aligned`, the first address is not a multiple of 16 bytes."""
    first, *others = made
    return made if aligned else [Tensor(first.dtype, first.shape, first.address + 4), *others]


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("gpu", [gpu for gpu in GPUS if gpu.processor in PORTABLE and gpu.compute_units != 80], ids=str)
def test_handlers(kernel_tree: KernelTree, fake_machine: FakeMachine, gpu: Gpu, *, aligned: bool) -> None:
    library = kernel_tree.library("rms_norm")
    path = kernel_tree.hsa / PORTABLE[gpu.processor] / "rms_norm" / "rms_norm.co"
    epsilon = struct.unpack("<f", struct.pack("<f", 1e-5))[0]
    for dtype, rows, n in itertools.product(DTYPES, (1, 3, 2_000_000), (1, 63, 64, 4096, 8192, 32768, 65537, 131072)):
        t, shape, blocks = dtype.name, (rows, n), min(rows, 1 << 20)
        forward = plan(n, dtype, aligned=aligned, held=HELD)
        x, gamma, y, rstd, residual, total = shifted(
            tensors((t, shape), (t, (n,)), (t, shape), ("f32", (rows,)), (t, shape), (t, shape)), aligned=aligned
        )
        fake_machine.records()
        attributes = {"epsilon": epsilon}
        fake_machine.call(library, "JaxAiterRmsNorm", [x, gamma], [y, rstd], attributes, device=gpu.ordinal)
        fake_machine.call(
            library, "JaxAiterRmsNormWithAdd", [x, residual, gamma], [y, total, rstd], attributes, device=gpu.ordinal
        )
        dy, dx, partial = residual, y, *tensors(("f32", (5, n)), start=0x1_0000)
        fake_machine.call(library, "JaxAiterRmsNormBwd", [dy, x, gamma, rstd], [dx, partial], device=gpu.ordinal)
        plain, fused, back = (record for record in fake_machine.records() if record.what != LOAD)

        def expect(record: Record, family: str, chosen: tuple[str, int], blocks: int, arguments: bytes) -> None:
            name = f"{family}_{t}_{chosen[0]}"  # noqa: B023 - called in this round
            assert (record.what, record.device, record.kernel) == (LAUNCH, gpu.ordinal, name)
            assert (record.grid, record.block, record.shared) == ((blocks, 1, 1), (chosen[1], 1, 1), 0)
            assert record.arguments == arguments
            assert len(arguments) == golden.kernels(path)[name][".kernarg_segment_size"]
            assert record.sha256 == golden.digest(path)

        tail = (rows, n, epsilon, forward[1], blocks, 0)
        packed = struct.pack("<8QfIII", x.address, 0, gamma.address, y.address, 0, rstd.address, *tail)
        expect(plain, "rms_norm", forward, blocks, packed)
        addresses = [tensor.address for tensor in (x, residual, gamma, y, total, rstd)]
        expect(fused, "rms_norm_with_add", forward, blocks, struct.pack("<8QfIII", *addresses, *tail))
        backward = plan(n, dtype, aligned=aligned, held=BWD_HELD)
        addresses = [tensor.address for tensor in (dy, x, gamma, rstd, dx, partial)]
        expect(back, "rms_norm_bwd", backward, 5, struct.pack("<8QII", *addresses, rows, n, backward[1], 5))


@settings(max_examples=300)
@given(
    n=st.one_of(st.integers(1, 400_000), st.integers(1, 10_000).map(lambda packs: packs * 8)),
    rows=st.integers(1, 1 << 33),
    dtype=st.sampled_from(DTYPES),
    aligned=st.booleans(),
    symbol=st.sampled_from(["JaxAiterRmsNorm", "JaxAiterRmsNormWithAdd", "JaxAiterRmsNormBwd"]),
    partials=st.integers(1, 1 << 20),
)
def test_kernel_covers_whole_row_of_any_length(
    kernel_tree: KernelTree, fake_machine: FakeMachine, n: int, rows: int, dtype: Dtype, aligned: bool, symbol: str,
    partials: int,
) -> None:  # fmt: skip
    t, shape = dtype.name, (rows, n)
    made = tensors(*[(t, shape)] * 4, (t, (n,)), ("f32", (rows,)), ("f32", (partials, n)))
    x, other, y, total, gamma, rstd, partial = shifted(made, aligned=aligned)
    args, results, attributes = {
        "JaxAiterRmsNorm": ([x, gamma], [y, rstd], {"epsilon": 0.0}),
        "JaxAiterRmsNormWithAdd": ([x, other, gamma], [y, total, rstd], {"epsilon": 0.0}),
        "JaxAiterRmsNormBwd": ([other, x, gamma, rstd], [y, partial], {}),
    }[symbol]
    fake_machine.records()
    fake_machine.call(kernel_tree.library("rms_norm"), symbol, args, results, attributes)
    (launch,) = (record for record in fake_machine.records() if record.what == LAUNCH)
    form, threads, backward = launch.kernel.rpartition("_")[2], launch.block[0], symbol == "JaxAiterRmsNormBwd"
    assert threads in (64, 128, 256, 512)
    assert launch.grid[0] * threads < 1 << 32
    assert launch.grid[0] == (partials if backward else min(rows, 1 << 20))
    if form != "narrow":
        assert n % dtype.wide == 0
        assert aligned
    if form == "held":
        assert threads * (BWD_HELD if backward else HELD) * dtype.wide >= n


@pytest.mark.parametrize("target", [target for target in TARGETS if target in PORTABLE.values()])
def test_code_objects_have_every_kernel_and_no_spills(kernel_tree: KernelTree, target: str) -> None:
    found = golden.kernels(kernel_tree.hsa / target / "rms_norm" / "rms_norm.co")
    (unit,) = load_catalog().modules["rms_norm"].units
    assert set(found) == set(unit.kernels)
    for name, kernel in found.items():
        assert (kernel[".private_segment_fixed_size"], kernel[".vgpr_spill_count"]) == (0, 0), name
        assert kernel[".max_flat_workgroup_size"] == 512
        # One structure, without hidden arguments for a runtime to fill in.
        assert [(arg[".offset"], arg[".value_kind"]) for arg in kernel[".args"]] == [(0, "by_value")]


def test_no_rows_launch_only_gradient_zeros(kernel_tree: KernelTree, fake_machine: FakeMachine) -> None:
    library = kernel_tree.library("rms_norm")
    x, gamma, y, rstd, partial = tensors(
        ("f32", (0, 8)), ("f32", (8,)), ("f32", (0, 8)), ("f32", (0,)), ("f32", (2, 8))
    )
    fake_machine.records()
    fake_machine.call(library, "JaxAiterRmsNorm", [x, gamma], [y, rstd], {"epsilon": 1e-6})
    assert fake_machine.records() == []
    fake_machine.call(library, "JaxAiterRmsNormBwd", [x, x, gamma, rstd], [y, partial])
    (launch,) = (record for record in fake_machine.records() if record.what == LAUNCH)
    assert launch.grid == (2, 1, 1)


def test_zeros_of_the_gradient_are_written(kernel_tree: KernelTree) -> None:
    machine = HostMachine(kernel_tree.fake / "rms_norm_host.so", 0)
    for form in ("held", "wide", "narrow"):
        partial = machine.put(b"\xff" * (2 * 8 * 4))
        blank = machine.put(bytes(8 * 4))
        arguments = struct.pack("<8QII", 0, 0, blank, 0, 0, partial, 0, 8, 64, 2)
        machine.launch(f"rms_norm_bwd_f32_{form}", arguments, 2, 64)
        assert machine.get(partial) == bytes(2 * 8 * 4), form
