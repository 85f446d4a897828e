"""The experts of a mixture of experts as one operation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_aiter import _check
from jax_aiter._choice import Choice, choose
from jax_aiter._evidence import Problem
from jax_aiter._native import contract, dispatch, together
from jax_aiter._partition import Axes, Rule, like, partitioned, total
from jax_aiter._quantised import not_differentiable
from jax_aiter._table import AITER
from jax_aiter.layouts import shuffle_weight, unshuffle_weight
from jax_aiter.moe import _grouped, _kernels
from jax_aiter.moe._grouped import ACTIVATIONS, activated, expert_of

__all__ = ["LAYOUT", "fused_moe"]

LAYOUT = (16, 16)
"""Layout of `w1` and `w2` for the kernels; argument of jax_aiter.layouts.shuffle_weight."""

_FLOATS = (jnp.float32, jnp.float16, jnp.bfloat16, jnp.float64)
_BYTES = (jnp.int8, jnp.float8_e4m3fn, jnp.float8_e4m3fnuz)
_RULE = "m d, e n d, e d i, m k, m k"
"""Dimensions of hidden_states, w1, w2, topk_weight and topk_ids."""


@dataclass(frozen=True, slots=True)
class _Config:
    # choice, activation, whether weights have the kernels' order, and the dtype of the result.
    choice: Choice
    activation: str
    shuffled: bool
    out: str


def fused_moe(
    hidden_states: Array,
    w1: Array,
    w2: Array,
    topk_weight: Array,
    topk_ids: Array,
    *,
    activation: str = "silu",
    w1_scale: Array | None = None,
    w2_scale: Array | None = None,
    a1_scale: Array | None = None,
    preshuffled: bool = False,
) -> Array:
    """Compute sum(topk_weight * expert(hidden_states)) over the experts of each token.

    An expert is act(x @ gate.T) * (x @ up.T) @ w2.T, where w1 is gate and up one after the other, or act(x @ w1.T) @
    w2.T if w1 has I rows.

    Args:
        hidden_states: [M, D], float32, float16 or bfloat16 (float64 with jax_enable_x64). For quantised weights also
            their dtype, with `a1_scale`; floats are quantised to it with a scale for each token.
        w1: [E, 2 I, D] or [E, I, D], of the dtype of hidden_states, or int8, float8_e4m3fn or float8_e4m3fnuz.
        w2: [E, D, I], of the dtype of w1.
        topk_weight: [M, K], a floating dtype.
        topk_ids: [M, K], an integer dtype; experts other than 0 to E - 1 contribute nothing, so that devices with a
            part of the experts pass numbers relative to their first expert.
        activation: "silu" or "gelu" (with erf).
        w1_scale: for quantised weights, the scale of each row: [E, 2 I] or [E, 2 I, 1] (I as in w1), float32.
        w2_scale: [E, D] or [E, D, 1], float32.
        a1_scale: [M, 1] or [M], float32, for quantised hidden_states.
        preshuffled: whether w1 and w2 have the order of `shuffle_weight(w, LAYOUT)`. Row-major weights are reordered
            at every call of a kernel.

    Returns:
        [M, D], of the dtype of hidden_states; bfloat16 if that is quantised. Differentiable in hidden_states, w1, w2
        and topk_weight unless the weights are quantised.

    Raises:
        ValueError: shapes or the activation do not fit, or a scale is missing.
        TypeError: dtypes do not fit.
        jax_aiter.NotDifferentiableError: the operation was differentiated with quantised weights.
        jax_aiter.BackendError: a forced backend is unavailable, or its kernels do not support these arguments.
    """
    _validate(hidden_states, w1, w2, topk_weight, topk_ids, activation)
    quantised = any(w1.dtype == one for one in _BYTES)
    scales = {"w1_scale": w1_scale, "w2_scale": w2_scale, "a1_scale": a1_scale}
    made = _scales(hidden_states, w1, w2, scales) if quantised else _no_scales(scales)
    wide = jnp.promote_types(hidden_states.dtype, jnp.float32) if not quantised else jnp.float32
    weights = topk_weight.astype(wide)
    out = "bfloat16" if hidden_states.dtype == w1.dtype and quantised else hidden_states.dtype.name
    obstacle = _kernels.experts_obstacle(hidden_states, w1, w2, topk_ids.shape[1], out)
    problem = _problem(w1, w2, topk_ids, activation, preshuffled)
    choice = choose("fused_moe", obstacles={AITER: obstacle}, problem=problem)
    config = _Config(choice, activation, preshuffled, out)
    ids = topk_ids.astype(jnp.int32)
    result: Array
    if not quantised:
        result = _fused(config, *together(hidden_states, w1, w2, weights, ids))
        return result
    x, a1 = (hidden_states, made[2]) if made[2] is not None else quantise(hidden_states, w1.dtype)
    result = _quantised(config, *together(x, w1, w2, weights, ids, a1, made[0], made[1]))
    return result


def _problem(w1: Array, w2: Array, ids: Array, activation: str, preshuffled: bool) -> Problem:
    experts, depth, inner = w2.shape
    gated = w1.shape[1] != inner
    text = f"{w1.dtype.name} {activation} experts={experts} topk={ids.shape[1]} up={gated} preshuffled={preshuffled}"
    return Problem(ids.shape[0], depth, inner, text)


def quantise(x: Array, dtype: Any) -> tuple[Array, Array]:
    """Return each token's numbers divided by its scale, in a quantised dtype, and the scales [M, 1] in float32."""
    wide = x.astype(jnp.float32)
    whole = jnp.issubdtype(dtype, jnp.integer)
    most = float(jnp.iinfo(dtype).max if whole else jnp.finfo(dtype).max)
    largest = jnp.max(jnp.abs(wide), axis=1, keepdims=True, initial=0)
    scale = jnp.where(largest > 0, largest / most, 1)
    values = jnp.clip(wide / scale, -most, most)
    return (jnp.round(values) if whole else values).astype(dtype), scale


