"""Attention of a batch of sequences with its gradient, the common core of both API functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero

from jax_aiter._choice import Choice
from jax_aiter._native import Arrays, all_varying, dispatch, vary
from jax_aiter.mha import _blocks, _division, _gradients, _kernels, _rows
from jax_aiter.mha._blocks import Config, Gradients, Sequence
from jax_aiter.mha._kernels import Plan
from jax_aiter.mha._operands import Backward, Given, Operands, Pair
from jax_aiter.mha._rows import Rows


def _sequences(operands: Operands, given: Given) -> tuple[Sequence, Any]:
    # The sequences of a batch, with the heads of queries that share a head of keys in a
    # group, and the axis of the batch in each part.
    batch, queries, heads, depth = operands.q.shape
    key_heads = operands.k.shape[2]
    grouped = (key_heads, heads // key_heads)
    slopes = operands.slopes
    if slopes is not None:
        slopes = slopes.reshape(batch, *grouped)
    index = jnp.arange(batch, dtype=jnp.int32)
    places = jnp.stack([index, jnp.zeros_like(index)], axis=1)
    # The operands may be only the part of one device.
    if given.first is not None:
        places = places + given.first
    sequences = Sequence(
        q=operands.q.reshape(batch, queries, *grouped, depth),
        k=operands.k,
        v=operands.v,
        bias=operands.bias,
        slopes=slopes,
        rows=given.rows,
        seed=given.seed,
        place=places,
    )
    of_rows = 0 if given.rows.start.ndim == 2 else None
    axes: Any = (0, 0, 0, None, 0, of_rows, None, 0)
    return sequences, Sequence(*axes)


def _blocks_forward(
    config: Config,
    operands: Operands,
    given: Given,
) -> Pair:
    sequences, axes = _sequences(operands, given)
    one = partial(_blocks.forward, config)
    out, lse = jax.vmap(one, in_axes=(axes,))(sequences)
    shape = operands.q.shape[:3]
    return out.reshape(*shape, out.shape[-1]), lse.reshape(shape).transpose(0, 2, 1)


def _blocks_backward(
    config: Config,
    arguments: Backward,
) -> Operands:
    operands, given, (out, lse), (dout, dlse) = arguments
    sequences, axes = _sequences(operands, given)
    shape = sequences.q.shape[:4]

    def split(array: Array) -> Array:
        return array.reshape(*shape, *array.shape[3:])

    more = (
        split(lse.transpose(0, 2, 1)),
        split(out),
        split(dout),
        split(dlse.transpose(0, 2, 1)),
    )
    one = partial(_blocks.backward, config)
    if operands.bias is None:
        grads = jax.vmap(one, in_axes=(axes, 0, 0, 0, 0))(sequences, *more)
    else:
        grads = _one_by_one(one, sequences, more, operands)
    dslopes = grads.slopes
    if operands.slopes is not None:
        dslopes = dslopes.reshape(operands.slopes.shape).astype(operands.slopes.dtype)
    return Operands(
        q=grads.q.reshape(operands.q.shape).astype(operands.q.dtype),
        k=grads.k.astype(operands.k.dtype),
        v=grads.v.astype(operands.v.dtype),
        bias=grads.bias,
        slopes=dslopes,
    )


def _one_by_one(
    function: Callable[..., Gradients],
    sequences: Sequence,
    more: Arrays,
    operands: Operands,
) -> Any:
    # Sequences run one after the other, so that only one gradient of the bias is in
    # memory.
    bias: Any = sequences.bias
    seed = sequences.seed
    shape = sequences.q.shape[:2]
    rows = Rows(*(jnp.broadcast_to(part, shape) for part in sequences.rows))
    parts = sequences._replace(bias=None, seed=None, rows=rows)

    def step(total: Array, xs: Any) -> tuple[Array, Gradients]:
        part, rest = xs
        grads = function(part._replace(bias=bias, seed=seed), *rest)
        return total + grads.bias, grads._replace(bias=None)

    wide = jnp.promote_types(operands.q.dtype, jnp.float32)
    axes = all_varying(*jax.tree.leaves(operands))
    zeros = vary(jnp.zeros_like(bias, wide), axes)
    dbias, grads = jax.lax.scan(step, zeros, (parts, more))
    return grads._replace(bias=dbias.astype(bias.dtype))


def _forward(
    plan: Plan,
    operands: Operands,
    given: Given,
) -> Pair:
    reference = partial(_blocks_forward, plan.task.config)
    kernel = partial(_kernels.forward, plan)

    def checked(operands: Operands, given: Given) -> Pair:
        complete = _rows.all_see(given.rows, given.cu_q)
        out, lse = jax.lax.cond(complete, kernel, reference, operands, given)
        return out, lse

    chosen = checked if _kernels.needs_keys(plan) else kernel
    out, lse = dispatch(plan.forward, chosen, reference, operands, given)
    return out, lse


def _backward(
    plan: Plan,
    choice: Choice,
    arguments: Backward,
) -> Operands:
    def kernel(arguments: Backward) -> Operands:
        grads = _gradients.backward(plan.task, choice, arguments)
        # The kernel is not chosen if these gradients are requested, so no caller needs
        # them.
        unused = jax.tree.map(jnp.zeros_like, arguments.operands[3:])
        return Operands(*grads, *unused)

    reference = partial(_blocks_backward, plan.task.config)
    grads: Operands = dispatch(choice, kernel, reference, arguments)
    return grads


def _divided_forward(
    plan: Plan,
    operands: Operands,
    given: Given,
) -> Pair:
    dropout = plan.task.config.dropout
    function = partial(_forward, plan)
    return _division.forward(plan.forward, dropout, function, operands, given)


def _divided_backward(
    plan: Plan,
    choice: Choice,
    arguments: Backward,
) -> Operands:
    dropout = plan.task.config.dropout
    function = partial(_backward, plan, choice)
    return _division.backward(choice, dropout, function, arguments)


_jit_forward = jax.jit(_divided_forward, static_argnums=0)
_jit_backward = jax.jit(_divided_backward, static_argnums=(0, 1))


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True)
class _Asked:
    # Requested gradients.
    bias: bool
    slopes: bool


def _primal(
    plan: Plan,
    operands: Operands,
    given: Given,
) -> Pair:
    out, lse = _jit_forward(plan, operands, given)
    return out, lse


def _fwd(
    plan: Plan,
    operands: Any,
    given: Any,
) -> Any:
    bias, slopes = operands.bias, operands.slopes
    requested = _Asked(
        bias=bias is not None and bias.perturbed,
        slopes=slopes is not None and slopes.perturbed,
    )
    operands, given = jax.tree.map(lambda part: part.value, (operands, given))
    saved = _jit_forward(plan, operands, given)
    return saved, (operands, given, saved, requested)


def _bwd(
    plan: Plan,
    kept: Any,
    cotangents: Any,
) -> Any:
    operands, given, saved, requested = kept
    has_dlse = plan.task.returns_lse and not isinstance(cotangents[1], SymbolicZero)
    choice = _kernels.choose_backward(
        plan, operands, dbias=requested.bias, dslopes=requested.slopes, dlse=has_dlse
    )
    whole = tuple(map(_whole, cotangents, saved))
    arguments = Backward(operands, given, saved, whole)
    return _jit_backward(plan, choice, arguments), None


def _whole(cotangent: Any, like: Array) -> Array:
    return jnp.zeros_like(like) if isinstance(cotangent, SymbolicZero) else cotangent


attention = partial(jax.custom_vjp, nondiff_argnums=(0,))(_primal)
"""(plan, operands, given) -> out [B, queries, H, Dv], lse [B, H, queries]."""
attention.defvjp(_fwd, _bwd, symbolic_zeros=True)


def probabilities(
    config: Config,
    operands: Operands,
    given: Given,
    lse: Array,
) -> Array:
    """Return all probabilities as they multiply v, [B, H, queries, keys], without a gradient."""
    sequences, axes = _sequences(operands.with_all_slopes(), given)
    saved = lse.transpose(0, 2, 1).reshape(sequences.q.shape[:4])
    one = partial(_blocks.probabilities, config)
    found = jax.vmap(one, in_axes=(axes, 0))(sequences, saved)
    return jax.lax.stop_gradient(found.reshape(*lse.shape, operands.k.shape[1]))
