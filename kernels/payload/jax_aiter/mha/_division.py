"""Division of attention between devices, by sequences of the batch and by heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from jax_aiter._choice import Choice
from jax_aiter._partition import Axes, Local, Rule, like, partitioned, total
from jax_aiter._table import XLA
from jax_aiter.mha._operands import Given, Operands

_OUT = "b q h e"
_LSE = "b h q"


def forward(
    choice: Choice,
    dropout: float,
    function: Callable[[Operands, Given], tuple[Array, Array]],
    operands: Operands,
    given: Given,
) -> tuple[Array, Array]:
    """Return function(operands, given), divided between devices.

    Args:
        choice: implementation of the function.
        dropout: probability of being dropped.
        function: attention.
        operands, given: its arguments.
    """
    leaves, tree = jax.tree.flatten((operands, given))

    def local(axes: Axes, *leaves: Array) -> tuple[Array, ...]:
        operands, given = jax.tree.unflatten(tree, leaves)
        return function(operands.with_all_slopes(), _placed(axes, operands, given))

    dims = [*_dims(operands), *_dims_of_given(given)]
    out, lse = _divided(choice, dropout, local, leaves, dims, [_OUT, _LSE])
    return out, lse


def backward(
    choice: Choice,
    dropout: float,
    function: Callable[..., Operands],
    operands: Operands,
    given: Given,
    saved: tuple[Array, Array],
    cotangents: tuple[Array, Array],
) -> Operands:
    """Return a function for the gradients of the operands, divided between devices."""
    leaves, tree = jax.tree.flatten((operands, given, saved, cotangents))
    results = _dims(operands)

    def local(axes: Axes, *leaves: Array) -> tuple[Array, ...]:
        operands, given, saved, cotangents = jax.tree.unflatten(tree, leaves)
        grads = function(
            operands.with_all_slopes(),
            _placed(axes, operands, given),
            saved,
            *cotangents,
        )
        if grads.slopes is not None and operands.slopes.ndim == 1:
            grads = grads._replace(slopes=grads.slopes.sum(0))
        return tuple(
            _summed(grad, axes, dims)
            for grad, dims in zip(jax.tree.leaves(grads), results, strict=True)
        )

    dims = [*results, *_dims_of_given(given), *[_OUT, _LSE] * 2]
    grads = _divided(choice, dropout, local, leaves, dims, results)
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
) -> tuple[Array, ...]:
    kernel = choice.backend != XLA
    # Kernels count sequences and heads from 0, so that with dropout each device needs
    # all of them.
    parts = {} if kernel and dropout else {"b": 1, "h": 1}
    rule = Rule.parse(f"{', '.join(dims)} -> {', '.join(results)}", **parts)
    # XLA gathers the batch for the loop over sequences that sums the gradient of a
    # bias, and runs blocks that any sequence needs if sequences have lengths of their
    # own.
    return partitioned(
        rule, local, *leaves, by_rule=kernel or bool({"q k", "b q"}.intersection(dims))
    )


def _dims(operands: Operands) -> list[str]:
    # A device needs the heads of keys that its heads of queries share; a single head is
    # on all devices.
    heads = operands.q.shape[2]
    of_keys = operands.k.shape[2]
    shared = "one" if of_keys == 1 else "h'"
    if of_keys == heads:
        shared = "h"
    dims = (
        "b q h d",
        f"b k {shared} d",
        f"b k {shared} e",
        "q k",
        "h" if operands.slopes is None or operands.slopes.ndim == 1 else "b h",
    )
    return [
        names for names, part in zip(dims, operands, strict=True) if part is not None
    ]


def _dims_of_given(given: Given) -> list[str]:
    return [
        *["b q" if given.rows.start.ndim == 2 else "q"] * 3,
        "words",
        "starts",
        "starts",
    ]


def _placed(axes: Axes, operands: Operands, given: Given) -> Given:
    # Add the indices of the first sequence and head of this device.
    if not axes:
        return given
    counts = zip("bh", (operands.q.shape[0], operands.q.shape[2]), strict=True)
    first = [
        jax.lax.axis_index(axes[name]) * count if name in axes else 0
        for name, count in counts
    ]
    return given._replace(
        first=jnp.stack([jnp.asarray(place, jnp.int32) for place in first])
    )


def _summed(gradient: Array, axes: Axes, dims: str) -> Array:
    # Sum the gradients of what devices share.
    missing = {"b", "h"} - {name.rstrip("'") for name in dims.split()}
    wide = gradient.astype(jnp.promote_types(gradient.dtype, jnp.float32))
    return total(wide, axes, *sorted(missing)).astype(gradient.dtype)
