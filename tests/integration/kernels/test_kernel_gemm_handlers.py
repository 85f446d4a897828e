"""The real GEMM handlers above FakeHip: the object, grid and argument bytes that AITER's own files ask for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.kernels_fake import golden
from tests.support.kernels_fake.calls import CallError, FakeMachine, Record, Tensor
from tests.support.kernels_fake.gemm_calls import BF16_GPUS, bf16_call, fp4_call, fp8_call, i8_call, launched
from tests.support.kernels_fake.trees import Gpu, KernelTree, find_device

pytestmark = [pytest.mark.network, pytest.mark.heavy]

SHAPES = [(512, 512, 1024), (1, 64, 64), (17, 128, 4096), (4096, 4096, 4096), (1000, 6400, 8192), (33, 28672, 128)]


@pytest.fixture(autouse=True)
def nothing_recorded(fake_machine: FakeMachine) -> None:
    """Clear the recorded calls before each test."""
    fake_machine.records()


def expect(
    record: Record, row: golden.Row | Path, grid: tuple[int, int, int], values: Mapping[str, int | float]
) -> None:
    path = row if isinstance(row, Path) else row.path
    assert record.sha256 == golden.digest(path)
    assert record.kernel == golden.metadata(path)[".name"]
    assert record.grid == grid
    assert record.arguments == golden.packed(path, values)


def bf16_values(
    args: list[Tensor], results: list[Tensor], m: int, n: int, k: int, split: int
) -> dict[str, int | float]:
    return {
        "D": results[0].address, "A": args[0].address, "B": args[1].address, "alpha": 1.0,
        "strideD0": n * 4, "strideC0": n * 4, "strideA0": k * 2, "strideB0": k * 2,
        "Mdim": m, "Ndim": n, "Kdim": k, "splitk": split,
    }  # fmt: skip


@pytest.mark.parametrize("splitk", [0, 1, 3])
@pytest.mark.parametrize("gpu", BF16_GPUS, ids=str)
def test_bf16(kernel_tree: KernelTree, fake_machine: FakeMachine, gpu: Gpu, splitk: int) -> None:
    library = kernel_tree.library("gemm_bf16")
    table = golden.rows(kernel_tree.source, gpu.processor, "gemm_bf16")
    for m, n, k in SHAPES:
        args, results = bf16_call(m, n, k)
        options = golden.bf16_options(table, m, n, k, gpu.compute_units, splitk)
        call = {"splitk": splitk, "kernel": ""}
        if not options:
            with pytest.raises(CallError, match=f"No kernel of .*bf16gemm.*csv fits M={m}, N={n}, K={k}"):
                fake_machine.call(library, "JaxAiterGemmBf16", args, results, call, device=gpu.ordinal)
            continue
        fake_machine.call(library, "JaxAiterGemmBf16", args, results, call, device=gpu.ordinal)
        row, split = golden.best(options, m, n, gpu.compute_units)
        launch, before = launched(fake_machine)
        expect(launch, row, (n // row.tile_n, golden.ceil(m, row.tile_m), split),
               bf16_values(args, results, m, n, k, split))  # fmt: skip
        # Blocks that share a k add to the result.
        zeroed = [(record.to, record.value, record.size) for record in before]
        assert zeroed == ([(results[0].address, 0, m * n * 4)] if split > 1 else [])


def test_bf16_splits_a_square_to_fill_the_gpu(kernel_tree: KernelTree, fake_machine: FakeMachine) -> None:
    args, results = bf16_call(512, 512, 1024)
    mi300 = find_device("gfx942", 304)
    call = {"splitk": 0, "kernel": ""}
    fake_machine.call(kernel_tree.library("gemm_bf16"), "JaxAiterGemmBf16", args, results, call, device=mi300)
    launch, _ = launched(fake_machine)
    assert launch.grid == (8, 8, 4)
    assert "64x64" in launch.kernel


@pytest.mark.parametrize("splitk", [0, 2, 4])
def test_i8(kernel_tree: KernelTree, fake_machine: FakeMachine, splitk: int) -> None:
    library, mi300 = kernel_tree.library("gemm_i8"), find_device("gfx942", 304)
    table = golden.rows(kernel_tree.source, "gfx942", "gemm_i8")
    for m, n, k in [(1, 128, 128), (129, 256, 512), (1000, 4096, 8192), (192, 384, 640)]:
        args, results = i8_call(m, n, k)
        options = golden.i8_options(table, n, k, splitk)
        call = {"splitk": splitk, "kernel": ""}
        if not options:
            with pytest.raises(CallError, match=f"K has no {splitk} parts that are multiples of 128"):
                fake_machine.call(library, "JaxAiterGemmI8", args, results, call, device=mi300)
            continue
        fake_machine.call(library, "JaxAiterGemmI8", args, results, call, device=mi300)
        row, split = golden.best(options, m, n, 304)
        launch, before = launched(fake_machine)
        a, b, a_scale, b_scale, bias = (tensor.address for tensor in args)
        values = {"C": results[0].address, "A": a, "B": b, "SA": a_scale, "SB": b_scale, "BIAS": bias,
                  "M": m, "N": n, "K": k, "PA": k, "PB": k, "PC": n * 2, "KS": split}  # fmt: skip
        expect(launch, row, (n // row.tile_n * split, golden.ceil(m, row.tile_m), 1), values)
        assert [record.size for record in before] == ([m * n * 2] if split > 1 else [])


@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("splitk", [0, 2, 8])
def test_fp4(kernel_tree: KernelTree, fake_machine: FakeMachine, splitk: int, *, shuffled: bool) -> None:
    library, mi350 = kernel_tree.library("gemm_fp4"), find_device("gfx950", 256)
    table = golden.rows(kernel_tree.source, "gfx950", "gemm_fp4")
    for m, n, k in [(32, 1024, 512), (256, 256, 2048), (992, 3840, 8192), (4096, 10240, 4096), (64, 512, 256)]:
        args, results = fp4_call(m, n, k)
        options = golden.fp4_options(table, n, k, splitk, shuffled=shuffled)
        call = {"splitk": splitk, "kernel": "", "bpreshuffle": shuffled}
        if not options:
            with pytest.raises(CallError, match=r"No kernel of .*f4gemm.*csv fits"):
                fake_machine.call(library, "JaxAiterGemmFp4", args, results, call, device=mi350)
            continue
        fake_machine.call(library, "JaxAiterGemmFp4", args, results, call, device=mi350)
        row, split = golden.best(options, m, n, 256)
        launch, before = launched(fake_machine)
        values: dict[str, int | float] = {
            "D": results[0].address, "A": args[0].address, "B": args[1].address, "alpha": 1.0,
            "strideD0": n, "strideC0": n, "strideA0": k, "strideB0": k, "Mdim": m, "Ndim": n, "Kdim": k,
            "ScaleA": args[2].address, "ScaleB": args[3].address,
            "strideScaleA0": args[2].shape[1], "strideScaleB0": args[3].shape[1],
        }  # fmt: skip
        if split > 1:
            values["log2_k_split"] = split.bit_length() - 1
        expect(launch, row, (n // row.tile_n, golden.ceil(m, row.tile_m), split), values)
        assert [record.size for record in before] == ([m * n * 2] if split > 1 else [])


@pytest.mark.parametrize(
    ("m", "name", "tile"), [(16, "x32", 32), (32, "x32", 32), (33, "x128", 128), (4096, "x128", 128)]
)
def test_fp8_mi350(kernel_tree: KernelTree, fake_machine: FakeMachine, m: int, name: str, tile: int) -> None:
    n, k = 512, 1024
    args, results = fp8_call("gemm_fp8_mi350", m, n, k)
    library = kernel_tree.library("gemm_fp8_mi350")
    fake_machine.call(library, "JaxAiterGemmFp8Mi350", args, results, device=find_device("gfx950", 256))
    launch, before = launched(fake_machine)
    x, w, x_scale, w_scale = (tensor.address for tensor in args)
    values = {"O": results[0].address, "X": x, "G": w, "XQ": x_scale, "GQ": w_scale, "dim": k, "hdim": n, "batch": m,
              "eprt": 1, "Xs": k, "GUs": k, "Os": n * 2}  # fmt: skip
    path = kernel_tree.source / "gfx950" / f"f8_block_scale_mi350_{name}.co"
    expect(launch, path, (n // 256, golden.ceil(m, tile), 1), values)
    assert not before


@pytest.mark.parametrize("m", [1, 128, 1000])
def test_flatmm(kernel_tree: KernelTree, fake_machine: FakeMachine, m: int) -> None:
    n, k = 768, 384
    args, results = fp8_call("flatmm_fp8", m, n, k)
    library = kernel_tree.library("flatmm_fp8")
    fake_machine.call(library, "JaxAiterFlatmmFp8", args, results, device=find_device("gfx942", 304))
    launch, _ = launched(fake_machine)
    x, w, x_scale, w_scale = (tensor.address for tensor in args)
    values = {"a_ptr": x, "b_ptr": w, "sa_ptr": x_scale, "sb_ptr": w_scale, "d_f16_ptr": results[0].address,
              "hidden_size": k, "intermediate_size": n, "num_tokens": m}  # fmt: skip
    path = kernel_tree.source / "gfx942" / "flatmm_uk_gfx9_f16f8_128x256x128_1x4x1_16x16x32.co"
    expect(launch, path, (n // 256, golden.ceil(m, 128), 1), values)


def test_named_kernel_is_used(kernel_tree: KernelTree, fake_machine: FakeMachine) -> None:
    mi300 = find_device("gfx942", 304)
    for row in golden.rows(kernel_tree.source, "gfx942", "gemm_bf16"):
        args, results = bf16_call(512, 512, 1024)
        call = {"splitk": 1, "kernel": row.kernel}
        fake_machine.call(kernel_tree.library("gemm_bf16"), "JaxAiterGemmBf16", args, results, call, device=mi300)
        launch, _ = launched(fake_machine)
        assert launch.kernel == row.kernel


def test_empty_operands_launch_nothing(kernel_tree: KernelTree, fake_machine: FakeMachine) -> None:
    args, results = bf16_call(0, 64, 64)
    call = {"splitk": 0, "kernel": ""}
    fake_machine.call(kernel_tree.library("gemm_bf16"), "JaxAiterGemmBf16", args, results, call)
    assert fake_machine.records() == []
