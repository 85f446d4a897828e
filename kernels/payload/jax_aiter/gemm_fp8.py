"""FP8 matrix product with one scale per block of 128; AITER's kernels are for gfx950.

No derivative.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jax_aiter import _blockscale, _check
from jax_aiter._choice import Choice
from jax_aiter._native import ffi
from jax_aiter._partition import Rule
from jax_aiter._quantised import Order, quantised
from jax_aiter._table import GEMM_FP8_MI350

__all__ = ["LAYOUT", "gemm_fp8_mi350"]

LAYOUT = (16, 16)
"""Layout of `wq` for the kernels; argument of jax_aiter.layouts.shuffle_weight."""


def gemm_fp8_mi350(
    xq: Array,
    wq: Array,
    x_scale: Array,
    w_scale: Array,
    *,
    preshuffled: bool = False,
) -> Array:
    """Compute (xq * x_scale) @ (wq * w_scale).T with scales by block of 128 elements.

    Args:
        xq: [M, K], float8_e4m3fn.
        wq: [N, K], float8_e4m3fn; K and N multiples of 128.
        x_scale: [K/128, M], float32.
        w_scale: [K/128, N/128], float32, as for `flatmm_fp8`; transposed for the
            kernels, which read [N/128, K/128].
        preshuffled: whether wq has the order of `shuffle_weight(wq, LAYOUT)`. A
            row-major wq is reordered at every call of a kernel.

    Returns:
        [M, N], bfloat16.

    Raises:
        ValueError: shapes do not fit.
        TypeError: dtypes do not fit.
        jax_aiter.NotDifferentiableError: the operation was differentiated.
        jax_aiter.BackendError: a forced backend is unavailable, or its kernels do not
            support these shapes: M has to be 16 or more, K 512 or more, and N a
            multiple of 256.
    """
    operation = "gemm_fp8_mi350"
    _blockscale.validate(operation, xq, wq, x_scale, w_scale)
    for name, array in (("xq", xq), ("wq", wq)):
        _check.dtype(operation, name, array, (jnp.float8_e4m3fn,))
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
    result = ((xq.shape[0], wq.shape[0]), jnp.bfloat16)
    # The kernels read the scales of weights as [N/128, K/128], unlike flatmm_fp8's.
    return ffi(GEMM_FP8_MI350, [result])(xq, wq, x_scale, w_scale.T)[0]


def _reference(*operands: Array) -> Array:
    return _blockscale.product(*operands).astype(jnp.bfloat16)


# The parts of n are multiples of 256: the kernels' tiles, which contain whole blocks of
# scales and of the layout.
_RULE = Rule.parse("m k, n k, blocks m, blocks n' -> m n", m=16, n=256)
_product = quantised(
    GEMM_FP8_MI350, _kernel, _reference, Order.of_weight(LAYOUT), _RULE
)