def _validate(x: Any, w1: Any, w2: Any, weight: Any, ids: Any, activation: str) -> None:
    operation = "fused_moe"
    for name, array, shape in (
        ("hidden_states", x, "[M, D]"),
        ("w1", w1, "[E, N, D]"),
        ("w2", w2, "[E, D, I]"),
        ("topk_weight", weight, "[M, K]"),
        ("topk_ids", ids, "[M, K]"),
    ):
        _check.rank(operation, name, array, shape)
    (tokens, depth), (experts, _, inner) = x.shape, w2.shape
    _check.equal(operation, "w2", w2.shape, (experts, depth, inner), "[E, D, I]")
    if w1.shape not in ((experts, inner, depth), (experts, 2 * inner, depth)) or 0 in (*w1.shape, *w2.shape):
        raise ValueError(
            f"{operation}: w1 has the shape {list(w1.shape)}; it has to be [E, 2 I, D] = "
            f"{[experts, 2 * inner, depth]} or [E, I, D] = {[experts, inner, depth]}, without an empty dimension."
        )
    topk = ids.shape[1]
    _check.equal(operation, "topk_weight", weight.shape, (tokens, topk), "[M, K]")
    _check.equal(operation, "topk_ids", ids.shape, (tokens, topk), "[M, K]")
    if topk == 0:
        raise ValueError(f"{operation}: topk_ids has the shape {list(ids.shape)}; there has to be an expert.")
    _check.dtype(operation, "w1", w1, (*_FLOATS, *_BYTES))
    _check.dtype(operation, "w2", w2, (w1.dtype,))
    floats = any(w1.dtype == one for one in _FLOATS)
    _check.dtype(operation, "hidden_states", x, (w1.dtype,) if floats else (*_FLOATS[:3], w1.dtype))
    _check.dtype(operation, "topk_weight", weight, _FLOATS)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise TypeError(f"{operation}: topk_ids has the dtype {ids.dtype}; it has to be an integer dtype.")
    if activation not in ACTIVATIONS:
        raise ValueError(f"{operation}: activation is {activation!r}; it has to be {' or '.join(ACTIVATIONS)}.")


def _no_scales(scales: dict[str, Any]) -> tuple[None, None, None]:
    given = next((name for name, scale in scales.items() if scale is not None), "")
    if given:
        raise ValueError(f"fused_moe: {given} is given, but w1 is not quantised.")
    return None, None, None


def _scales(x: Array, w1: Array, w2: Array, scales: dict[str, Any]) -> tuple[Any, ...]:
    # w1_scale [E, N], w2_scale [E, D], a1_scale [M, 1] or None.
    quantised = x.dtype == w1.dtype
    if not quantised and scales["a1_scale"] is not None:
        raise ValueError(f"fused_moe: a1_scale is given, but hidden_states has the dtype {x.dtype}.")
    found: list[Any] = []
    for name, shape in (("w1_scale", w1.shape[:2]), ("w2_scale", w2.shape[:2]), ("a1_scale", (x.shape[0],))):
        scale = scales[name]
        if name == "a1_scale" and not quantised:
            found.append(None)
            continue
        if scale is None:
            raise ValueError(f"fused_moe: {name} is missing; quantised numbers need a scale.")
        if getattr(scale, "ndim", 0) == len(shape) + 1 and scale.shape[-1] == 1:
            scale = scale[..., 0]
        _check.rank("fused_moe", name, scale, "[E, rows]" if len(shape) == 2 else "[M]")
        _check.equal("fused_moe", name, scale.shape, shape, f"{list(shape)}, possibly with a last dimension of 1,")
        _check.dtype("fused_moe", name, scale, (jnp.float32,))
        found.append(scale[:, None] if name == "a1_scale" else scale)
    return tuple(found)


def _plain(config: _Config, weight: Array) -> Array:
    return unshuffle_weight(weight, LAYOUT) if config.shuffled else weight


def _tiled(config: _Config, weight: Array) -> Array:
    return weight if config.shuffled else shuffle_weight(weight, LAYOUT)


def _mine(ids: Array, axes: Axes, experts: int) -> Array:
    # Expert numbers relative to the first expert of this device.
    return ids - jax.lax.axis_index(axes["e"]) * experts if "e" in axes else ids


