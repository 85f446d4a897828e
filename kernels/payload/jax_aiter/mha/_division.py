"""Division of attention between devices, by sequences of the batch and by heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_aiter._choice import Choice
from jax_aiter._native import Arrays
from jax_aiter._partition import Axes, Local, Rule, like, partitioned, total
from jax_aiter._table import XLA
from jax_aiter.mha._operands import Backward, Given, Operands, Pair

_OUT = "b q h e"
_LSE = "b h q"


def forward(
    choice: Choice,
    dropout: float,
    function: Callable[[Operands, Given], Pair],
    operands: Operands,
    given: Given,
) -> Pair:
    """Return function(operands, given), divided between devices.

    Args:
        choice: implementation of the function.
        dropout: probability of being dropped.
        function: attention.
        operands, given: its arguments.
    """
    leaves, tree = jax.tree.flatten((operands, given))

    def local(axes: Axes, *leaves: Array) -> Arrays:
        operands, given = jax.tree.unflatten(tree, leaves)
        return function(operands.with_all_slopes(), _placed(axes, operands, given))

    dims = [*_dims(operands), *_dims_of_given(given)]
    out, lse = _divided(
        choice,
        dropout,
        local,
        leaves,
        dims,
        [_OUT, _LSE],
    )
    return out, lse


def backward(
    choice: Choice,
    dropout: float,
    function: Callable[[Backward], Operands],
    arguments: Backward,
) -> Operands:
    """Return a function for the gradients of the operands, divided between devices."""
    leaves, tree = jax.tree.flatten(arguments)
    operands = arguments.operands
    results = _dims(operands)

    def local(axes: Axes, *leaves: Array) -> Arrays:
        part: Any = jax.tree.unflatten(tree, leaves)
        operands = part.operands
        placed = _placed(axes, operands, part.given)
        part = part._replace(operands=operands.with_all_slopes(), given=placed)
        grads = function(part)
        if grads.slopes is not None and operands.slopes.ndim == 1:
            grads = grads._replace(slopes=grads.slopes.sum(0))
        sum_of = partial(_summed, axes)
        return tuple(map(sum_of, jax.tree.leaves(grads), results))

    dims = [*results, *_dims_of_given(arguments.given), *[_OUT, _LSE] * 2]
    grads = _divided(
        choice,
        dropout,
        local,
        leaves,
        dims,
        results,
    )
    placed = map(like, grads, jax.tree.leaves(operands))
    gradients: Operands = jax.tree.unflatten(jax.tree.structure(operands), placed)
    return gradients


def _divided(
    choice: Choice,
    dropout: float,
    local: Local,
    leaves: Sequence[Array],
    dims: Sequence[str],
    results: Sequence[str],
) -> Arrays:
    kernel = choice.backend != XLA
    # Kernels count sequences and heads from 0, so that with dropout each device needs
    # all of them.
    parts = {} if kernel and dropout else {"b": 1, "h": 1}
    rule = Rule.parse(f"{', '.join(dims)} -> {', '.join(results)}", **parts)
    # XLA gathers the batch for the loop over sequences that sums the gradient of a
    # bias, and runs blocks that any sequence needs if sequences have lengths of their
    # own.
    by_rule = kernel or "q k" in dims or "b q" in dims
    return partitioned(rule, local, *leaves, by_rule=by_rule)


def _dims(operands: Operands) -> list[str]:
    # A device needs the heads of keys that its heads of queries share; a single head is
    # on all devices.
    heads = operands.q.shape[2]
    of_keys = operands.k.shape[2]
    shared = "one" if of_keys == 1 else "h'"
    if of_keys == heads:
        shared = "h"
    dims = ["b q h d", f"b k {shared} d", f"b k {shared} e"]
    if operands.bias is not None:
        dims.append("q k")
    if operands.slopes is not None:
        dims.append("h" if operands.slopes.ndim == 1 else "b h")
    return dims


def _dims_of_given(given: Given) -> list[str]:
    rows = "b q" if given.rows.start.ndim == 2 else "q"
    return [rows, rows, rows, "words", "starts", "starts"]


def _placed(
    axes: Axes,
    operands: Operands,
    given: Given,
) -> Given:
    # Add the indices of the first sequence and head of this device.
    if not axes:
        return given
    batch, _, heads, _ = operands.q.shape
    places = []
    for name, count in (("b", batch), ("h", heads)):
        first = jax.lax.axis_index(axes[name]) * count if name in axes else 0
        places.append(jnp.asarray(first, jnp.int32))
    return given._replace(first=jnp.stack(places))


def _summed(
    axes: Axes,
    gradient: Array,
    dims: str,
) -> Array:
    # Sum the gradients of what devices share.
    missing = {"b", "h"} - {name.rstrip("'") for name in dims.split()}
    wide = gradient.astype(jnp.promote_types(gradient.dtype, jnp.float32))
    return total(wide, axes, *sorted(missing)).astype(gradient.dtype)
