"""FP4 (MXFP4) matrix product with one scale per 32 elements; AITER's kernels are for gfx950.

No derivative.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_aiter import _check, _limits
from jax_aiter._choice import Choice, choose
from jax_aiter._native import contract, dispatch, ffi, int32, together
from jax_aiter._partition import Rule
from jax_aiter._quantised import quantised
from jax_aiter._table import AITER, GEMM_FP4
from jax_aiter._tuned import Product
from jax_aiter.layouts import (
    shuffle_scale,
    shuffle_weight,
    unshuffle_scale,
    unshuffle_weight,
)

__all__ = ["LAYOUT", "gemm_fp4"]

LAYOUT = (16, 16)
"""Layout of `b` for the kernels; argument of jax_aiter.layouts.shuffle_weight."""

_BLOCK = 32
_ROWS = 32
"""Number of rows in the groups that the kernels write as a whole."""
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the eight magnitudes of e2m1 (OCP Microscaling Formats, 5.3.3).

The fourth bit is the sign.
"""
_BIAS = 127


def gemm_fp4(
    a: Array, b: Array, a_scale: Array, b_scale: Array, *, preshuffled: bool = False
) -> Array:
    """Compute (a * a_scale) @ (b * b_scale).T of FP4 numbers, with one scale per 32 elements of K.

    Args:
        a: [M, K/2], uint8: two e2m1 numbers in a byte, the first one in its low half.
        b: [N, K/2], uint8, likewise; K a multiple of 32.
        a_scale: [M, K/32], uint8: e8m0, that is 2**(value - 127); 255 is NaN.
        b_scale: [N, K/32], uint8, likewise.
        preshuffled: whether b has the order of `shuffle_weight(b, LAYOUT)` (N a
            multiple of 16, K of 64) and both scales have that of `shuffle_scale`, which
            pads them. Row-major operands are reordered at every kernel call.

    Returns:
        [M, N], bfloat16.

    Raises:
        ValueError: shapes do not fit.
        TypeError: dtypes do not fit.
        jax_aiter.NotDifferentiableError: the operation was differentiated.
        jax_aiter.BackendError: a forced backend is unavailable, or its kernels do not
            support these shapes: N has to be a multiple of 128, and K of 256.
    """
    rows, columns, depth = _validate(a, b, a_scale, b_scale, preshuffled)
    obstacle = _limits.obstacle(GEMM_FP4, m=rows + -rows % _ROWS, n=columns, k=depth)
    choice = choose(
        "gemm_fp4", obstacles={AITER: obstacle}, product=Product(rows, columns, depth)
    )
    return (shuffled_product if preshuffled else _plain)(
        choice, *together(a, b, a_scale, b_scale)
    )


def _validate(
    a: Any, b: Any, a_scale: Any, b_scale: Any, preshuffled: bool
) -> tuple[int, int, int]:
    operation = "gemm_fp4"
    _check.rank(operation, "a", a, "[M, K/2]")
    _check.rank(operation, "b", b, "[N, K/2]")
    (rows, half), columns = a.shape, b.shape[0]
    _check.equal(operation, "b", b.shape, (columns, half), "[N, K/2]")
    _check.multiple(operation, "K", 2 * half, _BLOCK)
    blocks = 2 * half // _BLOCK
    for name, array, letter, count in (
        ("a_scale", a_scale, "M", rows),
        ("b_scale", b_scale, "N", columns),
    ):
        _check.rank(operation, name, array, f"[{letter}, K/32]")
        if preshuffled:
            padded = (count + -count % 256, blocks + -blocks % 8)
            _check.equal(
                operation,
                name,
                array.shape,
                padded,
                f"[{letter} up to 256, K/32 up to 8]",
            )
        else:
            _check.equal(
                operation, name, array.shape, (count, blocks), f"[{letter}, K/32]"
            )
    for name, array in (("a", a), ("b", b), ("a_scale", a_scale), ("b_scale", b_scale)):
        _check.dtype(operation, name, array, (jnp.uint8,))
    return rows, columns, 2 * half


