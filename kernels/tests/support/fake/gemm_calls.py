"""Calls of the GEMM handlers, and FakeHip's records of a call."""

from __future__ import annotations

from kernels.tests.support.fake import golden
from kernels.tests.support.fake.calls import LAUNCH, MEMSET, Record, Tensor, tensors
from kernels.tests.support.fake.trees import GPUS, TreeLibrary

Call = tuple[list[Tensor], list[Tensor]]
"""Arguments and results."""
BF16_GPUS = [gpu for gpu in GPUS if gpu.processor in ("gfx942", "gfx950")]


def bf16_call(
    m: int,
    n: int,
    k: int,
    out: str = "f32",
    bias: int = 0,
) -> Call:
    made = tensors(
        ("bf16", (m, k)),
        ("bf16", (n, k)),
        ("f32", (bias,)),
        (out, (m, n)),
        ("u32", (1024,)),
    )
    return made[:3], made[3:]


def i8_call(
    m: int,
    n: int,
    k: int,
) -> Call:
    made = tensors(
        ("s8", (m, k)),
        ("s8", (n, k)),
        ("f32", (m, 1)),
        ("f32", (1, n)),
        ("f32", (n,)),
        ("bf16", (m, n)),
    )
    return made[:5], made[5:]


def fp4_call(
    m: int,
    n: int,
    k: int,
) -> Call:
    scales = golden.ceil(k // 32, 8) * 8
    made = tensors(
        ("u8", (m, k // 2)),
        ("u8", (n, k // 2)),
        ("u8", (golden.ceil(m, 256) * 256, scales)),
        ("u8", (golden.ceil(n, 256) * 256, scales)),
        ("bf16", (m, n)),
    )
    return made[:4], made[4:]


FP8 = {"gemm_fp8_mi350": ("f8e4m3fn", "bf16"), "flatmm_fp8": ("f8e4m3fnuz", "f16")}
"""Module -> dtypes of its operands and of its result."""


def fp8_call(
    module: str,
    m: int,
    n: int,
    k: int,
) -> Call:
    dtype, out = FP8[module]
    blocks = (k // 128, n // 128)
    if module == "gemm_fp8_mi350":
        blocks = (n // 128, k // 128)
    made = tensors(
        (dtype, (m, k)),
        (dtype, (n, k)),
        ("f32", (k // 128, m)),
        ("f32", blocks),
        (out, (m, n)),
    )
    return made[:4], made[4:]


def launch(
    library: TreeLibrary,
    call: Call,
    device: int = 0,
    splitk: int = 0,
    kernel: str = "",
    **more: object,
) -> tuple[Record, list[Record]]:
    """Call a GEMM handler.

    Return its launch, which is the last record, and the memsets before it.
    """
    *before, last = library.call(
        *call,
        {"splitk": splitk, "kernel": kernel, **more},
        device=device,
    )
    assert last.what == LAUNCH
    assert {record.what for record in before} <= {MEMSET}
    assert {record.device for record in before} <= {last.device}
    assert last.block == (256, 1, 1)
    assert last.shared == 0
    return last, before
