"""SwiGLU, the gated activation of feed-forward layers, of one or two arrays, with gradients.

AMD GPUs that the wheel has code for run one fused kernel in each direction; elsewhere XLA computes the same result.
`jax_aiter.info()` reports the backend, and JAX_AITER_BACKEND_SILU_AND_MUL or …_SWIGLU forces one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_aiter import _check, _limits
from jax_aiter._choice import Choice, choose
from jax_aiter._evidence import Problem
from jax_aiter._native import dispatch, ffi, rowwise, together
from jax_aiter._partition import by_rows, like
from jax_aiter._table import SILU_AND_MUL, SILU_AND_MUL_BWD, SWIGLU, SWIGLU_BWD, XLA

__all__ = ["silu_and_mul", "swiglu"]

_DTYPES = (jnp.float32, jnp.float16, jnp.bfloat16, jnp.float64)


def silu_and_mul(x: Array) -> Array:
    """Compute silu(gate) * up, where the rows of x are gate and up side by side; silu(g) = g * sigmoid(g).

    Args:
        x: [..., 2n], float32, float16 or bfloat16 (float64 with jax_enable_x64, by XLA only). The last dimension cannot
            be divided between devices: use `swiglu` for that.

    Returns:
        [..., n], of the dtype of x; computed in float32 and rounded once.

    Raises:
        ValueError: the last dimension is odd or empty.
        TypeError: the dtype does not fit.
        jax_aiter.BackendError: a forced backend is unavailable.
    """
    operation = "silu_and_mul"
    _validate(operation, "x", x)
    _check.multiple(operation, "the last dimension of x", x.shape[-1], 2)
    problem = Problem(x.size // x.shape[-1], x.shape[-1], out=x.dtype.name)
    choice = choose(operation, (SILU_AND_MUL,), obstacles=_obstacles(x), problem=problem)
    y: Array = _packed(_with_rows(x), choice)
    return y.reshape(*x.shape[:-1], x.shape[-1] // 2)


def swiglu(gate: Array, up: Array) -> Array:
    """Compute silu(gate) * up, where silu(g) = g * sigmoid(g).

    Args:
        gate: [..., n], float32, float16 or bfloat16 (float64 with jax_enable_x64, by XLA only).
        up: factor of the shape and dtype of gate.

    Returns:
        [..., n], of the dtype of gate; computed in float32 and rounded once.

    Raises:
        ValueError: shapes do not fit.
        TypeError: dtypes do not fit.
        jax_aiter.BackendError: a forced backend is unavailable.
    """
    operation = "swiglu"
    _validate(operation, "gate", gate)
    _check.rank(operation, "up", up, _shape(gate))
    _check.equal(operation, "up", up.shape, gate.shape, "the shape of gate")
    _check.dtype(operation, "up", up, (gate.dtype,))
    problem = Problem(gate.size // gate.shape[-1], gate.shape[-1], out=gate.dtype.name)
    choice = choose(operation, (SWIGLU,), obstacles=_obstacles(gate), problem=problem)
    y: Array = _apart(*together(_with_rows(gate), _with_rows(up)), choice)
    return y.reshape(gate.shape)


def _validate(operation: str, name: str, array: Any) -> None:
    if getattr(array, "ndim", 1) == 0:
        raise ValueError(f"{operation}: {name} is a scalar; it has to be [..., n].")
    _check.rank(operation, name, array, _shape(array) if hasattr(array, "ndim") else "[..., n]")
    _check.dtype(operation, name, array, _DTYPES)
    if array.shape[-1] == 0:
        raise ValueError(f"{operation}: {name} has the shape {list(array.shape)}; rows must not be empty.")


def _shape(array: Any) -> str:
    return "[" + ", ".join(map(str, array.shape)) + "]"


def _obstacles(array: Array) -> dict[str, str]:
    facts = {"rows": array.size // array.shape[-1], "n": array.shape[-1], "dtype": array.dtype.name}
    calls = (SILU_AND_MUL, SILU_AND_MUL_BWD, SWIGLU, SWIGLU_BWD)
    return {call.name: _limits.obstacle(call, **facts) for call in calls}


def _with_rows(array: Array) -> Array:
    return array[None] if array.ndim == 1 else array


def _wide(array: Array) -> Array:
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))


def _product(gate: Array, up: Array) -> Array:
    wide = _wide(gate)
    return (wide * jax.nn.sigmoid(wide) * _wide(up)).astype(gate.dtype)


def _slopes(dy: Array, gate: Array, up: Array) -> tuple[Array, Array]:
    wide, slope = _wide(gate), _wide(dy)
    value = jax.nn.sigmoid(wide)
    # 1 - sigmoid(g) cancels for large g.
    rest = jax.nn.sigmoid(-wide)
    dgate = slope * _wide(up) * (value * (1 + wide * rest))
    return dgate.astype(gate.dtype), (slope * (wide * value)).astype(up.dtype)


@partial(jax.jit, static_argnums=1)
def _jit_packed(x: Array, choice: Choice) -> Array:
    half = x.shape[-1] // 2

    def reference(x: Array) -> tuple[Array, ...]:
        return (_product(x[:, :half], x[:, half:]),)

    kernel = rowwise(lambda rows: ffi(SILU_AND_MUL, [((rows, half), x.dtype)]), (True,))

    def whole(x: Array) -> tuple[Array, ...]:
        return tuple(dispatch(choice, kernel, reference, x))

    return by_rows("* both -> * n", whole, x, by_rule=choice.backend != XLA)[0]


@partial(jax.jit, static_argnums=2)
def _jit_packed_bwd(dy: Array, x: Array, choice: Choice) -> Array:
    both = x.shape[-1]

    def reference(dy: Array, x: Array) -> tuple[Array, ...]:
        return (jnp.concatenate(_slopes(dy, x[:, : both // 2], x[:, both // 2 :]), axis=1),)

    kernel = rowwise(lambda rows: ffi(SILU_AND_MUL_BWD, [((rows, both), x.dtype)]), (True, True))

    def whole(dy: Array, x: Array) -> tuple[Array, ...]:
        return tuple(dispatch(choice, kernel, reference, dy, x))

    return like(by_rows("* n, * both -> * both", whole, dy, x, by_rule=choice.backend != XLA)[0], x)


@partial(jax.jit, static_argnums=2)
def _jit_apart(gate: Array, up: Array, choice: Choice) -> Array:
    def reference(gate: Array, up: Array) -> tuple[Array, ...]:
        return (_product(gate, up),)

    def whole(gate: Array, up: Array) -> tuple[Array, ...]:
        kernel = rowwise(lambda rows: ffi(SWIGLU, [((rows, gate.shape[1]), gate.dtype)]), (True, True))
        return tuple(dispatch(choice, kernel, reference, gate, up))

    return by_rows("* n, * n -> * n", whole, gate, up, by_rule=choice.backend != XLA, n=1)[0]


@partial(jax.jit, static_argnums=3)
def _jit_apart_bwd(dy: Array, gate: Array, up: Array, choice: Choice) -> tuple[Array, Array]:
    def whole(dy: Array, gate: Array, up: Array) -> tuple[Array, ...]:
        kernel = rowwise(lambda rows: ffi(SWIGLU_BWD, [((rows, gate.shape[1]), gate.dtype)] * 2), (True,) * 3)
        return tuple(dispatch(choice, kernel, _slopes, dy, gate, up))

    operands = dy, gate, up
    dgate, dup = by_rows("* n, * n, * n -> * n, * n", whole, *operands, by_rule=choice.backend != XLA, n=1)
    return like(dgate, gate), like(dup, up)


def _packed_bwd(_choice: Choice, saved: tuple[Array], dy: Array) -> tuple[Array]:
    (x,) = saved
    return (_jit_packed_bwd(dy, x, choose("silu_and_mul", (SILU_AND_MUL_BWD,), obstacles=_obstacles(x))),)


def _apart_bwd(_choice: Choice, saved: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    gate, up = saved
    choice = choose("swiglu", (SWIGLU_BWD,), obstacles=_obstacles(gate))
    dgate, dup = _jit_apart_bwd(dy, gate, up, choice)
    return dgate, dup


_packed = partial(jax.custom_vjp, nondiff_argnums=(1,))(_jit_packed)
_packed.defvjp(lambda x, choice: (_jit_packed(x, choice), (x,)), _packed_bwd)
_apart = partial(jax.custom_vjp, nondiff_argnums=(2,))(_jit_apart)
_apart.defvjp(lambda gate, up, choice: (_jit_apart(gate, up, choice), (gate, up)), _apart_bwd)
