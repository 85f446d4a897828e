"""The real GEMM handlers above FakeHip: object, grid and argument bytes as in AITER's own files."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.tests.support.fake import golden
from kernels.tests.support.fake.calls import CallError, Record
from kernels.tests.support.fake.gemm_calls import (
    BF16_GPUS,
    bf16_call,
    fp4_call,
    fp8_call,
    i8_call,
    launch,
)
from kernels.tests.support.fake.refused import refused
from kernels.tests.support.fake.trees import Gpu, KernelTree, find_device

pytestmark = pytest.mark.network

INVALID = 3
MI300 = find_device("gfx942", 304)
MI350 = find_device("gfx950", 256)
Shape = tuple[int, int, int]
"""M, N, K."""


def multiples(most: int, *steps: int) -> st.SearchStrategy[int]:
    """Generate multiples of one of some numbers."""
    return st.integers(1, most).flatmap(
        lambda count: st.sampled_from([count * step for step in steps])
    )


def expect(
    record: Record,
    row: golden.Row,
    grid: Shape,
    values: Mapping[str, int | float],
) -> None:
    assert record.sha256 == golden.digest(row.path)
    assert record.kernel == golden.metadata(row.path)[".name"]
    assert record.grid == grid
    assert record.arguments == golden.packed(row.path, values)


@settings(max_examples=300)
@given(
    shape=st.tuples(
        st.integers(1, 5000), multiples(100, 32, 64, 256), multiples(200, 32, 64, 256)
    ),
    splitk=st.integers(0, 70),
    gpu=st.sampled_from(BF16_GPUS),
)
def test_bf16(
    kernel_tree: KernelTree,
    shape: Shape,
    splitk: int,
    gpu: Gpu,
) -> None:
    m, n, k = shape
    table = golden.rows(kernel_tree.source, gpu.processor, "gemm_bf16")
    args, results = call = bf16_call(m, n, k)
    library = kernel_tree.library("gemm_bf16")
    if k % 64 or n % 64 or splitk > min(64, k // 64):
        with pytest.raises(
            CallError, match=f"No kernel of .*bf16gemm.*csv fits M={m}, N={n}, K={k}"
        ):
            launch(library, call, gpu.ordinal, splitk=splitk)
        return
    found, before = launch(library, call, gpu.ordinal, splitk=splitk)
    row = golden.row_of(table, found.kernel)
    split = found.grid[2]
    values: dict[str, int | float] = {
        "D": results[0].address,
        "A": args[0].address,
        "B": args[1].address,
        "alpha": 1.0,
        "strideD0": n * 4,
        "strideC0": n * 4,
        "strideA0": k * 2,
        "strideB0": k * 2,
        "Mdim": m,
        "Ndim": n,
        "Kdim": k,
        "splitk": split,
    }
    expect(found, row, (n // row.tile_n, golden.ceil(m, row.tile_m), split), values)
    # Blocks that share a k add to the result.
    zeroed = [(record.to, record.value, record.size) for record in before]
    assert zeroed == ([(results[0].address, 0, m * n * 4)] if split > 1 else [])
    assert n % row.tile_n == 0
    assert 1 <= split <= min(64, k // 64)
    assert split == splitk or splitk == 0
    # By default the handler splits only to fill idle compute units.
    across, down, _ = found.grid
    assert splitk or split == 1 or across * down * split <= gpu.compute_units


@settings(max_examples=150)
@given(
    shape=st.tuples(
        st.integers(1, 5000),
        multiples(200, 64),
        multiples(200, 64),
    ),
    splitk=st.integers(0, 1),
)
def test_i8(
    kernel_tree: KernelTree,
    shape: Shape,
    splitk: int,
) -> None:
    m, n, k = shape
    table = golden.rows(kernel_tree.source, "gfx942", "gemm_i8")
    args, results = call = i8_call(m, n, k)
    library = kernel_tree.library("gemm_i8")
    if k % 128 or n % 128:
        with pytest.raises(CallError, match=r"No kernel of|multiple of"):
            launch(library, call, MI300, splitk=splitk)
        return
    found, before = launch(library, call, MI300, splitk=splitk)
    row = golden.row_of(table, found.kernel)
    split = found.grid[0] * row.tile_n // n
    a, b, a_scale, b_scale, bias = (tensor.address for tensor in args)
    values = {
        "C": results[0].address,
        "A": a,
        "B": b,
        "SA": a_scale,
        "SB": b_scale,
        "BIAS": bias,
        "M": m,
        "N" if "192x128" in table[-1].kernel else "Ndim": n,
        "K": k,
        "PA": k,
        "PB": k,
        "PC": n * 2,
        "KS": split,
    }
    expect(
        found,
        row,
        (
            n // row.tile_n * split,
            golden.ceil(m, row.tile_m),
            1,
        ),
        values,
    )
    assert [record.size for record in before] == ([m * n * 2] if split > 1 else [])
    # Every part of K is a multiple of 128, and none is empty.
    part = golden.ceil(golden.ceil(k, split), 128) * 128
    assert (split - 1) * part < k <= split * part
    assert split == 1 or (row.splits and math.prod(found.grid) <= 304)


def test_i8_splits_k_only_into_parts_that_run_at_once(kernel_tree: KernelTree) -> None:
    """A block clears its share of the result, and so would lose what others have added."""
    library = kernel_tree.library("gemm_i8")
    gpu = find_device("gfx942", 80)
    found, _ = launch(library, i8_call(1, 5120, 1024), gpu, splitk=2)
    assert found.grid == (80, 1, 1)
    for sizes, said in (
        ((1, 5248, 1024), "2 parts of K do not all run at the same time on 80"),
        ((1, 128, 128), "K has no 2 parts that are multiples of 128"),
    ):
        with pytest.raises(CallError, match=said):
            launch(library, i8_call(*sizes), gpu, splitk=2)


@settings(max_examples=200)
@given(
    shape=st.tuples(multiples(40, 32), multiples(100, 64), multiples(64, 128)),
    splitk=st.sampled_from([0, 1, 2, 4, 8, 16]),
    shuffled=st.booleans(),
)
def test_fp4(
    kernel_tree: KernelTree,
    shape: Shape,
    splitk: int,
    shuffled: bool,
) -> None:
    m, n, k = shape
    table = golden.rows(kernel_tree.source, "gfx950", "gemm_fp4")
    split = max(1, splitk)
    fits = [
        one
        for one in table
        if (one.shuffled, one.splits, n % one.tile_n) == (shuffled, splitk > 1, 0)
    ]
    args, results = call = fp4_call(m, n, k)
    library = kernel_tree.library("gemm_fp4")
    if k % (256 * split) or not fits:
        said = "K a multiple of 256" if k % 256 else "No kernel of .*f4gemm.*csv fits"
        with pytest.raises(CallError, match=said):
            launch(library, call, MI350, splitk=splitk, bpreshuffle=shuffled)
        return
    found, before = launch(library, call, MI350, splitk=splitk, bpreshuffle=shuffled)
    row = golden.row_of(table, found.kernel)
    values: dict[str, int | float] = {
        "D": results[0].address,
        "A": args[0].address,
        "B": args[1].address,
        "alpha": 1.0,
        "strideD0": n,
        "strideC0": n,
        "strideA0": k,
        "strideB0": k,
        "Mdim": m,
        "Ndim": n,
        "Kdim": k,
        "ScaleA": args[2].address,
        "ScaleB": args[3].address,
        "strideScaleA0": args[2].shape[1],
        "strideScaleB0": args[3].shape[1],
    }
    if split > 1:
        values["log2_k_split"] = split.bit_length() - 1
    expect(found, row, (n // row.tile_n, golden.ceil(m, row.tile_m), split), values)
    assert [record.size for record in before] == ([m * n * 2] if split > 1 else [])
    assert row in fits


@pytest.mark.parametrize(
    ("module", "device", "shape", "said"),
    [
        ("gemm_fp8_mi350", MI350, (15, 256, 512), "M >= 16"),
        ("gemm_fp8_mi350", MI350, (32, 256, 384), "K >= 512"),
        ("gemm_fp8_mi350", MI350, (32, 256, 576), "a multiple of 128"),
        ("flatmm_fp8", MI300, (32, 128, 512), "N a multiple of 256"),
        ("flatmm_fp8", MI300, (32, 256, 192), "K a multiple of 128"),
    ],
)
def test_fp8_refuses_shapes_without_kernel(
    kernel_tree: KernelTree,
    module: str,
    device: int,
    shape: Shape,
    said: str,
) -> None:
    library = kernel_tree.library(module)
    with refused(INVALID, said):
        library.call(*fp8_call(module, *shape), device=device)


def test_named_kernel_is_used(kernel_tree: KernelTree) -> None:
    library = kernel_tree.library("gemm_bf16")
    call = bf16_call(512, 512, 1024)
    for row in golden.rows(kernel_tree.source, "gfx942", "gemm_bf16"):
        found, _ = launch(library, call, MI300, splitk=1, kernel=row.kernel)
        assert found.kernel == row.kernel
