"""Rotary position embedding with cached angles, and its gradient.

AMD GPUs that the wheel has code for run one fused kernel in each direction; elsewhere XLA computes the same result.
`jax_aiter.info()` reports the backend, and JAX_AITER_BACKEND_ROPE forces one.
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
from jax_aiter._native import dispatch, ffi, rowwise, together, vary, varying
from jax_aiter._partition import by_rows, like
from jax_aiter._table import ROPE, XLA

__all__ = ["rope"]

_DTYPES = (jnp.float32, jnp.float16, jnp.bfloat16, jnp.float64)
_SHAPE = "[..., S, H, D]"


def rope(x: Array, cos: Array, sin: Array, positions: Array | None = None, *, interleaved: bool = False) -> Array:
    """Rotate the pairs of numbers of each head by the angles of the token's position.

    A pair (a, b) becomes (a * cos - b * sin, b * cos + a * sin). Numbers of a head beyond the pairs are unchanged.

    Args:
        x: [..., S, H, D] such as [batch, S, H, D]: queries or keys of S tokens with H heads, float32, float16 or
            bfloat16 (float64 with jax_enable_x64, by XLA only).
        cos, sin: [P, C], cosines and sines of P positions for C pairs, C from 1 to D / 2; of any float dtype.
        positions: position of each token in [0, P), int32 of shape [..., S] or [S]; other positions make NaN. None
            means 0 to S - 1.
        interleaved: whether pairs are neighbours (GPT-J); if not, number i is paired with i + C (GPT-NeoX, Llama).

    Returns:
        The shape and dtype of x; angles and products are in float32. Gradients of cos and sin are computed by XLA.

    Raises:
        ValueError: shapes do not fit.
        TypeError: dtypes do not fit.
        jax_aiter.BackendError: a forced backend is unavailable.
    """
    _validate(x, cos, sin)
    positions = _positions(x, cos, positions)
    (heads, depth), style = x.shape[-2:], "interleaved" if interleaved else "neox"
    problem = Problem(positions.size, heads * depth, 2 * cos.shape[1], f"{x.dtype.name} depth={depth} {style}")
    choice = choose("rope", obstacles=_obstacles(x, cos), problem=problem)
    wide = jnp.promote_types(x.dtype, jnp.float32)
    out: Array = _rope(*together(x, cos.astype(wide), sin.astype(wide), positions), interleaved, choice)
    return out


def _validate(x: Any, cos: Any, sin: Any) -> None:
    if not hasattr(x, "ndim") or x.ndim < 3:
        _check.rank("rope", "x", x, _SHAPE)
        raise ValueError(f"rope: x has the shape {list(x.shape)}; it has to be {_SHAPE}.")
    _check.dtype("rope", "x", x, _DTYPES)
    _check.rank("rope", "cos", cos, "[P, C]")
    _check.rank("rope", "sin", sin, "[P, C]")
    _check.equal("rope", "sin", sin.shape, cos.shape, "the shape of cos")
    for name, table in (("cos", cos), ("sin", sin)):
        _check.dtype("rope", name, table, _DTYPES)
    (count, pairs), depth = cos.shape, x.shape[-1]
    if count == 0 or not 0 < 2 * pairs <= depth:
        raise ValueError(f"rope: cos has the shape {list(cos.shape)}; it has to be [P, C], C from 1 to {depth // 2}.")


def _positions(x: Array, cos: Array, positions: Any) -> Array:
    tokens = x.shape[:-2]
    if positions is None:
        if tokens[-1] > cos.shape[0]:
            raise ValueError(f"rope: x has {tokens[-1]} tokens, but cos has {cos.shape[0]} positions.")
        return jnp.broadcast_to(jnp.arange(tokens[-1], dtype=jnp.int32), tokens)
    _check.rank("rope", "positions", positions, "[S]" if getattr(positions, "ndim", 1) == 1 else _text(tokens))
    if tuple(positions.shape) not in (tokens, tokens[-1:]):
        raise ValueError(f"rope: positions has the shape {list(positions.shape)}; it has to be {_text(tokens)} or [S].")
    _check.dtype("rope", "positions", positions, (jnp.int32,))
    return jnp.broadcast_to(positions, tokens)


def _text(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _obstacles(x: Array, cos: Array) -> dict[str, str]:
    (heads, depth), positions = x.shape[-2:], cos.shape[0]
    tokens = x.size // max(1, heads * depth)
    facts = {"tokens": tokens, "heads": heads, "depth": depth, "positions": positions, "dtype": x.dtype.name}
    return {ROPE.name: _limits.obstacle(ROPE, **facts)}


def _angles(table: Array, positions: Array) -> Array:
    # Angles of tokens, [tokens, 1, C]. Unsigned numbers, because negative positions would count from the end.
    rows = jnp.take(table, positions.astype(jnp.uint32), axis=0, mode="fill", fill_value=jnp.nan)
    return rows[:, None]


def _pairs(x: Array, pairs: int, interleaved: bool) -> tuple[Array, Array]:
    wide = x[..., : 2 * pairs].astype(jnp.promote_types(x.dtype, jnp.float32))
    return (wide[..., ::2], wide[..., 1::2]) if interleaved else (wide[..., :pairs], wide[..., pairs:])


def _reference(x: Array, cos: Array, sin: Array, positions: Array, interleaved: bool, inverse: bool) -> Array:
    pairs = cos.shape[1]
    a, b = _pairs(x, pairs, interleaved)
    c, s = _angles(cos, positions), _angles(sin, positions) * (-1 if inverse else 1)
    first, second = (a * c - b * s).astype(x.dtype), (b * c + a * s).astype(x.dtype)
    if interleaved:
        turned = jnp.stack([first, second], axis=-1).reshape(*first.shape[:-1], 2 * pairs)
    else:
        turned = jnp.concatenate([first, second], axis=-1)
    return jnp.concatenate([turned, x[..., 2 * pairs :]], axis=-1)


_RULE = "* h d, count pairs, count pairs, * -> * h d"


@partial(jax.jit, static_argnums=(4, 5, 6))
def _turned(
    x: Array, cos: Array, sin: Array, positions: Array, interleaved: bool, inverse: bool, choice: Choice
) -> Array:
    def whole(x: Array, cos: Array, sin: Array, positions: Array) -> tuple[Array, ...]:
        def reference(x: Array, cos: Array, sin: Array, positions: Array) -> tuple[Array, ...]:
            return (_reference(x, cos, sin, positions, interleaved, inverse),)

        def call(tokens: int) -> Any:
            result = ((tokens, *x.shape[1:]), x.dtype)
            return ffi(ROPE, [result], interleaved=interleaved, inverse=inverse)

        kernel = rowwise(call, (True, False, False, True))
        return tuple(dispatch(choice, kernel, reference, x, cos, sin, positions))

    return by_rows(_RULE, whole, x, cos, sin, positions, by_rule=choice.backend != XLA, h=1)[0]


@partial(jax.jit, static_argnums=(4,))
def _table_gradients(dy: Array, x: Array, cos: Array, positions: Array, interleaved: bool) -> tuple[Array, Array]:
    def whole(dy: Array, x: Array, cos: Array, positions: Array) -> tuple[Array, ...]:
        pairs, places = cos.shape[1], positions.astype(jnp.uint32)
        (a, b), (da, db) = _pairs(x, pairs, interleaved), _pairs(dy, pairs, interleaved)
        zeros = vary(jnp.zeros(cos.shape, cos.dtype), varying(dy))
        sums = (jnp.sum(da * a + db * b, axis=1), jnp.sum(db * a - da * b, axis=1))
        return tuple(zeros.at[places].add(part.astype(cos.dtype), mode="drop") for part in sums)

    rule = "* h d, * h d, count pairs, * -> count pairs, count pairs"
    dcos, dsin = by_rows(rule, whole, dy, x, cos, positions, by_rule=False, h=1)
    return like(dcos, cos), like(dsin, cos)


def _primal(x: Array, cos: Array, sin: Array, positions: Array, interleaved: bool, choice: Choice) -> Array:
    out: Array = _turned(x, cos, sin, positions, interleaved, False, choice)
    return out


def _fwd(x: Any, cos: Any, sin: Any, positions: Any, interleaved: bool, choice: Choice) -> tuple[Array, Any]:
    values = x.value, cos.value, sin.value, positions.value
    # x is needed only for the gradients of the tables.
    kept = x.value if cos.perturbed or sin.perturbed else None
    return _primal(*values, interleaved, choice), (kept, *values[1:])


def _bwd(interleaved: bool, _choice: Choice, saved: Any, dy: Any) -> tuple[Any, ...]:
    x, cos, sin, positions = saved
    if isinstance(dy, jax.custom_derivatives.SymbolicZero):
        return None, None, None, None
    choice = choose("rope", obstacles=_obstacles(dy, cos))
    dx = _turned(dy, cos, sin, positions, interleaved, True, choice)
    dcos, dsin = (None, None) if x is None else _table_gradients(dy, x, cos, positions, interleaved)
    return dx, dcos, dsin, None


_rope = partial(jax.custom_vjp, nondiff_argnums=(4, 5))(_primal)
_rope.defvjp(_fwd, _bwd, symbolic_zeros=True)
