"""INT8 matrix product with one scale per row of each factor. No derivative."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from jax_aiter import _check, _conventions, _limits
from jax_aiter._choice import Choice, choose
from jax_aiter._native import dispatch, ffi, int32, together
from jax_aiter._partition import Rule
from jax_aiter._quantised import quantised
from jax_aiter._table import AITER, GEMM_I8
from jax_aiter._tuned import Product
from jax_aiter.layouts import shuffle_weight, unshuffle_weight

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
    _check.equal("gemm_i8", "b", b.shape, (columns, depth), "[N, K]")
    for name, array, shape, expected in (
        ("a_scale", a_scale, "[M, 1]", (rows, 1)),
        ("b_scale", b_scale, "[1, N]", (1, columns)),
    ):
        _check.rank("gemm_i8", name, array, shape)
        _check.equal("gemm_i8", name, array.shape, expected, shape)
    if getattr(bias, "ndim", 0) == 2:
        _check.equal("gemm_i8", "bias", bias.shape, (1, columns), "[1, N]")
        bias = bias[0]
    _check.rank("gemm_i8", "bias", bias, "[N]")
    _check.equal("gemm_i8", "bias", bias.shape, (columns,), "[N]")
    for name, array in (("a", a), ("b", b)):
        _check.dtype("gemm_i8", name, array, (jnp.int8,))
    for name, array in (("a_scale", a_scale), ("b_scale", b_scale), ("bias", bias)):
        _check.dtype("gemm_i8", name, array, (jnp.float32,))
    _check.multiple("gemm_i8", "N", columns, 32)
    _check.multiple("gemm_i8", "K", depth, 32)
    obstacle = _limits.obstacle(GEMM_I8, m=rows, n=columns, k=depth)
    choice = choose(
        "gemm_i8", obstacles={AITER: obstacle}, product=Product(rows, columns, depth)
    )
    shuffled = _conventions.enabled() if preshuffled is None else preshuffled
    return (shuffled_product if shuffled else _plain)(
        choice, *together(a, b, a_scale, b_scale, bias)
    )


def _lowered(choice: Choice, shuffled: bool, *operands: Array) -> Array:
    def reference(
        a: Array, b: Array, a_scale: Array, b_scale: Array, bias: Array
    ) -> Array:
        plain = unshuffle_weight(b, LAYOUT) if shuffled else b
        total = jnp.einsum("mk,nk->mn", a, plain, preferred_element_type=jnp.int32)
        return (total.astype(jnp.float32) * a_scale * b_scale + bias).astype(
            jnp.bfloat16
        )

    def kernel(a: Array, b: Array, *rest: Array) -> Any:
        b = b if shuffled else shuffle_weight(b, LAYOUT)
        result = ((a.shape[0], b.shape[0]), jnp.bfloat16)
        tuned, splitk = choice.tuned(a.shape[0], *b.shape)
        return ffi(GEMM_I8, [result], splitk=int32(splitk), kernel=tuned)(a, b, *rest)[
            0
        ]

    result: Array = dispatch(choice, kernel, reference, *operands)
    return result


_RULE = Rule.parse("m k, n k, m one, one n, n -> m n", m=1, n=128)
_plain = quantised(
    "gemm_i8", lambda choice, *operands: _lowered(choice, False, *operands), _RULE
)
shuffled_product = quantised(
    "gemm_i8", lambda choice, *operands: _lowered(choice, True, *operands), _RULE
)
"""Compiled product of a choice and operands in the kernels' order."""
