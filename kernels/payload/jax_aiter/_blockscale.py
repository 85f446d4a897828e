"""Checks and reference implementation of the FP8 products with one scale per block of 128."""

from __future__ import annotations

from functools import partial
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
    operation: str,
    xq: Array,
    wq: Array,
    x_scale: Array,
    w_scale: Array,
) -> None:
    """Check the shapes of all operands and the dtype of the scales.

    Raises:
        ValueError: shapes do not fit.
        TypeError: a scale is not float32.
    """
    _check.rank(operation, "xq", xq, "[M, K]")
    _check.rank(operation, "wq", wq, "[N, K]")
    (rows, depth), columns = xq.shape, wq.shape[0]
    _check.shape(operation, "wq", wq, "[N, K]", (columns, depth))
    _check.multiple(operation, "K", depth, BLOCK)
    _check.multiple(operation, "N", columns, BLOCK)
    blocks = depth // BLOCK
    for name, array, text, sizes in (
        ("x_scale", x_scale, "[K/128, M]", (blocks, rows)),
        ("w_scale", w_scale, "[K/128, N/128]", (blocks, columns // BLOCK)),
    ):
        _check.shape(operation, name, array, text, sizes)
        _check.dtype(operation, name, array, (jnp.float32,))


def product(
    xq: Array,
    wq: Array,
    x_scale: Array,
    w_scale: Array,
) -> Array:
    """Return the product of the quantised row-major factors, [M, N] in float32.

    Each block of K is a product of the quantised numbers, summed in float32, and its
    sums are scaled. XLA has no product with float32 scales: those of
    `jax.lax.scaled_dot` are rounded to bfloat16.
    """
    (rows, depth), columns = xq.shape, wq.shape[0]
    blocks = depth // BLOCK

    def small(count: int) -> bool:
        return blocks % count == 0 and bool(rows * columns * count <= _SUMS)

    # Number of blocks at a time, so that their sums stay small.
    some = blocks
    while some > 1 and not _check.proven(partial(small, some)):
        some -= 1

    def add(step: Any, out: Array) -> Array:
        def part(
            array: Array,
            axis: int,
            size: int,
        ) -> Array:
            if some == blocks:
                return array
            return jax.lax.dynamic_slice_in_dim(array, step * size, size, axis)

        def split(factor: Array) -> Array:
            own = part(factor, 1, some * BLOCK)
            return own.reshape(factor.shape[0], some, BLOCK)

        sums = contract("mbk,nbk->bmn", split(xq), split(wq), jnp.float32)
        by_row = part(x_scale, 0, some)[:, :, None]
        by_column = jnp.repeat(part(w_scale, 0, some), BLOCK, axis=1)[:, None, :]
        return out + jnp.sum(sums * by_row * by_column, axis=0)

    zeros = vary(jnp.zeros((rows, columns), jnp.float32), varying(xq))
    if some == blocks:
        return add(0, zeros)
    return jax.lax.fori_loop(0, blocks // some, add, zeros)
