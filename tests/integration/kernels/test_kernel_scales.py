"""Order in which AITER's fp8 kernels read scales and weights: their code is run with the handlers' arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kernels_fake import golden
from tests.support.kernels_fake.calls import FakeMachine
from tests.support.kernels_fake.gemm_calls import FP8, fp8_call, launch
from tests.support.kernels_fake.scalar import ScalarWave
from tests.support.kernels_fake.trees import KernelTree, find_device

pytestmark = [pytest.mark.network, pytest.mark.heavy]

M_OF = {"gemm_fp8_mi350": {32: "f8_block_scale_mi350_x32", 256: "f8_block_scale_mi350_x128"},
        "flatmm_fp8": {256: "flatmm_uk_gfx9_f16f8_128x256x128_1x4x1_16x16x32"}}  # fmt: skip
"""Module -> rows of a product -> the code object that they get."""
N, K = 1024, 768
ACROSS, STEPS = N // 128, K // 128
SHUFFLED = 16 * 128
"""Bytes of 16 rows of a shuffled weight for one step along K; its tiles follow each other along K, then along N."""


def read_by(path: Path, arguments: bytes, block: int, starts: list[int]) -> list[set[int]]:
    """Return, for each buffer, the byte offsets of a block's loads; blocks have 256 columns."""
    found: list[set[int]] = [set() for _ in starts]
    for address in ScalarWave(path, arguments, (block, 0, 0)).reads():
        which = max(at for at, start in enumerate(starts) if start <= address)
        found[which].add(address - starts[which])
    return found


@pytest.mark.parametrize(("module", "m"), [(module, m) for module, sizes in M_OF.items() for m in sizes])
def test_code_object_reads_scales_in_handler_order(
    kernel_tree: KernelTree, fake_machine: FakeMachine, module: str, m: int
) -> None:
    args, _ = call = fp8_call(module, m, N, K)
    place = ("gfx942", 304) if module == "flatmm_fp8" else ("gfx950", 256)
    library, symbol = kernel_tree.library(module), FP8[module][0]
    found, _ = launch(fake_machine, library, symbol, call, find_device(*place))
    path = kernel_tree.source / place[0] / f"{M_OF[module][m]}.co"
    assert found.sha256 == golden.digest(path)
    rows, columns = args[3].shape
    for block in range(N // 256):
        x, w, x_scale, w_scale = read_by(path, found.arguments, block, [one.address for one in args])
        steps = range(STEPS)
        assert x == {128 * step for step in steps}  # of xq[M,K]
        assert x_scale == {4 * m * step for step in steps}  # of x_scale[K/128,M]
        # A block needs two columns of w_scale: the first one, and the next one in memory or in the next row.
        first = 2 * block
        if (rows, columns) == (ACROSS, STEPS):
            assert module == "gemm_fp8_mi350"
            assert w_scale == {4 * (first * STEPS + step) for step in steps}
        else:
            assert w_scale == {4 * (step * ACROSS + first) for step in steps}
        assert {256 * block * K + SHUFFLED * step for step in steps} <= w
        assert all(256 * block * K <= at < 256 * (block + 1) * K for at in w)


def test_emulator_reads_follow_arguments(kernel_tree: KernelTree) -> None:
    """With N and K exchanged, the matrix has the other shape."""
    path = kernel_tree.source / "gfx950" / "f8_block_scale_mi350_x128.co"
    starts = [0x1000_0000_0000 * number for number in range(1, 5)]
    values: dict[str, int | float] = dict(zip(("X", "G", "XQ", "GQ"), starts, strict=True))
    values |= {"dim": N, "hdim": K, "batch": 256, "eprt": 1, "Xs": N, "GUs": N, "Os": K * 2}
    *_, w_scale = read_by(path, golden.packed(path, values), 1, starts)
    assert w_scale == {4 * (2 * ACROSS + step) for step in range(ACROSS)}
