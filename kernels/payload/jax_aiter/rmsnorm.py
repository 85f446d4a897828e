"""Root-mean-square normalisation, alone and fused with a residual addition, with gradients.

AMD GPUs that the wheel has code for run one fused kernel in each direction; elsewhere
XLA computes the same result. `jax_aiter.info()` reports the backend, and
JAX_AITER_BACKEND_RMS_NORM forces one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_aiter import _check, _limits
from jax_aiter._choice import Choice, choose
from jax_aiter._native import dispatch, empty, ffi, rowwise, together
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


def rms_norm(x: Array, gamma: Array, epsilon: float = 1e-6) -> Array:
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
    y: Array = _rms_norm(rows, gamma, float(epsilon), choice)
    return y.reshape(x.shape)


def rms_norm_with_add(
    x: Array, residual: Array, gamma: Array, epsilon: float = 1e-6
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
    _check.rank(operation, "residual", residual, _shape(x))
    _check.equal(operation, "residual", residual.shape, x.shape, "the shape of x")
    _check.dtype(operation, "residual", residual, (x.dtype,))
    calls = (CK_RMS_NORM, RMS_NORM_WITH_ADD)
    choice = choose(operation, calls, obstacles=_obstacles(x))
    rows, other, gamma = together(_with_rows(x), _with_rows(residual), gamma)
    y, total = _with_add(rows, other, gamma, float(epsilon), choice)
    return y.reshape(x.shape), total.reshape(x.shape)


def _validate(operation: str, x: Any, gamma: Any, epsilon: float) -> None:
    if getattr(x, "ndim", 1) == 0:
        raise ValueError(f"{operation}: x is a scalar; it has to be [..., n].")
    _check.rank(operation, "x", x, _shape(x) if hasattr(x, "ndim") else "[..., n]")
    _check.rank(operation, "gamma", gamma, "[n]")
    _check.equal(operation, "gamma", gamma.shape, x.shape[-1:], "[n]")
    _check.dtype(operation, "x", x, _DTYPES)
    _check.dtype(operation, "gamma", gamma, (x.dtype,))
    if isinstance(epsilon, jax.Array) or not epsilon > 0:
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
    facts = {
        "rows": x.size // max(1, x.shape[-1]),
        "n": x.shape[-1],
        "dtype": x.dtype.name,
    }
    calls = (CK_RMS_NORM, RMS_NORM, RMS_NORM_WITH_ADD, RMS_NORM_BWD)
    return {call.name: _limits.obstacle(call, **facts) for call in calls}


def _with_rows(x: Array) -> Array:
    return x[None] if x.ndim == 1 else x


def _wide(x: Array) -> Array:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _rstd(x: Array, epsilon: float) -> Array:
    wide = _wide(x)
    return jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1) + epsilon)


# Forward: (y, rstd), where rstd is 1 / sqrt(mean(x**2) + epsilon) of each row in
# float32.


def _forward(
    x: Array, gamma: Array, epsilon: float, choice: Choice
) -> tuple[Array, Array]:
    def reference(x: Array, gamma: Array) -> tuple[Array, Array]:
        rstd = _rstd(x, epsilon)
        return (_wide(x) * rstd[:, None] * _wide(gamma)).astype(x.dtype), rstd

    def call(rows: int) -> Any:
        return ffi(
            RMS_NORM,
            [((rows, x.shape[1]), x.dtype), ((rows,), jnp.float32)],
            epsilon=np.float32(epsilon),
        )

    def call_ck(rows: int) -> Any:
        inner = ffi(
            CK_RMS_NORM,
            [((rows, x.shape[1]), x.dtype), ((0,), x.dtype)],
            epsilon=np.float32(epsilon),
        )
        return lambda x, gamma: inner(x, empty(x.dtype), gamma)[:1]

    def ck(x: Array, gamma: Array) -> tuple[Array, Array]:
        # The kernel does not return rstd; XLA computes it if a gradient needs it.
        return rowwise(call_ck, (True, False))(x, gamma)[0], _rstd(x, epsilon)

    kernel = ck if choice.backend == AITER else rowwise(call, (True, False))
    y, rstd = dispatch(choice, kernel, reference, x, gamma)
    return y, rstd


def _forward_with_add(
    x: Array, residual: Array, gamma: Array, epsilon: float, choice: Choice
) -> tuple[Array, Array, Array]:
    def reference(
        x: Array, residual: Array, gamma: Array
    ) -> tuple[Array, Array, Array]:
        total = x + residual
        rstd = _rstd(total, epsilon)
        return (
            (_wide(total) * rstd[:, None] * _wide(gamma)).astype(x.dtype),
            total,
            rstd,
        )

    def call(rows: int) -> Any:
        results = [
            ((rows, x.shape[1]), x.dtype),
            ((rows, x.shape[1]), x.dtype),
            ((rows,), jnp.float32),
        ]
        return ffi(RMS_NORM_WITH_ADD, results, epsilon=np.float32(epsilon))

    def call_ck(rows: int) -> Any:
        return ffi(
            CK_RMS_NORM,
            [((rows, x.shape[1]), x.dtype)] * 2,
            epsilon=np.float32(epsilon),
        )

    def ck(x: Array, residual: Array, gamma: Array) -> tuple[Array, Array, Array]:
        y, total = rowwise(call_ck, (True, True, False))(x, residual, gamma)
        return y, total, _rstd(total, epsilon)

    kernel = ck if choice.backend == AITER else rowwise(call, (True, True, False))
    y, total, rstd = dispatch(choice, kernel, reference, x, residual, gamma)
    return y, total, rstd


def _backward(
    dy: Array, x: Array, gamma: Array, rstd: Array, choice: Choice
) -> tuple[Array, Array]:
    def reference(
        dy: Array, x: Array, gamma: Array, rstd: Array
    ) -> tuple[Array, Array]:
        normal = _wide(x) * rstd[:, None]
        scaled = _wide(dy) * _wide(gamma)
        along = jnp.mean(scaled * normal, axis=-1, keepdims=True)
        dx = rstd[:, None] * (scaled - normal * along)
        return dx.astype(x.dtype), jnp.sum(_wide(dy) * normal, axis=0)

    def kernel(dy: Array, x: Array, gamma: Array, rstd: Array) -> tuple[Array, Array]:
        rows, n = x.shape
        partials = (
            min(rows, max(_PARTIALS[0], min(_PARTIALS[1], _PARTIAL_SUMS // max(1, n)))),
            n,
        )
        dx, dgamma = ffi(RMS_NORM_BWD, [(x.shape, x.dtype), (partials, jnp.float32)])(
            dy, x, gamma, rstd
        )
        return dx, jnp.sum(dgamma, axis=0)

    dx, dgamma = dispatch(choice, kernel, reference, dy, x, gamma, rstd)
    return dx, dgamma


# The same for rows of any number of dimensions, divided between devices.


@partial(jax.jit, static_argnums=(2, 3))
def _jit_forward(
    x: Array, gamma: Array, epsilon: float, choice: Choice
) -> tuple[Array, ...]:
    def whole(x: Array, gamma: Array) -> tuple[Array, ...]:
        return _forward(x, gamma, epsilon, choice)

    def without_rstd(x: Array, gamma: Array) -> tuple[Array, ...]:
        return whole(x, gamma)[:1]

    if choice.backend == AITER:
        # AITER's kernel does not return rstd, and a gradient that needs only rstd must
        # not call it.
        (y,) = by_rows("* n, n -> * n", without_rstd, x, gamma, by_rule=True)
        return y, _rstd(x, epsilon)
    return by_rows("* n, n -> * n, *", whole, x, gamma, by_rule=choice.backend != XLA)


@partial(jax.jit, static_argnums=(3, 4))
def _jit_forward_with_add(
    x: Array, residual: Array, gamma: Array, epsilon: float, choice: Choice
) -> tuple[Array, ...]:
    def whole(x: Array, residual: Array, gamma: Array) -> tuple[Array, ...]:
        return _forward_with_add(x, residual, gamma, epsilon, choice)

    return by_rows(
        "* n, * n, n -> * n, * n, *",
        whole,
        x,
        residual,
        gamma,
        by_rule=choice.backend != XLA,
    )


@partial(jax.jit, static_argnums=4)
def _jit_backward(
    dy: Array, x: Array, gamma: Array, rstd: Array, choice: Choice
) -> tuple[Array, Array]:
    def whole(dy: Array, x: Array, gamma: Array, rstd: Array) -> tuple[Array, ...]:
        return _backward(dy, x, gamma, rstd, choice)

    operands = dy, x, gamma, rstd
    dx, dgamma = by_rows(
        "* n, * n, n, * -> * n, n", whole, *operands, by_rule=choice.backend != XLA
    )
    return like(dx, x), like(dgamma.astype(gamma.dtype), gamma)


def _rms_norm_primal(x: Array, gamma: Array, epsilon: float, choice: Choice) -> Array:
    y: Array = _jit_forward(x, gamma, epsilon, choice)[0]
    return y


def _rms_norm_fwd(
    x: Array, gamma: Array, epsilon: float, choice: Choice
) -> tuple[Array, Any]:
    y, rstd = _jit_forward(x, gamma, epsilon, choice)
    return y, (x, gamma, rstd)


def _rms_norm_bwd(_epsilon: float, _choice: Choice, saved: Any, dy: Array) -> Any:
    choice = choose("rms_norm", (RMS_NORM_BWD,), obstacles=_obstacles(dy))
    return _jit_backward(dy, *saved, choice)


def _with_add_primal(
    x: Array, residual: Array, gamma: Array, epsilon: float, choice: Choice
) -> tuple[Array, Array]:
    y, total, _ = _jit_forward_with_add(x, residual, gamma, epsilon, choice)
    return y, total


def _with_add_fwd(
    x: Array, residual: Array, gamma: Array, epsilon: float, choice: Choice
) -> Any:
    y, total, rstd = _jit_forward_with_add(x, residual, gamma, epsilon, choice)
    return (y, total), (total, gamma, rstd)


def _with_add_bwd(_epsilon: float, _choice: Choice, saved: Any, cotangents: Any) -> Any:
    dy, dtotal = cotangents
    choice = choose("rms_norm_with_add", (RMS_NORM_BWD,), obstacles=_obstacles(dy))
    dx, dgamma = _jit_backward(dy, *saved, choice)
    # Both terms of the sum have the gradient of the sum.
    return dx + dtotal, dx + dtotal, dgamma


_rms_norm = partial(jax.custom_vjp, nondiff_argnums=(2, 3))(_rms_norm_primal)
_rms_norm.defvjp(_rms_norm_fwd, _rms_norm_bwd)
_with_add = partial(jax.custom_vjp, nondiff_argnums=(3, 4))(_with_add_primal)
_with_add.defvjp(_with_add_fwd, _with_add_bwd)
