"""Checks and reference implementation of the FP8 products with one scale per block of 128."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_aiter import _check
from jax_aiter._native import contract, vary, varying

BLOCK = 128
_SUMS = 1 << 24
"""Number of sums of blocks in float32 that are kept at a time: 64 MiB."""


def validate(
    operation: str, xq: Array, wq: Array, x_scale: Array, w_scale: Array
) -> None:
    """Check the shapes of all operands and the dtype of the scales.

    Raises:
        ValueError: shapes do not fit.
        TypeError: a scale is not float32.
    """
    _check.rank(operation, "xq", xq, "[M, K]")
    _check.rank(operation, "wq", wq, "[N, K]")
    (rows, depth), columns = xq.shape, wq.shape[0]
    _check.equal(operation, "wq", wq.shape, (columns, depth), "[N, K]")
    _check.multiple(operation, "K", depth, BLOCK)
    _check.multiple(operation, "N", columns, BLOCK)
    for name, array, shape, expected in (
        ("x_scale", x_scale, "[K/128, M]", (depth // BLOCK, rows)),
        ("w_scale", w_scale, "[K/128, N/128]", (depth // BLOCK, columns // BLOCK)),
    ):
        _check.rank(operation, name, array, shape)
        _check.equal(operation, name, array.shape, expected, shape)
        _check.dtype(operation, name, array, (jnp.float32,))


def product(xq: Array, wq: Array, x_scale: Array, w_scale: Array) -> Array:
    """Return the product of the quantised row-major factors, [M, N] in float32.

    Each block of K is a product of the quantised numbers, summed in float32, and its
    sums are scaled. XLA has no product with float32 scales: those of
    `jax.lax.scaled_dot` are rounded to bfloat16.
    """
    (rows, depth), columns = xq.shape, wq.shape[0]
    blocks = depth // BLOCK
    # Number of blocks at a time, so that their sums stay small.
    some = max(
        n
        for n in range(1, blocks + 1)
        if blocks % n == 0 and (n == 1 or n * rows * columns <= _SUMS)
    )

    def add(step: Any, out: Array) -> Array:
        def part(array: Array, axis: int, size: int) -> Array:
            return (
                jax.lax.dynamic_slice_in_dim(array, step * size, size, axis)
                if some < blocks
                else array
            )

        x, w = (part(q, 1, some * BLOCK).reshape(len(q), some, BLOCK) for q in (xq, wq))
        sums = contract("mbk,nbk->bmn", x, w, jnp.float32)
        by_row = part(x_scale, 0, some)
        by_column = jnp.repeat(part(w_scale, 0, some), BLOCK, axis=1)
        return out + jnp.sum(sums * by_row[:, :, None] * by_column[:, None, :], axis=0)

    zeros = vary(jnp.zeros((rows, columns), jnp.float32), varying(xq))
    out: Array = (
        add(0, zeros)
        if some == blocks
        else jax.lax.fori_loop(0, blocks // some, add, zeros)
    )
    return out
