"""AITER's code objects, interpreted with the arguments that the handlers pack, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels.tests.support.fake.interpreted import call, from_bf16, to_bf16
from kernels.tests.support.fake.trees import KernelTree
from kernels.tests.support.isa.matrix_ops import fp8_numbers

pytestmark = pytest.mark.network

Array = Any


@pytest.mark.parametrize(
    ("m", "n", "k", "split"),
    [
        (40, 64, 128, 1),
        (33, 128, 256, 2),
    ],
)
def test_gemm_bf16_matches_float64(
    kernel_tree: KernelTree,
    m: int,
    n: int,
    k: int,
    split: int,
) -> None:
    random = np.random.default_rng(m)
    a = to_bf16(random.standard_normal((m, k)))
    b = to_bf16(random.standard_normal((n, k)))
    found, _ = call(
        kernel_tree,
        "gemm_bf16",
        [
            ("bf16", a),
            ("bf16", b),
            ("f32", np.zeros((0,), np.float32)),
        ],
        [
            ("f32", (m, n)),
            ("u32", (1024,)),
        ],
        {"splitk": split, "kernel": "_ZN5aiter28bf16gemm_outf32_tn_32x64_pf3E"},
        seed=split,
    )
    assert np.abs(found - from_bf16(a) @ from_bf16(b).T).max() < 1e-6 * k


def attention(
    q: Array,
    k: Array,
    v: Array,
    scale: float,
    *,
    causal: bool,
) -> tuple[Array, Array]:
    """Return attention and its log-sum-exp in float64: [b, q, h, d] and [b, h, q]."""
    group = q.shape[2] // k.shape[2]
    k, v = (
        np.repeat(
            from_bf16(one),
            group,
            axis=2,
        )
        for one in (k, v)
    )
    scores = np.einsum("bqhd,bkhd->bhqk", from_bf16(q), k) * scale
    if causal:
        queries, keys = scores.shape[2:]
        scores = np.where(
            np.arange(keys) <= np.arange(queries)[:, None] + keys - queries,
            scores,
            -np.inf,
        )
    most = scores.max(-1, keepdims=True)
    weights = np.exp(scores - most)
    total = weights.sum(-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", weights / total, v), (most + np.log(total))[
        ..., 0
    ]


@pytest.mark.parametrize(
    ("causal", "queries", "keys", "heads", "key_heads"),
    [
        (False, 70, 100, 2, 1),
        (True, 90, 130, 1, 1),
    ],
)
def test_attention_and_natural_lse_match_float64(
    kernel_tree: KernelTree,
    causal: bool,
    queries: int,
    keys: int,
    heads: int,
    key_heads: int,
) -> None:
    """The log-sum-exp is natural, of the scaled scores: log(sum(exp(scale * q k)))."""
    random = np.random.default_rng(queries)
    shapes = (queries, heads), (keys, key_heads), (keys, key_heads)
    q, k, v = (to_bf16(random.standard_normal((1, *shape, 128))) for shape in shapes)
    none = ("s32", np.zeros((0,), np.int32))
    out, lse = call(
        kernel_tree,
        "mha_fwd_asm",
        [("bf16", q), ("bf16", k), ("bf16", v), none, none],
        [
            ("bf16", q.shape),
            ("f32", (1, heads, queries)),
        ],
        {"scale": 0.125, "causal": causal},
    )
    wanted, wanted_lse = attention(
        q,
        k,
        v,
        0.125,
        causal=causal,
    )
    # The weights are rounded to bfloat16, half away from zero, before they are
    # multiplied with v.
    assert np.abs(from_bf16(out) - wanted).max() < 2.0**-8 * np.abs(wanted).max()
    assert np.abs(lse - wanted_lse).max() < 1e-5


def shuffled(
    weight: Array,
    rows: int,
    columns: int,
) -> Array:
    """Reorder a weight into tiles of these rows and bytes, in pieces of 16 bytes of each row."""
    n, k = weight.shape
    tiles = weight.reshape(n // rows, rows, k // columns, columns // 16, 16)
    return np.ascontiguousarray(tiles.transpose(0, 2, 3, 1, 4)).reshape(n, k)


@pytest.mark.parametrize("split", [1, 2])
def test_gemm_i8_matches_float64(kernel_tree: KernelTree, split: int) -> None:
    """AITER's kernel relies on wavefronts that run side by side."""
    m = 70
    n = 128
    k = 256
    random = np.random.default_rng(0)
    a, b = (random.integers(-127, 128, shape, np.int8) for shape in ((m, k), (n, k)))
    a_scale, b_scale, bias = (
        random.uniform(0.5, 2, shape).astype(np.float32)
        for shape in ((m, 1), (1, n), (n,))
    )
    (found,) = call(
        kernel_tree,
        "gemm_i8",
        [
            ("s8", a),
            ("s8", shuffled(b, 32, 32)),
            ("f32", a_scale),
            ("f32", b_scale),
            ("f32", bias),
        ],
        [("bf16", (m, n))],
        {
            "splitk": split,
            "kernel": "_ZN5aiter42I8gemm_bf16_perTokenI8_BpreShuffle_128x128E",
        },
        lockstep=True,
    )
    halves = (
        [
            *np.split(
                one.astype(np.float64),
                split,
                axis=1,
            )
        ]
        for one in (a, b)
    )
    parts = (
        np.stack([one @ other.T for one, other in zip(*halves, strict=True)])
        * a_scale
        * b_scale
    )
    wanted = parts.sum(0) + bias
    # The parts and their sum are rounded to bfloat16.
    assert (
        np.abs(from_bf16(found) - wanted)
        < 2.0**-7.9 * (np.abs(parts).sum(0) + np.abs(wanted)) + 2
    ).all()


