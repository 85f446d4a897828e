"""AITER's kernels for a mixture of experts: their limits, and their calls."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from jax_aiter import _limits
from jax_aiter._choice import wanted_targets
from jax_aiter._native import empty, ffi, int32, rowwise
from jax_aiter._table import FMOE, TOPK_SOFTMAX
from jax_aiter.flatmm_fp8 import as_fnuz
from jax_aiter.moe._grouped import most_blocks, sort_tokens

_ROWS = 32
"""Rows of a block."""


def router_obstacle(logits: Array, topk: int, rows: int) -> str:
    """Return the reason why AITER's router does not accept a number of tokens; empty if it does."""
    return _limits.obstacle(TOPK_SOFTMAX, m=rows, experts=logits.shape[-1], topk=topk, dtype=logits.dtype.name)


def router(logits: Array, topk: int, renormalize: bool) -> tuple[Array, ...]:
    """Return weights and expert numbers, [M, K]; vmap adds tokens."""

    def call(rows: int) -> Any:
        results = [((rows, topk), jnp.float32), ((rows, topk), jnp.int32)]
        return ffi(TOPK_SOFTMAX, results, renormalize=renormalize)

    # The kernels take exp(logits) as they are; without the largest one, no exponential overflows.
    below = logits - jnp.max(logits, axis=1, keepdims=True)
    return rowwise(call, (True,), lambda rows: not router_obstacle(logits, topk, rows))(below)


def experts_obstacle(x: Array, w1: Array, w2: Array, topk: int, out: str) -> str:
    """Return the reason why AITER's kernels do not accept these experts; empty if they do."""
    (tokens, depth), (experts, rows, _) = x.shape, w1.shape
    return _limits.obstacle(
        FMOE,
        m=tokens,
        topk=topk,
        depth=depth,
        inner=w2.shape[2],
        gated=rows != w2.shape[2],
        dtype=w1.dtype.name,
        quantised=w1.dtype.itemsize == 1,
        out=out,
        gfx={target.partition(":")[0] for target in wanted_targets()[0]},
        blocks=most_blocks(tokens * topk, experts, _ROWS),
    )


def experts(x: Array, w1: Array, w2: Array, weights: Array, ids: Array, *scales: Array, activation: str) -> Array:
    """Return the weighted sum of the experts, [M, D].

    Args:
        x: [M, D].
        w1: [E, N, D], in the kernels' order.
        w2: [E, D, I], in the kernels' order.
        weights: [M, K], float32.
        ids: [M, K], expert numbers.
        scales: for quantised numbers, those of x [M, 1], w1 [E, N] and w2 [E, D].
        activation: name of the activation.
    """
    tokens, topk = ids.shape
    groups = sort_tokens(ids, w1.shape[0], _ROWS)
    slots = jnp.arange(topk, dtype=jnp.int32) << 24
    numbers = jnp.arange(tokens, dtype=jnp.int32)[:, None] | slots
    rows = groups.spread(numbers, tokens | topk << 24)
    valid = jnp.stack([groups.valid, jnp.full_like(groups.valid, tokens)])
    if w1.dtype == jnp.float8_e4m3fn and {target.partition(":")[0] for target in wanted_targets()[0]} == {"gfx942"}:
        (x, x_scale), (w1, w1_scale), (w2, w2_scale) = map(as_fnuz, (x, w1, w2), scales)
        scales = x_scale, w1_scale, w2_scale
    made = scales or (empty(jnp.float32),) * 3
    call = ffi(FMOE, [(x.shape, jnp.bfloat16)], topk=int32(topk), gelu=activation == "gelu")
    result: Array = call(x, w1, w2, rows, groups.spread(weights, 0), groups.experts, valid, *made)[0]
    return result
