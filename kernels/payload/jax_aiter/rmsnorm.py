"""Root-mean-square normalisation, alone and fused with a residual addition, with gradients.

AMD GPUs that the wheel has code for run one fused kernel in each direction; elsewhere
XLA computes the same result. `jax_aiter.info()` reports the backend, and
JAX_AITER_BACKEND_RMS_NORM forces one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import min_dim

from jax_aiter import _check, _limits
from jax_aiter._choice import Choice, choose
from jax_aiter._native import Arrays, dispatch, empty, ffi, rowwise, together
from jax_aiter._partition import by_rows, like
from jax_aiter._table import (
    AITER,
    CK_RMS_NORM,
    RMS_NORM,
    RMS_NORM_BWD,
    RMS_NORM_WITH_ADD,
    XLA,
)

__all__ = ["rms_norm", "rms_norm_with_add"]

_DTYPES = (jnp.float32, jnp.float16, jnp.bfloat16, jnp.float64)
_PARTIALS = (256, 4096)
"""Minimum and maximum number of rows of partial sums of gamma's gradient.

The backward kernel has a block per row.
"""
_PARTIAL_SUMS = 1 << 21
"""Number of partial sums within these limits: enough blocks to fill a GPU if rows are short.

8 MiB fit its cache.
"""


def rms_norm(
    x: Array,
    gamma: Array,
    epsilon: float = 1e-6,
) -> Array:
    """Normalise rows by their root mean square: y = x / sqrt(mean(x**2) + epsilon) * gamma.

    Args:
        x: [..., n], float32, float16 or bfloat16 (float64 with jax_enable_x64, by XLA
            only).
        gamma: [n], of the dtype of x.
        epsilon: term added to the mean square; a positive number, not an array.

    Returns:
        [..., n], of the dtype of x; sums are in float32.

    Raises:
        ValueError: shapes do not fit, or epsilon is not positive.
        TypeError: dtypes do not fit.
        jax_aiter.BackendError: a forced backend is unavailable.
    """
    _validate("rms_norm", x, gamma, epsilon)
    choice = choose("rms_norm", (CK_RMS_NORM, RMS_NORM), obstacles=_obstacles(x))
    rows, gamma = together(_with_rows(x), gamma)
    y, _ = _normalised(rows, None, gamma, float(epsilon), choice)
    return y.reshape(x.shape)


def rms_norm_with_add(
    x: Array,
    residual: Array,
    gamma: Array,
    epsilon: float = 1e-6,
) -> tuple[Array, Array]:
    """Add a residual and normalise the sum: s = x + residual; y = rms_norm(s, gamma, epsilon).

    Args:
        x: [..., n], float32, float16 or bfloat16 (float64 with jax_enable_x64, by XLA
            only).
        residual: addend of the shape and dtype of x.
        gamma: [n], of the dtype of x.
        epsilon: term added to the mean square; a positive number, not an array.

    Returns:
        y and s, both of the shape and dtype of x.

    Raises:
        ValueError: shapes do not fit, or epsilon is not positive.
        TypeError: dtypes do not fit.
        jax_aiter.BackendError: a forced backend is unavailable.
    """
    operation = "rms_norm_with_add"
    _validate(operation, x, gamma, epsilon)
    _check.shape(operation, "residual", residual, _shape(x), x.shape)
    _check.dtype(operation, "residual", residual, (x.dtype,))
    calls = (CK_RMS_NORM, RMS_NORM_WITH_ADD)
    choice = choose(operation, calls, obstacles=_obstacles(x))
    rows, other, gamma = together(_with_rows(x), _with_rows(residual), gamma)
    y, total = _normalised(rows, other, gamma, float(epsilon), choice)
    return y.reshape(x.shape), total.reshape(x.shape)


def _validate(
    operation: str,
    x: Any,
    gamma: Any,
    epsilon: float,
) -> None:
    if getattr(x, "ndim", 1) == 0:
        raise ValueError(f"{operation}: x is a scalar; it has to be [..., n].")
    _check.rank(operation, "x", x, _shape(x) if hasattr(x, "ndim") else "[..., n]")
    _check.shape(operation, "gamma", gamma, "[n]", x.shape[-1:])
    _check.dtype(operation, "x", x, _DTYPES)
    _check.dtype(operation, "gamma", gamma, (x.dtype,))
    _check.static(operation, epsilon=epsilon)
    if not epsilon > 0:
        raise ValueError(
            f"{operation}: epsilon is {epsilon!r}; it has to be a positive number."
        )
    if x.shape[-1] == 0:
        raise ValueError(
            f"{operation}: x has the shape {list(x.shape)}; rows must not be empty."
        )


def _shape(x: Any) -> str:
    return "[" + ", ".join(map(str, x.shape)) + "]"


def _obstacles(x: Array) -> dict[str, str]:
    n = x.shape[-1]
    rows = x.size // max(1, n)
    found = {}
    for call in (CK_RMS_NORM, RMS_NORM, RMS_NORM_WITH_ADD, RMS_NORM_BWD):
        found[call.name] = _limits.obstacle(call, rows=rows, n=n, dtype=x.dtype.name)
    return found


def _with_rows(x: Array) -> Array:
    return x[None] if x.ndim == 1 else x


def _wide(x: Array) -> Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _rstd(x: Array, epsilon: float) -> Array:
    wide = _wide(x)
    return jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1) + epsilon)


# Forward: (y, rstd), or (y, sum, rstd) with a residual; rstd is
# 1 / sqrt(mean(x**2) + epsilon) of each row in float32.


def _forward(
    choice: Choice,
    epsilon: float,
    *operands: Array,
) -> Arrays:
    # The operands are x and gamma, or x, residual and gamma.
    x = operands[0]
    adds = len(operands) == 3
    rows_of = (True, True, False) if adds else (True, False)
    attribute = np.float32(epsilon)

    def reference(x: Array, *others: Array) -> Arrays:
        *residual, gamma = others
        total = x + residual[0] if adds else x
        rstd = _rstd(total, epsilon)
        y = (_wide(total) * rstd[:, None] * _wide(gamma)).astype(x.dtype)
        return (y, total, rstd) if adds else (y, rstd)

    def portable(rows: int) -> Callable[..., Arrays]:
        target = RMS_NORM_WITH_ADD if adds else RMS_NORM
        whole = ((rows, x.shape[1]), x.dtype)
        sums = [whole] if adds else []
        results = [whole, *sums, ((rows,), jnp.float32)]
        return ffi(target, results, epsilon=attribute)

    def call_ck(rows: int) -> Callable[..., Arrays]:
        whole = ((rows, x.shape[1]), x.dtype)
        if adds:
            return ffi(CK_RMS_NORM, [whole, whole], epsilon=attribute)
        inner = ffi(CK_RMS_NORM, [whole, ((0,), x.dtype)], epsilon=attribute)
        return lambda x, gamma: inner(x, empty(x.dtype), gamma)[:1]

    def ck(x: Array, *others: Array) -> Arrays:
        found = rowwise(call_ck, rows_of)(x, *others)
        # The kernel does not return rstd; XLA computes it if a gradient needs it.
        return *found, _rstd(found[1] if adds else x, epsilon)

    kernel = ck if choice.backend == AITER else rowwise(portable, rows_of)
    return tuple(dispatch(choice, kernel, reference, *operands))


def _backward(
    choice: Choice,
    dy: Array,
    x: Array,
    gamma: Array,
    rstd: Array,
) -> Arrays:
    def reference(
        dy: Array,
        x: Array,
        gamma: Array,
        rstd: Array,
    ) -> Arrays:
        normal = _wide(x) * rstd[:, None]
        scaled = _wide(dy) * _wide(gamma)
        along = jnp.mean(scaled * normal, axis=-1, keepdims=True)
        dx = rstd[:, None] * (scaled - normal * along)
        return dx.astype(x.dtype), jnp.sum(_wide(dy) * normal, axis=0)

    def kernel(
        dy: Array,
        x: Array,
        gamma: Array,
        rstd: Array,
    ) -> Arrays:
        rows, n = x.shape
        least, most = _PARTIALS
        filling = min(most, _PARTIAL_SUMS // max(1, n))
        partials = min_dim(rows, max(least, filling))
        results = [(x.shape, x.dtype), ((partials, n), jnp.float32)]
        dx, dgamma = ffi(RMS_NORM_BWD, results)(dy, x, gamma, rstd)
        return dx, jnp.sum(dgamma, axis=0)

    return tuple(
        dispatch(
            choice,
            kernel,
            reference,
            dy,
            x,
            gamma,
            rstd,
        )
    )


# The same for rows of any number of dimensions, divided between devices.


@partial(jax.jit, static_argnums=(3, 4))
def _jit_forward(
    x: Array,
    residual: Array | None,
    gamma: Array,
    epsilon: float,
    choice: Choice,
) -> Arrays:
    whole = partial(_forward, choice, epsilon)
    by_rule = choice.backend != XLA
    if residual is not None:
        text = "* n, * n, n -> * n, * n, *"
        return by_rows(
            text,
            whole,
            x,
            residual,
            gamma,
            by_rule=by_rule,
        )
    if choice.backend != AITER:
        return by_rows("* n, n -> * n, *", whole, x, gamma, by_rule=by_rule)

    def without_rstd(x: Array, gamma: Array) -> Arrays:
        return whole(x, gamma)[:1]

    # AITER's kernel does not return rstd, and a gradient that needs only rstd must not
    # call it.
    (y,) = by_rows("* n, n -> * n", without_rstd, x, gamma, by_rule=True)
    return y, _rstd(x, epsilon)


@partial(jax.jit, static_argnums=4)
def _jit_backward(
    dy: Array,
    x: Array,
    gamma: Array,
    rstd: Array,
    choice: Choice,
) -> Arrays:
    dx, dgamma = by_rows(
        "* n, * n, n, * -> * n, n",
        partial(_backward, choice),
        dy,
        x,
        gamma,
        rstd,
        by_rule=choice.backend != XLA,
    )
    return like(dx, x), like(dgamma.astype(gamma.dtype), gamma)


def _primal(
    x: Array,
    residual: Array | None,
    gamma: Array,
    epsilon: float,
    choice: Choice,
) -> tuple[Array, Array | None]:
    # y and the sum, which is None without a residual.
    y, *total, _ = _jit_forward(x, residual, gamma, epsilon, choice)
    return y, total[0] if total else None


def _fwd(
    x: Array,
    residual: Array | None,
    gamma: Array,
    epsilon: float,
    choice: Choice,
) -> Any:
    y, *total, rstd = _jit_forward(x, residual, gamma, epsilon, choice)
    if total:
        return (y, total[0]), (total[0], gamma, rstd)
    return (y, None), (x, gamma, rstd)


def _bwd(
    _epsilon: float,
    _choice: Choice,
    saved: Any,
    cotangents: Any,
) -> Any:
    dy, dtotal = cotangents
    operation = "rms_norm" if dtotal is None else "rms_norm_with_add"
    choice = choose(operation, (RMS_NORM_BWD,), obstacles=_obstacles(dy))
    dx, dgamma = _jit_backward(dy, *saved, choice)
    if dtotal is None:
        return dx, None, dgamma
    # Both terms of the sum have the gradient of the sum.
    return dx + dtotal, dx + dtotal, dgamma


_normalised = partial(jax.custom_vjp, nondiff_argnums=(3, 4))(_primal)
_normalised.defvjp(_fwd, _bwd)
