"""FP8 matrix product with one scale per block of 128; AITER's only kernel is for gfx942.

No derivative.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from jax_aiter import _blockscale, _check
from jax_aiter._choice import Choice
from jax_aiter._native import ffi
from jax_aiter._partition import Rule
from jax_aiter._quantised import Order, quantised
from jax_aiter._table import FLATMM_FP8

__all__ = ["LAYOUT", "flatmm_fp8"]

LAYOUT = (16, 32)
"""Layout of `wq` for the kernel; argument of jax_aiter.layouts.shuffle_weight."""

_MINUS_ZERO = 0x80


def flatmm_fp8(
    xq: Array,
    wq: Array,
    x_scale: Array,
    w_scale: Array,
    *,
    preshuffled: bool = False,
) -> Array:
    """Compute (xq * x_scale) @ (wq * w_scale).T with scales by block of 128 elements.

    Args:
        xq: [M, K], float8_e4m3fn or float8_e4m3fnuz. gfx942 computes in
            float8_e4m3fnuz; float8_e4m3fn is converted exactly at every call of the
            kernel.
        wq: [N, K], of the dtype of xq; K and N multiples of 128.
        x_scale: [K/128, M], float32.
        w_scale: [K/128, N/128], float32.
        preshuffled: whether wq has the order of `shuffle_weight(wq, LAYOUT)`. A
            row-major wq is reordered at every call of the kernel.

    Returns:
        [M, N], float16; values beyond its range become infinite.

    Raises:
        ValueError: shapes do not fit.
        TypeError: dtypes do not fit.
        jax_aiter.NotDifferentiableError: the operation was differentiated.
        jax_aiter.BackendError: a forced backend is unavailable, or its kernels do not
            support these shapes: N has to be a multiple of 256.
    """
    _blockscale.validate("flatmm_fp8", xq, wq, x_scale, w_scale)
    _check.dtype("flatmm_fp8", "xq", xq, (jnp.float8_e4m3fn, jnp.float8_e4m3fnuz))
    _check.dtype("flatmm_fp8", "wq", wq, (xq.dtype,))
    return _product(
        preshuffled,
        xq.shape[1],
        xq,
        wq,
        x_scale,
        w_scale,
    )


def _kernel(
    _choice: Choice,
    xq: Array,
    wq: Array,
    x_scale: Array,
    w_scale: Array,
) -> Array:
    x, x_scale = as_fnuz(xq, x_scale)
    w, w_scale = as_fnuz(wq, w_scale)
    result = ((x.shape[0], w.shape[0]), jnp.float16)
    return ffi(FLATMM_FP8, [result])(x, w, x_scale, w_scale)[0]


def _reference(*operands: Array) -> Array:
    return _blockscale.product(*operands).astype(jnp.float16)


def as_fnuz(values: Array, scale: Array) -> tuple[Array, Array]:
    """Return values and scale with the same product, and with values in float8_e4m3fnuz.

    The exponent bias of float8_e4m3fnuz is larger by one, so the same bits have half
    the value. In float8_e4m3fnuz, the bits of negative zero mean NaN, and the NaN bits
    of float8_e4m3fn mean a number.
    """
    if values.dtype == jnp.float8_e4m3fnuz:
        return values, scale
    bits = jax.lax.bitcast_convert_type(values, jnp.uint8)
    magnitude = bits & 0x7F
    changed = jnp.where(magnitude == 0x7F, jnp.uint8(_MINUS_ZERO), bits)
    changed = jnp.where(magnitude == 0, jnp.uint8(0), changed)
    return jax.lax.bitcast_convert_type(changed, jnp.float8_e4m3fnuz), scale * 2


# The parts of n are multiples of 256: the kernels' tiles, which contain whole blocks of
# scales and of the layout.
_RULE = Rule.parse("m k, n k, blocks m, blocks n' -> m n", m=1, n=256)
_product = quantised(FLATMM_FP8, _kernel, _reference, Order.of_weight(LAYOUT), _RULE)
