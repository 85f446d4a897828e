"""Matrix product with a transposed right factor, A @ B^T.

XLA's GEMM (hipBLASLt) is the default. AITER's kernels for bfloat16, whose tiles are small,
are used for shapes in AITER's tuned table, or if JAX_AITER_BACKEND_GEMM=aiter forces
them. Gradients are products of XLA.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_aiter import _check, _limits
from jax_aiter._choice import Choice, choose, has_objects
from jax_aiter._native import (
    Arrays,
    contract,
    dispatch,
    empty,
    ffi,
    int32,
    rowwise,
    together,
)
from jax_aiter._partition import Axes, Rule, like, partitioned, total
from jax_aiter._table import AITER, GEMM_BF16, XLA
from jax_aiter._tuned import Product

__all__ = ["gemm"]

_DTYPES = (jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64)
_SEMAPHORE = 1024
"""Number of counters for the split-k kernels; the handler zeroes them."""


def gemm(
    a: Array,
    b: Array,
    *,
    bias: Array | None = None,
    out_dtype: Any = None,
) -> Array:
    """Compute a @ b.T + bias, summed in float32.

    Args:
        a: [M, K], bfloat16, float16 or float32 (float64 with jax_enable_x64). Only
            bfloat16 has AITER kernels.
        b: [N, K], of the dtype of a.
        bias: [N], float32, or None.
        out_dtype: float32 or the dtype of a; None means the dtype of a.

    Returns:
        [M, N], of out_dtype.

    Raises:
        ValueError: shapes do not fit.
        TypeError: dtypes do not fit.
        jax_aiter.BackendError: a forced backend is unavailable, or its kernels do not
            support these shapes: K and N have to be multiples of 64.
    """
    _check.rank("gemm", "a", a, "[M, K]")
    _check.rank("gemm", "b", b, "[N, K]")
    _check.shape("gemm", "b", b, "[N, K]", (b.shape[0], a.shape[1]))
    _check.dtype("gemm", "a", a, _DTYPES)
    _check.dtype("gemm", "b", b, (a.dtype,))
    out = jnp.dtype(a.dtype if out_dtype is None else out_dtype)
    if out not in (a.dtype, jnp.dtype(jnp.float32)):
        raise TypeError(
            f"gemm: out_dtype is {out.name}; it has to be {a.dtype} or float32."
        )
    if bias is not None:
        _check.shape("gemm", "bias", bias, "[N]", b.shape[:1])
        _check.dtype("gemm", "bias", bias, (jnp.float32,))
    return _gemm(*together(a, b, bias), out)


def _product(
    a: Array,
    b: Array,
    bias: Array | None,
    out: Any,
) -> Array:
    # a @ b.T + bias without a derivative; the backend is chosen for these shapes.
    name = jnp.dtype(out).name
    if bias is not None:
        name += "+bias"
    rows = a.shape[0]
    columns, depth = b.shape
    choice = choose(
        "gemm",
        obstacles={AITER: _obstacle(rows, a, b)},
        product=Product(rows, columns, depth, name),
    )
    return _jit_product(a, b, bias, jnp.dtype(out), choice)


def _obstacle(
    rows: int,
    a: Array,
    b: Array,
) -> str:
    return _limits.obstacle(
        GEMM_BF16, m=rows, n=b.shape[0], k=b.shape[1], dtype=a.dtype.name
    )


def _lowered(
    a: Array,
    b: Array,
    bias: Array | None,
    out: Any,
    choice: Choice,
) -> Array:
    def rounded(sums: Array, bias: Array) -> Array:
        if bias.size:
            sums = sums + bias
        return sums.astype(out)

    def reference(
        a: Array,
        b: Array,
        bias: Array,
    ) -> Array:
        wide = jnp.promote_types(a.dtype, jnp.float32)
        return rounded(contract("mk,nk->mn", a, b, wide), bias)

    # The kernels of AITER's sdist write float32 and add no bias; XLA fuses both into one
    # pass.
    complete = has_objects(GEMM_BF16, "bf16gemm_fp32bf16*")

    def call(rows: int) -> Any:
        dtype = out if complete else jnp.float32
        results = [((rows, b.shape[0]), dtype), ((_SEMAPHORE,), jnp.uint32)]
        kernel, splitk = choice.tuned(rows, *b.shape)
        inner = ffi(GEMM_BF16, results, splitk=int32(splitk), kernel=kernel)
        return lambda *operands: inner(*operands)[:1]

    def fits(rows: int) -> bool:
        return not _obstacle(rows, a, b)

    def kernel(
        a: Array,
        b: Array,
        bias: Array,
    ) -> Array:
        added = bias if complete else empty(jnp.float32)
        sums = rowwise(call, (True, False, False), fits)(a, b, added)[0]
        return sums if complete else rounded(sums, bias)

    if bias is None:
        bias = empty(jnp.float32)
    return dispatch(
        choice,
        kernel,
        reference,
        a,
        b,
        bias,
    )


def _divided(
    a: Array,
    b: Array,
    bias: Array | None,
    out: Any,
    choice: Choice,
) -> Array:
    def local(
        axes: Axes,
        a: Array,
        b: Array,
        *biases: Array,
    ) -> Arrays:
        bias = biases[0] if biases else None
        if "k" not in axes:
            return (_lowered(a, b, bias, out, choice),)
        # The devices' products are summed before the bias is added and the sum is
        # rounded.
        wide = jnp.promote_types(a.dtype, jnp.float32)
        own = _lowered(a, b, None, wide, choice)
        sums = total(own, axes, "k")
        if bias is not None:
            sums = sums + bias
        return (sums.astype(out),)

    kernel = choice.backend != XLA
    part = 64 if kernel else 1
    text = "m k, n k -> m n"
    operands: Arrays = (a, b)
    if bias is not None:
        text = "m k, n k, n -> m n"
        operands = (a, b, bias)
    rule = Rule.parse(text, m=1, n=part, k=part)
    return partitioned(rule, local, *operands, by_rule=kernel)[0]


_jit_product = jax.jit(_divided, static_argnums=(3, 4))


def _gemm_fwd(
    a: Array,
    b: Array,
    bias: Array | None,
    out: Any,
) -> tuple[Array, Any]:
    return _product(a, b, bias, out), (a, b, bias)


def _gemm_bwd(
    _out: Any,
    saved: Any,
    dout: Array,
) -> Any:
    # XLA multiplies transposed factors as they are; AITER's kernels would need copies.
    a, b, bias = saved
    da = _by_xla("m n, n k -> m k", dout, b).astype(a.dtype)
    db = _by_xla("m n, m k -> n k", dout, a).astype(b.dtype)
    dbias = None
    if bias is not None:
        dbias = like(jnp.sum(dout.astype(jnp.float32), axis=0), bias)
    return like(da, a), like(db, b), dbias


def _by_xla(
    dims: str,
    left: Array,
    right: Array,
) -> Array:
    # A product as XLA computes it, summed in float32 or wider and between the devices
    # that divide the sum.
    wide = jnp.promote_types(jnp.promote_types(left.dtype, right.dtype), jnp.float32)
    if left.dtype != right.dtype:
        left = left.astype(wide)
        right = right.astype(wide)
    summed = next(name for name in "mn" if name not in dims.rpartition("->")[2])

    def local(
        axes: Axes,
        left: Array,
        right: Array,
    ) -> Arrays:
        product = contract(dims.replace(" ", ""), left, right, wide)
        return (total(product, axes, summed),)

    rule = Rule.parse(dims, m=1, n=1, k=1)
    return partitioned(rule, local, left, right, by_rule=False)[0]


_gemm = partial(jax.custom_vjp, nondiff_argnums=(3,))(_product)
_gemm.defvjp(_gemm_fwd, _gemm_bwd)