def _kernel(config: _Config, x: Array, w1: Array, w2: Array, weights: Array, ids: Array, *scales: Array) -> Array:
    w1, w2 = _tiled(config, w1), _tiled(config, w2)
    # Devices that have a part of the experts add their results in float32.
    return _kernels.experts(x, w1, w2, weights, ids, *scales, activation=config.activation).astype(weights.dtype)


@partial(jax.jit, static_argnums=0)
def _forward(config: _Config, x: Array, w1: Array, w2: Array, weights: Array, ids: Array) -> Array:
    def reference(x: Array, w1: Array, w2: Array, weights: Array, ids: Array) -> Array:
        w1, w2 = _plain(config, w1), _plain(config, w2)
        steps = _grouped.products(x, w1, w2, config.activation, weights.dtype)
        return _grouped.forward(x, weights, ids, w1.shape[0], *steps)

    def local(axes: Axes, x: Array, w1: Array, w2: Array, weights: Array, ids: Array) -> tuple[Array, ...]:
        ids = _mine(ids, axes, w1.shape[0])
        out = dispatch(config.choice, partial(_kernel, config), reference, x, w1, w2, weights, ids)
        return (total(out, axes, "e").astype(config.out),)

    return partitioned(Rule.parse(f"{_RULE} -> m d", m=1, e=1), local, x, w1, w2, weights, ids, by_rule=True)[0]


@partial(jax.jit, static_argnums=0)
def _backward(
    config: _Config, dout: Array, x: Array, w1: Array, w2: Array, weights: Array, ids: Array
) -> tuple[Array, ...]:
    def local(axes: Axes, dout: Array, x: Array, w1: Array, w2: Array, *rest: Array) -> tuple[Array, ...]:
        weights, ids = rest[0], _mine(rest[1], axes, w1.shape[0])
        w1, w2 = _plain(config, w1), _plain(config, w2)
        dx, dw1, dw2, dweights = _grouped.backward(dout, x, w1, w2, weights, ids, config.activation)
        dw1, dw2 = (total(part, axes, "m").astype(x.dtype) for part in (dw1, dw2))
        if config.shuffled:
            dw1, dw2 = shuffle_weight(dw1, LAYOUT), shuffle_weight(dw2, LAYOUT)
        return total(dx, axes, "e").astype(x.dtype), dw1, dw2, total(dweights, axes, "e")

    rule = Rule.parse(f"m d, {_RULE} -> m d, e n d, e d i, m k", m=1, e=1)
    found = partitioned(rule, local, dout, x, w1, w2, weights, ids, by_rule=True)
    return tuple(like(part, operand) for part, operand in zip(found, (x, w1, w2, weights), strict=True))


def _fwd(config: _Config, *operands: Array) -> tuple[Array, Any]:
    return _forward(config, *operands), operands


def _bwd(config: _Config, saved: Any, dout: Array) -> Any:
    return (*_backward(config, dout, *saved), None)


_fused = partial(jax.custom_vjp, nondiff_argnums=(0,))(_forward)
_fused.defvjp(_fwd, _bwd)


def _quantised_by_parts(config: _Config, *operands: Array) -> Array:
    def reference(x: Array, w1: Array, w2: Array, weights: Array, ids: Array, *scales: Array) -> Array:
        w1, w2 = _plain(config, w1), _plain(config, w2)
        of_x, of_w1, of_w2 = scales
        whole = jnp.issubdtype(w1.dtype, jnp.integer)
        # bfloat16 has all numbers of these dtypes; int8 is summed in int32.
        kind, sums = (jnp.int8, jnp.int32) if whole else (jnp.bfloat16, jnp.float32)

        def first(rows: Array, tokens: Array, expert: Array) -> Array:
            hidden = contract("rd,nd->rn", rows.astype(kind), expert_of(w1, expert).astype(kind), sums)
            scaled = hidden.astype(jnp.float32) * _grouped.rows_of(of_x, tokens) * of_w1[expert]
            return activated(scaled, config.activation, w2.shape[2])

        def second(inner: Array, expert: Array) -> Array:
            narrow, weight = inner.astype(jnp.bfloat16), expert_of(w2, expert).astype(jnp.bfloat16)
            return contract("ri,di->rd", narrow, weight, jnp.float32) * of_w2[expert]

        return _grouped.forward(x, weights, ids, w1.shape[0], first, second)

    def local(axes: Axes, x: Array, w1: Array, w2: Array, weights: Array, ids: Array, *scales: Array) -> Any:
        ids = _mine(ids, axes, w1.shape[0])
        out = dispatch(config.choice, partial(_kernel, config), reference, x, w1, w2, weights, ids, *scales)
        return (total(out, axes, "e").astype(config.out),)

    rule = Rule.parse(f"{_RULE}, m one, e n, e d -> m d", m=1, e=1)
    return partitioned(rule, local, *operands, by_rule=True)[0]


_quantised = not_differentiable(
    "fused_moe",
    "its weights are quantised. Apply jax.lax.stop_gradient to its arguments, or differentiate it with floats",
    _quantised_by_parts,
)
