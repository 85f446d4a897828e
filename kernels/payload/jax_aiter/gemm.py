"""Matrix product with a transposed right factor, A @ B^T; gradients are products of the same kind.

bfloat16 factors use AITER's kernels on GPUs that the wheel has kernels for; elsewhere XLA computes the same result.
`jax_aiter.info()` reports the backend, and JAX_AITER_BACKEND_GEMM forces one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_aiter import _check, _limits
from jax_aiter._choice import Choice, choose
from jax_aiter._native import contract, dispatch, empty, ffi, int32, rowwise, together
from jax_aiter._partition import Axes, Rule, like, partitioned, total
from jax_aiter._table import AITER, GEMM_BF16, XLA

__all__ = ["gemm"]

_DTYPES = (jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64)
_SEMAPHORE = 1024
"""Number of counters for the split-k kernels; the handler zeroes them."""


def gemm(a: Array, b: Array, *, bias: Array | None = None, out_dtype: Any = None) -> Array:
    """Compute a @ b.T + bias, summed in float32.

    Args:
        a: [M, K], bfloat16, float16 or float32 (float64 with jax_enable_x64). Only bfloat16 has AITER kernels.
        b: [N, K], of the dtype of a.
        bias: [N], float32, or None.
        out_dtype: float32 or the dtype of a; None means the dtype of a.

    Returns:
        [M, N], of out_dtype.

    Raises:
        ValueError: shapes do not fit.
        TypeError: dtypes do not fit.
        jax_aiter.BackendError: a forced backend is unavailable, or its kernels do not support these shapes: K and N
            have to be multiples of 64.
    """
    _check.rank("gemm", "a", a, "[M, K]")
    _check.rank("gemm", "b", b, "[N, K]")
    _check.equal("gemm", "b", b.shape, (b.shape[0], a.shape[1]), "[N, K]")
    _check.dtype("gemm", "a", a, _DTYPES)
    _check.dtype("gemm", "b", b, (a.dtype,))
    out = jnp.dtype(a.dtype if out_dtype is None else out_dtype)
    if out not in (a.dtype, jnp.dtype(jnp.float32)):
        raise TypeError(f"gemm: out_dtype is {out.name}; it has to be {a.dtype} or float32.")
    if bias is not None:
        _check.rank("gemm", "bias", bias, "[N]")
        _check.equal("gemm", "bias", bias.shape, b.shape[:1], "[N]")
        _check.dtype("gemm", "bias", bias, (jnp.float32,))
    a, b, bias = together(a, b, bias)
    result: Array = _gemm(a, b, bias, out)
    return result


def _product(a: Array, b: Array, bias: Array | None, out: Any) -> Array:
    # a @ b.T + bias without a derivative; the backend is chosen for these shapes.
    choice = choose("gemm", (GEMM_BF16,), obstacles={AITER: _obstacle(a.shape[0], a, b)})
    result: Array = _jit_product(a, b, bias, jnp.dtype(out), choice)
    return result


def _obstacle(rows: int, a: Array, b: Array) -> str:
    return _limits.obstacle(GEMM_BF16, m=rows, n=b.shape[0], k=b.shape[1], dtype=a.dtype.name)


def _lowered(a: Array, b: Array, bias: Array | None, out: Any, choice: Choice) -> Array:
    def reference(a: Array, b: Array, bias: Array) -> Array:
        wide = jnp.promote_types(jnp.promote_types(a.dtype, b.dtype), jnp.float32)
        if a.dtype != b.dtype:
            a, b = a.astype(wide), b.astype(wide)
        total = contract("mk,nk->mn", a, b, wide)
        return (total + bias if bias.size else total).astype(out)

    def call(rows: int) -> Any:
        results = [((rows, b.shape[0]), jnp.float32), ((_SEMAPHORE,), jnp.uint32)]
        inner = ffi(GEMM_BF16, results, splitk=int32(0), kernel="")
        return lambda a, b: inner(a, b, empty(jnp.float32))[:1]

    def fits(rows: int) -> bool:
        return not _obstacle(rows, a, b)

    def kernel(a: Array, b: Array, bias: Array) -> Array:
        # Not every generation of these kernels adds a bias or writes bfloat16; XLA fuses both into one pass.
        total = rowwise(call, (True, False), fits)(a, b)[0]
        return (total + bias if bias.size else total).astype(out)

    result: Array = dispatch(choice, kernel, reference, a, b, empty(jnp.float32) if bias is None else bias)
    return result


def _divided(a: Array, b: Array, bias: Array | None, out: Any, choice: Choice) -> Array:
    def local(axes: Axes, a: Array, b: Array, *bias: Array) -> tuple[Array, ...]:
        if "k" not in axes:
            return (_lowered(a, b, bias[0] if bias else None, out, choice),)
        # The devices' products are summed before the bias is added and the sum is rounded.
        wide = jnp.promote_types(jnp.promote_types(a.dtype, b.dtype), jnp.float32)
        sums = total(_lowered(a, b, None, wide, choice), axes, "k")
        return ((sums + bias[0] if bias else sums).astype(out),)

    kernel = choice.backend != XLA
    part = 64 if kernel else 1
    rule = Rule.parse("m k, n k -> m n" if bias is None else "m k, n k, n -> m n", m=1, n=part, k=part)
    operands = (a, b) if bias is None else (a, b, bias)
    return partitioned(rule, local, *operands, by_rule=kernel)[0]


_jit_product = jax.jit(_divided, static_argnums=(3, 4))


def _gemm_fwd(a: Array, b: Array, bias: Array | None, out: Any) -> tuple[Array, Any]:
    return _product(a, b, bias, out), (a, b, bias)


def _gemm_bwd(_out: Any, saved: Any, dout: Array) -> Any:
    a, b, bias = saved
    da = _product(dout, b.T, None, a.dtype)
    db = _product(dout.T, a.T, None, b.dtype)
    dbias = None if bias is None else like(jnp.sum(dout.astype(jnp.float32), axis=0), bias)
    return like(da, a), like(db, b), dbias


_gemm = partial(jax.custom_vjp, nondiff_argnums=(3,))(_product)
_gemm.defvjp(_gemm_fwd, _gemm_bwd)
