"""FP4 (MXFP4) matrix product with one scale per 32 elements; AITER's kernels are for gfx950.

No derivative.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_aiter import _check
from jax_aiter._choice import Choice
from jax_aiter._native import Arrays, contract, ffi, int32
from jax_aiter._partition import Rule
from jax_aiter._quantised import Order, quantised
from jax_aiter._table import GEMM_FP4
from jax_aiter.layouts import (
    padded_scale,
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
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    *,
    preshuffled: bool = False,
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
    _validate(a, b, a_scale, b_scale, preshuffled)
    return _product(
        preshuffled,
        2 * a.shape[1],
        a,
        b,
        a_scale,
        b_scale,
    )


def _validate(
    a: Any,
    b: Any,
    a_scale: Any,
    b_scale: Any,
    preshuffled: bool,
) -> None:
    operation = "gemm_fp4"
    _check.static(operation, preshuffled=preshuffled)
    _check.rank(operation, "a", a, "[M, K/2]")
    _check.rank(operation, "b", b, "[N, K/2]")
    (rows, half), columns = a.shape, b.shape[0]
    _check.shape(operation, "b", b, "[N, K/2]", (columns, half))
    _check.multiple(operation, "K", 2 * half, _BLOCK)
    blocks = 2 * half // _BLOCK
    for name, array, letter, count in (
        ("a_scale", a_scale, "M", rows),
        ("b_scale", b_scale, "N", columns),
    ):
        text = f"[{letter}, K/32]"
        sizes = (count, blocks)
        if preshuffled:
            text = f"[{letter} up to 256, K/32 up to 8]"
            sizes = padded_scale(count, blocks)
        _check.shape(operation, name, array, text, sizes)
    for name, array in (("a", a), ("b", b), ("a_scale", a_scale), ("b_scale", b_scale)):
        _check.dtype(operation, name, array, (jnp.uint8,))


def dequantise(packed: Array, scale: Array) -> Array:
    """Return the numbers of a packed FP4 array; bfloat16 represents them exactly.

    Args:
        packed: [rows, K/2], uint8.
        scale: [rows, K/32], uint8.

    Returns:
        [rows, K], bfloat16.
    """
    negative = (-value for value in _VALUES)
    table = jnp.asarray((*_VALUES, *negative), jnp.bfloat16)
    pairs = jnp.stack([packed & 0xF, packed >> 4], axis=-1)
    halves = pairs.reshape(packed.shape[0], -1)
    powers = jnp.exp2(scale.astype(jnp.float32) - _BIAS)
    powers = jnp.where(scale == np.uint8(255), jnp.nan, powers)
    return table[halves] * jnp.repeat(powers.astype(jnp.bfloat16), _BLOCK, axis=1)


def plain(
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
) -> Array:
    """Return the product of dequantised row-major factors, [M, N] in float32."""
    factors = (dequantise(a, a_scale), dequantise(b, b_scale))
    return contract("mk,nk->mn", *factors, jnp.float32)


def scaled(
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
) -> Array:
    """Return the same product by XLA's product of scaled numbers, which jax has since 0.9."""

    def numbers(packed: Array) -> Array:
        halves = jax.lax.bitcast_convert_type(packed, jnp.float4_e2m1fn)
        return halves.reshape(packed.shape[0], -1)

    def powers(scale: Array) -> Array:
        return jax.lax.bitcast_convert_type(scale, jnp.float8_e8m0fnu)

    return jax.lax.scaled_dot(
        numbers(a),
        numbers(b),
        lhs_scale=powers(a_scale),
        rhs_scale=powers(b_scale),
        dimension_numbers=(((1,), (1,)), ((), ())),
        preferred_element_type=jnp.float32,
    )


def _reference(*operands: Array) -> Array:
    symbolic = any(map(jax.export.is_symbolic_dim, operands[0].shape[:1]))
    # jax cannot lower a scaled product with symbolic sizes.
    if hasattr(jax.lax, "scaled_dot") and not symbolic:
        product = jax.lax.platform_dependent(*operands, cpu=plain, default=scaled)
    else:
        product = plain(*operands)
    return product.astype(jnp.bfloat16)


def _kernel(
    choice: Choice,
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
) -> Array:
    rows, columns = a.shape[0], b.shape[0]
    whole = jnp.pad(a, ((0, -rows % _ROWS), (0, 0)))
    tuned, splitk = choice.tuned(rows, columns, 2 * b.shape[1])
    call = ffi(
        GEMM_FP4,
        [((whole.shape[0], columns), jnp.bfloat16)],
        splitk=int32(splitk),
        kernel=tuned,
        bpreshuffle=True,
    )
    return call(whole, b, a_scale, b_scale)[0][:rows]


def _shuffle(
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
) -> Arrays:
    weight = shuffle_weight(b, LAYOUT)
    return a, weight, shuffle_scale(a_scale), shuffle_scale(b_scale)


def _unshuffle(
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
) -> Arrays:
    blocks = 2 * a.shape[1] // _BLOCK
    a_scale = unshuffle_scale(a_scale, a.shape[0], blocks)
    b_scale = unshuffle_scale(b_scale, b.shape[0], blocks)
    return a, unshuffle_weight(b, LAYOUT), a_scale, b_scale


_product = quantised(
    GEMM_FP4,
    _kernel,
    _reference,
    Order(_shuffle, _unshuffle),
    Rule.parse("m k, n k, m blocks, n blocks -> m n", m=1, n=128),
    # Shuffled scales are padded to groups of 256 rows, which a part must not share with
    # another one.
    shuffled_rule=Rule.parse("m k, n k, m' blocks, n' blocks -> m n", m=256, n=256),
    group=_ROWS,
)