@pytest.mark.parametrize("m", [32, 130])
@pytest.mark.parametrize("module", ["gemm_fp8_mi350", "flatmm_fp8"])
def test_scaled_fp8_products_match_float64(
    kernel_tree: KernelTree,
    module: str,
    m: int,
) -> None:
    """Every block has another scale, so that a scale in the wrong place changes the product."""
    n = 256
    k = 768
    mi350 = module == "gemm_fp8_mi350"
    random = np.random.default_rng(m)
    x, w = (
        (random.integers(0x28, 0x48, shape) | random.integers(0, 2, shape) << 7).astype(
            np.uint8
        )
        for shape in ((m, k), (n, k))
    )
    x_scale = random.uniform(0.5, 2, (k // 128, m)).astype(np.float32)
    w_scale = random.uniform(0.5, 2, (n // 128, k // 128)).astype(np.float32)
    dtype = "f8e4m3fn" if mi350 else "f8e4m3fnuz"
    # The kernels of gfx950 do not wait for their last loads to shared memory before
    # they use it for results: they rely on wavefronts that run side by side. The kernel
    # of gfx942 loads scales of up to three steps beyond the last.
    loose: dict[str, Any] = (
        {"gpu": ("gfx950", 256), "lockstep": True} if mi350 else {"margin": 12 * m}
    )
    (found,) = call(
        kernel_tree,
        module,
        [
            (dtype, x),
            (dtype, shuffled(w, 16, 32 if mi350 else 64)),
            ("f32", x_scale),
            ("f32", w_scale if mi350 else np.ascontiguousarray(w_scale.T)),
        ],
        [("bf16" if mi350 else "f16", (m, n))],
        **loose,
    )
    numbers = fp8_numbers(7 if mi350 else 8)
    scaled_w = numbers[w] * np.repeat(
        np.repeat(
            w_scale,
            128,
            axis=0,
        ),
        128,
        axis=1,
    )
    wanted = (
        numbers[x]
        * np.repeat(
            x_scale,
            128,
            axis=0,
        ).T
    ) @ scaled_w.T
    found = from_bf16(found) if mi350 else found.astype(np.float64)
    assert (
        np.abs(found - wanted).max()
        < (2.0**-8 if mi350 else 2.0**-10) * np.abs(wanted).max()
    )
