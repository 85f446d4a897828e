"""FP8 matrix product with one scale per block of 128; AITER's kernels are for gfx950.

No derivative.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jax_aiter import _blockscale, _check, _limits
from jax_aiter._choice import Choice, choose
from jax_aiter._native import dispatch, ffi, together
from jax_aiter._partition import Rule
from jax_aiter._quantised import quantised
from jax_aiter._table import AITER, GEMM_FP8_MI350
from jax_aiter.layouts import shuffle_weight, unshuffle_weight

__all__ = ["LAYOUT", "gemm_fp8_mi350"]

LAYOUT = (16, 16)
"""Layout of `wq` for the kernels; argument of jax_aiter.layouts.shuffle_weight."""


def gemm_fp8_mi350(
    xq: Array, wq: Array, x_scale: Array, w_scale: Array, *, preshuffled: bool = False
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
    (rows, depth), columns = xq.shape, wq.shape[0]
    obstacle = _limits.obstacle(GEMM_FP8_MI350, m=rows, n=columns, k=depth)
    choice = choose(operation, obstacles={AITER: obstacle})
    return (shuffled_product if preshuffled else _plain)(
        choice, *together(xq, wq, x_scale, w_scale)
    )


def _lowered(choice: Choice, shuffled: bool, *operands: Array) -> Array:
    def reference(xq: Array, wq: Array, x_scale: Array, w_scale: Array) -> Array:
        plain = unshuffle_weight(wq, LAYOUT) if shuffled else wq
        return _blockscale.product(xq, plain, x_scale, w_scale).astype(jnp.bfloat16)

    def kernel(xq: Array, wq: Array, x_scale: Array, w_scale: Array) -> Array:
        weight = wq if shuffled else shuffle_weight(wq, LAYOUT)
        # The kernels read the scales of weights as [N/128, K/128], unlike flatmm_fp8's.
        return ffi(GEMM_FP8_MI350, [((xq.shape[0], wq.shape[0]), jnp.bfloat16)])(
            xq, weight, x_scale, w_scale.T
        )[0]

    result: Array = dispatch(choice, kernel, reference, *operands)
    return result


# The parts of n are multiples of 256: the kernels' tiles, which contain whole blocks of
# scales and of the layout.
_RULE = Rule.parse("m k, n k, blocks m, blocks n' -> m n", m=16, n=256)
_plain = quantised(
    "gemm_fp8_mi350",
    lambda choice, *operands: _lowered(choice, False, *operands),
    _RULE,
)
shuffled_product = quantised(
    "gemm_fp8_mi350", lambda choice, *operands: _lowered(choice, True, *operands), _RULE
)
"""Compiled product of a choice and operands in the kernels' order."""
