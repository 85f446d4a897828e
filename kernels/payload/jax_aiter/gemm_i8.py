"""INT8 matrix product with one scale per row of each factor. No derivative."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jax_aiter import _check, _conventions
from jax_aiter._choice import Choice
from jax_aiter._native import ffi, int32
from jax_aiter._partition import Rule
from jax_aiter._quantised import Order, quantised
from jax_aiter._table import GEMM_I8

__all__ = ["LAYOUT", "gemm_i8"]

LAYOUT = (32, 16)
"""Layout of `b` for the kernels; argument of jax_aiter.layouts.shuffle_weight."""


def gemm_i8(
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    bias: Array,
    *,
    preshuffled: bool | None = None,
) -> Array:
    """Compute (a @ b.T) * a_scale * b_scale + bias, summed in int32.

    Args:
        a: [M, K], int8.
        b: [N, K], int8; N and K multiples of 32.
        a_scale: [M, 1], float32.
        b_scale: [1, N], float32.
        bias: [1, N] or [N], float32.
        preshuffled: whether b has the order of `shuffle_weight(b, LAYOUT)`. A row-major
            b is reordered at every call. None means False, or True under
            JAX_AITER_COMPAT=1.

    Returns:
        [M, N], bfloat16.

    Raises:
        ValueError: shapes do not fit.
        TypeError: dtypes do not fit.
        jax_aiter.NotDifferentiableError: the operation was differentiated.
        jax_aiter.BackendError: a forced backend is unavailable, or its kernels do not
            support these shapes: K and N have to be multiples of 128.
    """
    _check.rank("gemm_i8", "a", a, "[M, K]")
    _check.rank("gemm_i8", "b", b, "[N, K]")
    (rows, depth), columns = a.shape, b.shape[0]
    _check.shape("gemm_i8", "b", b, "[N, K]", (columns, depth))
    _check.shape("gemm_i8", "a_scale", a_scale, "[M, 1]", (rows, 1))
    _check.shape("gemm_i8", "b_scale", b_scale, "[1, N]", (1, columns))
    if getattr(bias, "ndim", 0) == 2:
        _check.shape("gemm_i8", "bias", bias, "[1, N]", (1, columns))
        bias = bias[0]
    _check.shape("gemm_i8", "bias", bias, "[N]", (columns,))
    for name, array in (("a", a), ("b", b)):
        _check.dtype("gemm_i8", name, array, (jnp.int8,))
    for name, array in (("a_scale", a_scale), ("b_scale", b_scale), ("bias", bias)):
        _check.dtype("gemm_i8", name, array, (jnp.float32,))
    _check.multiple("gemm_i8", "N", columns, 32)
    _check.multiple("gemm_i8", "K", depth, 32)
    shuffled = _conventions.enabled() if preshuffled is None else preshuffled
    return _product(
        shuffled,
        depth,
        a,
        b,
        a_scale,
        b_scale,
        bias,
    )


def _kernel(
    choice: Choice,
    a: Array,
    b: Array,
    *rest: Array,
) -> Array:
    rows = a.shape[0]
    columns, depth = b.shape
    tuned, splitk = choice.tuned(rows, columns, depth)
    result = ((rows, columns), jnp.bfloat16)
    call = ffi(GEMM_I8, [result], splitk=int32(splitk), kernel=tuned)
    return call(a, b, *rest)[0]


def _reference(
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    bias: Array,
) -> Array:
    sums = jnp.einsum("mk,nk->mn", a, b, preferred_element_type=jnp.int32)
    scaled = sums.astype(jnp.float32) * a_scale * b_scale
    return (scaled + bias).astype(jnp.bfloat16)


_RULE = Rule.parse("m k, n k, m one, one n, n -> m n", m=1, n=128)
_product = quantised(GEMM_I8, _kernel, _reference, Order.of_weight(LAYOUT), _RULE)