def dequantise(packed: Array, scale: Array) -> Array:
    """Return the numbers of a packed FP4 array; bfloat16 represents them exactly.

    Args:
        packed: [rows, K/2], uint8.
        scale: [rows, K/32], uint8.

    Returns:
        [rows, K], bfloat16.
    """
    table = jnp.asarray((*_VALUES, *(-value for value in _VALUES)), jnp.bfloat16)
    halves = jnp.stack([packed & 0xF, packed >> 4], axis=-1).reshape(
        packed.shape[0], -1
    )
    powers = jnp.where(
        scale == np.uint8(255), jnp.nan, jnp.exp2(scale.astype(jnp.float32) - _BIAS)
    )
    return table[halves] * jnp.repeat(powers.astype(jnp.bfloat16), _BLOCK, axis=1)


def plain(a: Array, b: Array, a_scale: Array, b_scale: Array) -> Array:
    """Return the product of dequantised row-major factors, [M, N] in float32."""
    return contract(
        "mk,nk->mn", dequantise(a, a_scale), dequantise(b, b_scale), jnp.float32
    )


def scaled(a: Array, b: Array, a_scale: Array, b_scale: Array) -> Array:
    """Return the same product by XLA's product of scaled numbers, which jax has since 0.9."""

    def numbers(packed: Array) -> Array:
        halves = jax.lax.bitcast_convert_type(packed, jnp.float4_e2m1fn)
        return halves.reshape(packed.shape[0], -1)

    def powers(scale: Array) -> Array:
        return jax.lax.bitcast_convert_type(scale, jnp.float8_e8m0fnu)

    factors = map(numbers, (a, b))
    scales = {"lhs_scale": powers(a_scale), "rhs_scale": powers(b_scale)}
    dims = (((1,), (1,)), ((), ()))
    out: Array = jax.lax.scaled_dot(
        *factors, **scales, dimension_numbers=dims, preferred_element_type=jnp.float32
    )
    return out


def _product(*operands: Array) -> Array:
    if not hasattr(jax.lax, "scaled_dot"):
        return plain(*operands)
    out: Array = jax.lax.platform_dependent(*operands, cpu=plain, default=scaled)
    return out


def _lowered(choice: Choice, shuffled: bool, *operands: Array) -> Array:
    def reference(a: Array, b: Array, a_scale: Array, b_scale: Array) -> Array:
        if shuffled:
            blocks = 2 * a.shape[1] // _BLOCK
            a_scale = unshuffle_scale(a_scale, a.shape[0], blocks)
            b_scale = unshuffle_scale(b_scale, b.shape[0], blocks)
            b = unshuffle_weight(b, LAYOUT)
        return _product(a, b, a_scale, b_scale).astype(jnp.bfloat16)

    def kernel(a: Array, b: Array, a_scale: Array, b_scale: Array) -> Array:
        if not shuffled:
            b = shuffle_weight(b, LAYOUT)
            a_scale = shuffle_scale(a_scale)
            b_scale = shuffle_scale(b_scale)
        rows = a.shape[0]
        whole = jnp.pad(a, ((0, -rows % _ROWS), (0, 0)))
        result = ((whole.shape[0], b.shape[0]), jnp.bfloat16)
        tuned, splitk = choice.tuned(rows, b.shape[0], 2 * b.shape[1])
        call = ffi(
            GEMM_FP4, [result], splitk=int32(splitk), kernel=tuned, bpreshuffle=True
        )
        return call(whole, b, a_scale, b_scale)[0][:rows]

    result: Array = dispatch(choice, kernel, reference, *operands)
    return result


_DIMS = "m k, n k, m blocks, n blocks -> m n"
_RULE = Rule.parse(_DIMS, m=1, n=128)
# Shuffled scales are padded to groups of 256 rows, which a part must not share with
# another one.
_SHUFFLED_RULE = Rule.parse("m k, n k, m' blocks, n' blocks -> m n", m=256, n=256)
_plain = quantised(
    "gemm_fp4", lambda choice, *operands: _lowered(choice, False, *operands), _RULE
)
shuffled_product = quantised(
    "gemm_fp4",
    lambda choice, *operands: _lowered(choice, True, *operands),
    _SHUFFLED_RULE,
)
"""Compiled product of a choice and operands in the kernels' order."""
