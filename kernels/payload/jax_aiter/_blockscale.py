"""Checks and reference implementation of the FP8 products with one scale per block of 128."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from jax_aiter import _check

BLOCK = 128


def validate(operation: str, xq: Array, wq: Array, x_scale: Array, w_scale: Array) -> None:
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
    """Return the product of the dequantised row-major factors, [M, N] in float32."""
    x = xq.astype(jnp.float32) * jnp.repeat(x_scale.T, BLOCK, axis=1)
    blocks = jnp.repeat(jnp.repeat(w_scale.T, BLOCK, axis=0), BLOCK, axis=1)
    w = wq.astype(jnp.float32) * blocks
    return jnp.einsum("mk,nk->mn", x, w, precision=jax.lax.Precision.HIGHEST)
