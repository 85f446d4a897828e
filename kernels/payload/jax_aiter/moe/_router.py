"""Router of a mixture of experts: softmax over the experts and the largest weights of each token."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_aiter import _check
from jax_aiter._choice import Choice, choose
from jax_aiter._evidence import Problem
from jax_aiter._native import dispatch
from jax_aiter._partition import Axes, Rule, like, partitioned
from jax_aiter._table import AITER
from jax_aiter.moe import _kernels

_DTYPES = (jnp.float32, jnp.float16, jnp.bfloat16, jnp.float64)


def topk_softmax(gating_output: Array, topk: int, renormalize: bool) -> tuple[Array, Array]:
    """Return the weights and numbers of the experts with the largest softmax of each token.

    Args:
        gating_output: [M, E], float32, float16 or bfloat16 (float64 with jax_enable_x64, by XLA only); computed in
            float32. Numbers, not NaN.
        topk: experts for each token, K; from 1 to E.
        renormalize: whether the weights of each token are divided by their sum.

    Returns:
        Weights [M, K], float32 (float64 for float64), in descending order, and expert numbers [M, K], int32. Of equal
        weights, the lower number comes first. If fewer than K weights are above 0 in float32, AITER's kernels may
        return an expert again with the weight 0. Weights are differentiable.

    Raises:
        ValueError: gating_output is no matrix, or topk is out of range.
        TypeError: the dtype does not fit, or topk is no integer.
        jax_aiter.BackendError: a forced backend is unavailable, or its kernels do not support these arguments.
    """
    operation = "topk_softmax"
    _check.rank(operation, "gating_output", gating_output, "[M, E]")
    _check.dtype(operation, "gating_output", gating_output, _DTYPES)
    if not isinstance(topk, int) or isinstance(topk, bool):
        raise TypeError(f"{operation}: topk is a {type(topk).__name__}; it has to be an integer.")
    experts = gating_output.shape[1]
    if not 1 <= topk <= experts:
        raise ValueError(f"{operation}: topk is {topk}; it has to be from 1 to the number of experts, {experts}.")
    tokens, renormalize = gating_output.shape[0], bool(renormalize)
    problem = Problem(tokens, experts, topk, f"{gating_output.dtype.name} renormalize={renormalize}")
    obstacles = {AITER: _kernels.router_obstacle(gating_output, topk, tokens)}
    choice = choose(operation, obstacles=obstacles, problem=problem)
    # The conversion is outside of the derivative below, so that gradients have the dtype of the argument.
    wide = gating_output.astype(jnp.promote_types(gating_output.dtype, jnp.float32))
    weights, ids = _topk_softmax(wide, topk, renormalize, choice)
    return weights, ids


def _weights(logits: Array, ids: Array, renormalize: bool) -> Array:
    chosen = jnp.take_along_axis(logits, ids, axis=1)
    if renormalize:
        return jax.nn.softmax(chosen, axis=1)
    return jnp.exp(chosen - jax.nn.logsumexp(logits, axis=1, keepdims=True))


@partial(jax.jit, static_argnums=(1, 2, 3))
def _forward(logits: Array, topk: int, renormalize: bool, choice: Choice) -> tuple[Array, ...]:
    def reference(logits: Array) -> tuple[Array, ...]:
        ids = jax.lax.top_k(logits, topk)[1].astype(jnp.int32)
        return _weights(logits, ids, renormalize), ids

    def kernel(logits: Array) -> tuple[Array, ...]:
        return _kernels.router(logits, topk, renormalize)

    def local(_axes: Axes, logits: Array) -> tuple[Array, ...]:
        weights, ids = dispatch(choice, kernel, reference, logits)
        return weights, ids

    return partitioned(Rule.parse("m e -> m k, m k", m=1), local, logits, by_rule=True)


@partial(jax.jit, static_argnums=3)
def _backward(dweights: Array, logits: Array, ids: Array, renormalize: bool) -> Array:
    def local(_axes: Axes, dweights: Array, logits: Array, ids: Array) -> tuple[Array, ...]:
        _, pull = jax.vjp(lambda logits: _weights(logits, ids, renormalize), logits)
        gradients: tuple[Array, ...] = pull(dweights)
        return gradients

    (found,) = partitioned(Rule.parse("m k, m e, m k -> m e", m=1), local, dweights, logits, ids, by_rule=True)
    return like(found, logits)


def _primal(logits: Array, topk: int, renormalize: bool, choice: Choice) -> tuple[Array, Array]:
    weights, ids = _forward(logits, topk, renormalize, choice)
    return weights, ids


def _fwd(logits: Array, topk: int, renormalize: bool, choice: Choice) -> tuple[tuple[Array, Array], Any]:
    weights, ids = _forward(logits, topk, renormalize, choice)
    return (weights, ids), (logits, ids)


def _bwd(_topk: int, renormalize: bool, _choice: Choice, saved: Any, cotangents: Any) -> Any:
    return (_backward(cotangents[0], *saved, renormalize),)


_topk_softmax = partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))(_primal)
_topk_softmax.defvjp(_fwd, _bwd)
