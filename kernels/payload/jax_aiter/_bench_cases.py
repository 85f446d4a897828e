"""Operands and programs that `python -m jax_aiter bench` measures for each operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_aiter import flatmm_fp8, gemm, gemm_fp4, gemm_fp8, gemm_i8
from jax_aiter._choice import Choice
from jax_aiter.activation import silu_and_mul, swiglu
from jax_aiter.layouts import shuffle_scale, shuffle_weight
from jax_aiter.mha import flash_attn_func
from jax_aiter.mla import mla_decode
from jax_aiter.moe import fused_moe, topk_softmax
from jax_aiter.paged_attention import page_keys, page_values, paged_attention
from jax_aiter.rmsnorm import rms_norm, rms_norm_with_add
from jax_aiter.rope import rope

PRODUCT = ("M", "N", "K")
_ROWS, _TOKENS = ("rows", "n"), ("batch", "S", "H", "D")
_PAGED = ("sequences", "tokens", "heads", "key_heads", "depth")
_LATENT = ("sequences", "queries", "tokens", "heads", "page", "D", "pages")
_PAGE = 16
_ATTENTION = ("batch", "queries", "keys", "heads", "key_heads", "depth")
_ROUTER, _EXPERTS = ("tokens", "experts", "topk"), ("tokens", "D", "I", "experts", "topk")
NAMED = frozenset({"topk_softmax", "fused_moe"})
"""Operations that are measured only if they are named: others have as many sizes."""


@dataclass(frozen=True, slots=True)
class Case:
    """One program of an operation.

    Attributes:
        sizes: names of the sizes.
        operands: function that returns the operands for these sizes.
        run: of a product: function of a choice and the operands; else function of the operands.
        splits: parts of K to try of a product.
        out: dtype of a product's result, as in `Problem`; else what distinguishes the cases of an operation.
        error: largest difference of a kernel's result from XLA's, relative to the largest number of the result.
    """

    sizes: tuple[str, ...]
    operands: Callable[..., tuple[Array, ...]]
    run: Callable[..., Any]
    splits: tuple[int, ...] = ()
    out: str = ""
    error: float = 0.02


def _random(seed: int, shape: tuple[int, ...], dtype: Any = jnp.bfloat16) -> Array:
    numbers = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return jnp.asarray(numbers).astype(dtype)


def _bytes(seed: int, shape: tuple[int, ...], low: int, high: int, dtype: Any) -> Array:
    return jnp.asarray(np.random.default_rng(seed).integers(low, high, shape, dtype))


def _for_gemm(m: int, n: int, k: int) -> tuple[Array, ...]:
    return _random(1, (m, k)), _random(2, (n, k))


def _for_i8(m: int, n: int, k: int) -> tuple[Array, ...]:
    scales = (abs(_random(3, (m, 1), jnp.float32)), abs(_random(4, (1, n), jnp.float32)))
    factors = (_bytes(1, (m, k), -128, 128, np.int8), _bytes(2, (n, k), -128, 128, np.int8))
    return *factors, *scales, _random(5, (n,), jnp.float32)


def _for_fp4(m: int, n: int, k: int) -> tuple[Array, ...]:
    factors = [_bytes(seed, (rows, k // 2), 0, 256, np.uint8) for seed, rows in ((1, m), (2, n))]
    scales = [_bytes(seed, (rows, k // 32), 120, 130, np.uint8) for seed, rows in ((3, m), (4, n))]
    # Reordered as a weight is once, so that its reordering is not measured.
    weight = shuffle_weight(factors[1], gemm_fp4.LAYOUT)
    return factors[0], weight, *(shuffle_scale(scale) for scale in scales)


def _for_blocks(m: int, n: int, k: int) -> tuple[Array, ...]:
    # Random numbers in any order are in the kernels' order too.
    factors = (_random(1, (m, k), jnp.float8_e4m3fn), _random(2, (n, k), jnp.float8_e4m3fn))
    scales = (_random(3, (k // 128, m), jnp.float32), _random(4, (k // 128, n // 128), jnp.float32))
    return *factors, *map(abs, scales)


def _for_rope(batch: int, tokens: int, heads: int, depth: int) -> tuple[Array, ...]:
    angles = [_random(seed, (tokens, depth // 2), jnp.float32) for seed in (2, 3)]
    return _random(1, (batch, tokens, heads, depth)), *angles


def _for_attention(batch: int, queries: int, keys: int, heads: int, key_heads: int, depth: int) -> tuple[Array, ...]:
    shapes = [(batch, queries, heads, depth), *[(batch, keys, key_heads, depth)] * 2]
    return tuple(_random(seed, shape) for seed, shape in enumerate(shapes))


def _tables(sequences: int, tokens: int, page: int) -> tuple[int, Array, Array]:
    # Number of pages, the pages of each sequence, and lengths.
    count = -(-tokens // page)
    tables = jnp.arange(sequences * count, dtype=jnp.int32).reshape(sequences, count)
    return sequences * count, tables, jnp.full((sequences,), tokens, jnp.int32)


def _for_pages(sequences: int, tokens: int, heads: int, key_heads: int, depth: int) -> tuple[Array, ...]:
    pages, *tables = _tables(sequences, tokens, _PAGE)
    keys, values = (_random(seed, (pages, _PAGE, key_heads, depth)) for seed in (2, 3))
    return _random(1, (sequences, heads, depth)), page_keys(keys), page_values(values), *tables


def _for_latent(
    sequences: int, queries: int, tokens: int, heads: int, page: int, depth: int, pages: int
) -> tuple[Array, ...]:
    _, tables, lengths = _tables(sequences, tokens, page)
    cache = _random(2, (pages, page, depth))
    return _random(1, (sequences, queries, heads, depth)), cache, tables % pages, lengths


def _for_router(tokens: int, experts: int, topk: int) -> tuple[Array, ...]:
    # Logits of a token are far enough from each other to have one order. Of the second operand, only the size counts.
    order = np.random.default_rng(1).permuted(np.tile(np.arange(experts, dtype=np.float32), (tokens, 1)), axis=1)
    return jnp.asarray(order / 16), jnp.zeros((topk,))


def _route(logits: Array, slots: Array) -> tuple[Array, Array]:
    return topk_softmax(logits, slots.size, renormalize=True)


def _tokens_for_experts(tokens: int, depth: int, experts: int, topk: int) -> tuple[Array, Array, Array]:
    ids = _bytes(4, (tokens, topk), 0, experts, np.int32)
    return _random(1, (tokens, depth)), jnp.full((tokens, topk), 1 / topk, jnp.float32), ids


def _for_experts(tokens: int, depth: int, inner: int, experts: int, topk: int) -> tuple[Array, ...]:
    # Random weights in any order are in the kernels' order too.
    w1, w2 = (_random(seed, shape) / 8 for seed, shape in ((2, (experts, inner, depth)), (3, (experts, depth, inner))))
    x, *routed = _tokens_for_experts(tokens, depth, experts, topk)
    return x, w1, w2, *routed


def _for_quantised_experts(dtype: str) -> Callable[..., tuple[Array, ...]]:
    def operands(tokens: int, depth: int, inner: int, experts: int, topk: int) -> tuple[Array, ...]:
        x, *routed = _tokens_for_experts(tokens, depth, experts, topk)
        shapes = (experts, 2 * inner, depth), (experts, depth, inner)
        weights = (_bytes(seed, shape, -99, 100, np.int8).astype(dtype) for seed, shape in enumerate(shapes))
        return x, *weights, *routed, *(jnp.full(shape[:2], 1 / 512, jnp.float32) for shape in shapes)

    return operands


def _experts(*, shuffled: bool) -> Callable[..., Array]:
    def run(*operands: Array) -> Array:
        scales = dict(zip(("w1_scale", "w2_scale"), operands[5:], strict=False))
        return fused_moe(*operands[:5], **scales, preshuffled=shuffled)

    return run


def _cases_of_experts() -> tuple[Case, ...]:
    # The kernels of quantised weights also quantise the numbers between both products, int8 towards zero.
    makers = [("bfloat16", _for_experts, 0.02)]
    makers += [(name, _for_quantised_experts(name), 0.05) for name in ("int8", "float8_e4m3fn", "float8_e4m3fnuz")]
    return tuple(
        Case(_EXPERTS, operands, _experts(shuffled=one), out=f"{name}{', preshuffled' * one}", error=error)
        for name, operands, error in makers
        for one in (True, False)
    )


def _gemm(dtype: Any) -> Callable[..., Array]:
    def run(choice: Choice, a: Array, b: Array) -> Array:
        return gemm.jit_product(a, b, None, jnp.dtype(dtype), choice, gemm.written(jnp.dtype(dtype), None))

    return run


def _attention(*, causal: bool) -> Callable[..., Any]:
    return lambda q, k, v: flash_attn_func(q, k, v, causal=causal)


def _gradients(*, causal: bool) -> Callable[..., Any]:
    def run(*operands: Array) -> tuple[Array, ...]:
        out, pull = jax.vjp(_attention(causal=causal), *operands)
        return tuple(pull(out))

    return run


_SPLITS = (1, 2, 4, 5, 8, 10, 16)
CASES: Mapping[str, tuple[Case, ...]] = MappingProxyType(
    {
        "gemm": tuple(Case(PRODUCT, _for_gemm, _gemm(dtype), _SPLITS, dtype) for dtype in ("bfloat16", "float32")),
        "gemm_i8": (Case(PRODUCT, _for_i8, gemm_i8.shuffled_product, (1, 2, 3, 4, 6, 8, 16)),),
        "gemm_fp4": (Case(PRODUCT, _for_fp4, gemm_fp4.shuffled_product, (1, 2, 4)),),
        "gemm_fp8_mi350": (Case(PRODUCT, _for_blocks, gemm_fp8.shuffled_product, (0,)),),
        "flatmm_fp8": (Case(PRODUCT, _for_blocks, flatmm_fp8.shuffled_product, (0,)),),
        "rms_norm": (Case(_ROWS, lambda rows, n: (_random(1, (rows, n)), _random(2, (n,))), rms_norm),),
        "rms_norm_with_add": (
            Case(
                _ROWS,
                lambda rows, n: (_random(1, (rows, n)), _random(2, (rows, n)), _random(3, (n,))),
                rms_norm_with_add,
            ),
        ),
        "silu_and_mul": (Case(_ROWS, lambda rows, n: (_random(1, (rows, 2 * n)),), silu_and_mul),),
        "swiglu": (Case(_ROWS, lambda rows, n: (_random(1, (rows, n)), _random(2, (rows, n))), swiglu),),
        "rope": (Case(_TOKENS, _for_rope, rope),),
        "topk_softmax": (Case(_ROUTER, _for_router, _route),),
        "fused_moe": _cases_of_experts(),
        "paged_attention": (Case(_PAGED, _for_pages, paged_attention),),
        "mla_decode": (Case(_LATENT, _for_latent, mla_decode),),
        "flash_attn": tuple(Case(_ATTENTION, _for_attention, _attention(causal=one)) for one in (False, True)),
        "flash_attn_bwd": tuple(Case(_ATTENTION, _for_attention, _gradients(causal=one)) for one in (False, True)),
    }
)
"""Operation -> programs that are measured, in bfloat16 except for quantised products."""
