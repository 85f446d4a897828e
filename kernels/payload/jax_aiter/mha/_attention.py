"""Attention of a batch of sequences with its gradient, the common core of both API functions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero

from jax_aiter._choice import Choice
from jax_aiter._native import dispatch, vary, varying
from jax_aiter.mha import _blocks, _division, _gradients, _kernels, _rows
from jax_aiter.mha._blocks import Config, Gradients
from jax_aiter.mha._kernels import Plan
from jax_aiter.mha._operands import Given, Operands
from jax_aiter.mha._rows import Rows


def _grouped(operands: Operands) -> Operands:
    # Group the heads of queries that share a head of keys.
    heads = operands.k.shape[2]

    def split(array: Array, axis: int) -> Array:
        shape = array.shape
        return array.reshape(
            *shape[:axis], heads, shape[axis] // heads, *shape[axis + 1 :]
        )

    slopes = None if operands.slopes is None else split(operands.slopes, 1)
    return operands._replace(q=split(operands.q, 2), slopes=slopes)


def _sequence(one: Operands, rows: Rows, seed: Array, place: Array) -> _blocks.Sequence:
    return _blocks.Sequence(
        one.q, one.k, one.v, one.bias, one.slopes, rows, seed, place
    )


def _places(operands: Operands, given: Given) -> Array:
    # [B, 2]: indices of each sequence and of its first head, of which an operand is
    # only the part of one device.
    batch = jnp.arange(operands.q.shape[0], dtype=jnp.int32)
    places = jnp.stack([batch, jnp.zeros_like(batch)], axis=1)
    return places if given.first is None else places + given.first


def _axes(given: Given) -> tuple[Any, ...]:
    return (
        Operands(0, 0, 0, None, 0),
        (0 if given.rows.start.ndim == 2 else None),
        None,
        0,
    )


def _blocks_forward(
    config: Config, operands: Operands, given: Given
) -> tuple[Array, Array]:
    grouped = _grouped(operands)
    places = _places(operands, given)

    def one(
        part: Operands, rows: Rows, seed: Array, index: Array
    ) -> tuple[Array, Array]:
        return _blocks.forward(config, _sequence(part, rows, seed, index))

    out, lse = jax.vmap(one, in_axes=_axes(given))(
        grouped, given.rows, given.seed, places
    )
    shape = operands.q.shape[:3]
    return out.reshape(*shape, out.shape[-1]), lse.reshape(shape).transpose(0, 2, 1)


def _blocks_backward(
    config: Config,
    operands: Operands,
    given: Given,
    saved: tuple[Array, Array],
    cotangents: tuple[Array, Array],
) -> Operands:
    grouped = _grouped(operands)
    places = _places(operands, given)
    shape = grouped.q.shape[:4]

    def split(array: Array) -> Array:
        return array.reshape(*shape, *array.shape[3:])

    (out, lse), (dout, dlse) = saved, cotangents
    more = (
        split(lse.transpose(0, 2, 1)),
        split(out),
        split(dout),
        split(dlse.transpose(0, 2, 1)),
    )

    def one(
        part: Operands, rows: Rows, seed: Array, index: Array, *rest: Array
    ) -> Gradients:
        return _blocks.backward(config, _sequence(part, rows, seed, index), *rest)

    if operands.bias is None:
        grads = jax.vmap(one, in_axes=(*_axes(given), 0, 0, 0, 0))(
            grouped, given.rows, given.seed, places, *more
        )
    else:
        # Sequences run one after the other, so that only one gradient of the bias is in
        # memory.
        rows = Rows(
            *(jnp.broadcast_to(part, (shape[0], shape[1])) for part in given.rows)
        )
        parts = (grouped._replace(bias=None), rows, places, more)

        def step(total: Array, xs: Any) -> tuple[Array, Gradients]:
            part, of_part, index, rest = xs
            grads = one(
                part._replace(bias=operands.bias), of_part, given.seed, index, *rest
            )
            return total + grads.bias, grads._replace(bias=None)

        wide = jnp.promote_types(operands.q.dtype, jnp.float32)
        axes = frozenset[str]().union(*map(varying, jax.tree.leaves(operands)))
        dbias, grads = jax.lax.scan(
            step, vary(jnp.zeros(operands.bias.shape, wide), axes), parts
        )
        grads = grads._replace(bias=dbias.astype(operands.bias.dtype))
    return Operands(
        q=grads.q.reshape(operands.q.shape).astype(operands.q.dtype),
        k=grads.k.astype(operands.k.dtype),
        v=grads.v.astype(operands.v.dtype),
        bias=grads.bias,
        slopes=None
        if operands.slopes is None
        else grads.slopes.reshape(operands.slopes.shape).astype(operands.slopes.dtype),
    )


def _forward(plan: Plan, operands: Operands, given: Given) -> tuple[Array, Array]:
    reference = partial(_blocks_forward, plan.task.config)

    def kernel(operands: Operands, given: Given) -> tuple[Array, Array]:
        if not _kernels.needs_keys(plan):
            return _kernels.forward(plan, operands, given)
        complete = _rows.all_see(given.rows, given.cu_q)
        out, lse = jax.lax.cond(
            complete, partial(_kernels.forward, plan), reference, operands, given
        )
        return out, lse

    out, lse = dispatch(plan.forward, kernel, reference, operands, given)
    return out, lse


def _backward(
    plan: Plan,
    choice: Choice,
    operands: Operands,
    given: Given,
    saved: tuple[Array, Array],
    dout: Array,
    dlse: Array,
) -> Operands:
    def kernel(
        operands: Operands,
        given: Given,
        saved: tuple[Array, Array],
        cotangents: tuple[Array, Array],
    ) -> Operands:
        grads = _gradients.backward(plan, choice, operands, given, saved, cotangents)
        # The kernel is not chosen if these gradients are requested, so no caller needs
        # them.
        others = (
            None if part is None else jnp.zeros_like(part) for part in operands[3:]
        )
        return Operands(*grads[:3], *others)

    reference = partial(_blocks_backward, plan.task.config)
    grads: Operands = dispatch(
        choice, kernel, reference, operands, given, saved, (dout, dlse)
    )
    return grads


def _divided_forward(
    plan: Plan, operands: Operands, given: Given
) -> tuple[Array, Array]:
    dropout = plan.task.config.dropout
    return _division.forward(
        plan.forward, dropout, partial(_forward, plan), operands, given
    )


def _divided_backward(plan: Plan, choice: Choice, *arguments: Any) -> Operands:
    operands, given, saved, dout, dlse = arguments
    dropout = plan.task.config.dropout
    function = partial(_backward, plan, choice)
    return _division.backward(
        choice, dropout, function, operands, given, saved, (dout, dlse)
    )


_jit_forward = jax.jit(_divided_forward, static_argnums=0)
_jit_backward = jax.jit(_divided_backward, static_argnums=(0, 1))


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True)
class _Asked:
    # Requested gradients.
    bias: bool
    slopes: bool


def _primal(plan: Plan, operands: Operands, given: Given) -> tuple[Array, Array]:
    out, lse = _jit_forward(plan, operands, given)
    return out, lse


def _fwd(plan: Plan, operands: Any, given: Any) -> Any:
    requested = _Asked(
        *(
            part is not None and part.perturbed
            for part in (operands.bias, operands.slopes)
        )
    )
    operands, given = jax.tree.map(lambda part: part.value, (operands, given))
    saved = _jit_forward(plan, operands, given)
    return saved, (operands, given, saved, requested)


def _bwd(plan: Plan, kept: Any, cotangents: Any) -> Any:
    operands, given, saved, requested = kept
    has_dlse = plan.task.returns_lse and not isinstance(cotangents[1], SymbolicZero)
    choice = _kernels.choose_backward(
        plan, operands, dbias=requested.bias, dslopes=requested.slopes, dlse=has_dlse
    )
    dout, dlse = (
        _whole(part, like) for part, like in zip(cotangents, saved, strict=True)
    )
    return _jit_backward(plan, choice, operands, given, saved, dout, dlse), None


def _whole(cotangent: Any, like: Array) -> Array:
    return jnp.zeros_like(like) if isinstance(cotangent, SymbolicZero) else cotangent


attention = partial(jax.custom_vjp, nondiff_argnums=(0,))(_primal)
"""(plan, operands, given) -> out [B, queries, H, Dv], lse [B, H, queries]."""
attention.defvjp(_fwd, _bwd, symbolic_zeros=True)


def probabilities(
    config: Config, operands: Operands, given: Given, lse: Array
) -> Array:
    """Return all probabilities as they multiply v, [B, H, queries, keys], without a gradient."""
    operands = operands.with_all_slopes()
    grouped = _grouped(operands)
    places = _places(operands, given)
    saved = lse.transpose(0, 2, 1).reshape(grouped.q.shape[:4])

    def one(
        part: Operands, rows: Rows, seed: Array, index: Array, of_part: Array
    ) -> Array:
        return _blocks.probabilities(
            config, _sequence(part, rows, seed, index), of_part
        )

    found = jax.vmap(one, in_axes=(*_axes(given), 0))(
        grouped, given.rows, given.seed, places, saved
    )
    return jax.lax.stop_gradient(found.reshape(*lse.shape, operands.k.shape[1]))
