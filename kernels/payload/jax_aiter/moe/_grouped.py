"""The experts by XLA: tokens are sorted by expert into blocks of rows, and each block is multiplied with its expert.

Work and memory grow with the tokens, not with tokens times experts, which masked products of all experts need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jax_aiter._native import contract, vary, varying

_ROWS = (16, 256)
"""Fewest and most rows of a block."""
_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
}
ACTIVATIONS = tuple(_ACTIVATIONS)
"""Names of the activations."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows of tokens, sorted by expert; each expert's rows are padded to whole blocks.

    Attributes:
        rows: rows of a block.
        tokens: [P], token of each row; M for padding.
        places: [M, K], row of each token's experts; P for an expert that does not exist.
        experts: [P / rows], expert of each block.
        valid: number of rows in blocks with an expert.
    """

    rows: int
    tokens: Array
    places: Array
    experts: Array
    valid: Array

    def spread(self, values: Array, padding: Any) -> Array:
        """Return an array [P] with the value of each token's expert, from values [M, K]."""
        return jnp.full(self.tokens.shape, padding, values.dtype).at[self.places].set(values, mode="drop")


def sort_tokens(ids: Array, experts: int, rows: int) -> Groups:
    """Return the rows of tokens sorted by expert.

    Args:
        ids: [M, K], expert numbers; others than 0 to experts - 1 are left out.
        experts: number of experts.
        rows: rows of a block.
    """
    tokens, topk = ids.shape
    count = tokens * topk
    blocks = most_blocks(count, experts, rows)
    flat = jnp.where((ids >= 0) & (ids < experts), ids, experts).reshape(-1).astype(jnp.int32)
    order = jnp.argsort(flat, stable=True)
    counts = jnp.zeros((experts,), jnp.int32).at[flat].add(1, mode="drop")
    padded = (counts + rows - 1) // rows * rows
    ends = jnp.cumsum(padded)
    # Distance from the rank among all sorted rows to the place among the padded ones.
    moved = jnp.pad((ends - padded) - (jnp.cumsum(counts) - counts), (0, 1))
    sorted_experts = flat[order]
    target = jnp.arange(count, dtype=jnp.int32) + moved[sorted_experts]
    target = jnp.where(sorted_experts < experts, target, blocks * rows).astype(jnp.int32)
    places = jnp.zeros((count,), jnp.int32).at[order].set(target).reshape(ids.shape)
    first = jnp.arange(blocks, dtype=jnp.int32) * rows
    owners = jnp.minimum(jnp.searchsorted(ends, first, side="right"), experts - 1).astype(jnp.int32)
    numbers = jnp.broadcast_to(jnp.arange(tokens, dtype=jnp.int32)[:, None], ids.shape)
    empty = Groups(rows, jnp.full((blocks * rows,), tokens, jnp.int32), places, owners, ends[-1].astype(jnp.int32))
    return Groups(rows, empty.spread(numbers, tokens), places, owners, empty.valid)


def most_blocks(count: int, experts: int, rows: int) -> int:
    """Return the most blocks that a number of rows can need: each expert with rows pads its last block."""
    return (count + min(experts, count) * (rows - 1)) // rows


def rows_for(count: int, experts: int) -> int:
    """Return the rows of a block: about a power of two that an average expert fills."""
    least, most = _ROWS
    return min(most, max(least, 1 << (max(1, count // experts) - 1).bit_length()))


def activated(hidden: Array, activation: str, inner: int) -> Array:
    """Return act(hidden), or act(gate) * up if the hidden numbers contain both, [rows, inner]."""
    gate, up = hidden[:, :inner], hidden[:, inner:]
    value = _ACTIVATIONS[activation](gate)
    return value * up if up.shape[1] else value


def forward(
    x: Array, weights: Array, ids: Array, experts: int, first: Callable[..., Array], second: Callable[..., Array]
) -> Array:
    """Return the weighted sum of the experts, [M, D], of the dtype of weights.

    Args:
        x: [M, D].
        weights: [M, K], float32 or wider.
        ids: [M, K], expert numbers.
        experts: number of experts.
        first: function(rows of x, their tokens, expert) that returns the inner numbers [rows, I].
        second: function(inner numbers, expert) that returns [rows, D] of the dtype of weights.
    """
    out = jnp.zeros(x.shape, weights.dtype)
    if not ids.size:
        return out
    groups = sort_tokens(ids, experts, rows_for(ids.size, experts))
    scale = groups.spread(weights, 0)

    def block(i: Array, out: Array) -> Array:
        mine, at, expert = _block(groups, i)
        y = second(first(rows_of(x, mine), mine, expert), expert)
        return out.at[mine].add(y * jax.lax.dynamic_slice(scale, (at,), (groups.rows,))[:, None], mode="drop")

    found: Array = jax.lax.fori_loop(0, groups.valid // groups.rows, block, vary(out, varying(weights)))
    return found


def products(x: Array, w1: Array, w2: Array, activation: str, wide: Any) -> tuple[Callable[..., Array], ...]:
    """Return `first` and `second` of `forward` for weights of the dtype of x, summed in a wider dtype."""

    def first(rows: Array, _tokens: Array, expert: Array) -> Array:
        return activated(contract("rd,nd->rn", rows, expert_of(w1, expert), wide), activation, w2.shape[2])

    def second(inner: Array, expert: Array) -> Array:
        return contract("ri,di->rd", inner.astype(x.dtype), expert_of(w2, expert), wide)

    return first, second


def backward(
    dout: Array, x: Array, w1: Array, w2: Array, weights: Array, ids: Array, activation: str
) -> tuple[Array, Array, Array, Array]:
    """Return the gradients of x, w1, w2 and weights, in float32 or wider; the hidden numbers are computed again."""
    wide = weights.dtype
    if not ids.size:
        return jnp.zeros(x.shape, wide), jnp.zeros(w1.shape, wide), jnp.zeros(w2.shape, wide), weights
    groups = sort_tokens(ids, w1.shape[0], rows_for(ids.size, w1.shape[0]))
    scale = groups.spread(weights, 0)

    def block(i: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        dx, dw1, dw2, dscale = sums
        mine, at, expert = _block(groups, i)
        x_rows, dout_rows = rows_of(x, mine), rows_of(dout, mine)
        weight = jax.lax.dynamic_slice(scale, (at,), (groups.rows,))
        one, two = expert_of(w1, expert), expert_of(w2, expert)
        hidden = contract("rd,nd->rn", x_rows, one, wide)
        inner, pull = jax.vjp(lambda hidden: activated(hidden, activation, two.shape[1]), hidden)
        unscaled = contract("rd,di->ri", dout_rows.astype(x.dtype), two, wide)
        (dhidden,) = pull(unscaled * weight[:, None])
        dhidden, scaled = dhidden.astype(x.dtype), (dout_rows * weight[:, None]).astype(x.dtype)
        return (
            dx.at[mine].add(contract("rn,nd->rd", dhidden, one, wide), mode="drop"),
            dw1.at[expert].add(contract("rn,rd->nd", dhidden, x_rows, wide)),
            dw2.at[expert].add(contract("rd,ri->di", scaled, inner.astype(x.dtype), wide)),
            jax.lax.dynamic_update_slice(dscale, jnp.sum(unscaled * inner, axis=1), (at,)),
        )

    shapes = (x.shape, w1.shape, w2.shape, groups.tokens.shape)
    zeros = tuple(vary(jnp.zeros(shape, wide), varying(weights)) for shape in shapes)
    dx, dw1, dw2, dscale = jax.lax.fori_loop(0, groups.valid // groups.rows, block, zeros)
    return dx, dw1, dw2, dscale.at[groups.places].get(mode="fill", fill_value=0)


def _block(groups: Groups, i: Array) -> tuple[Array, Array, Array]:
    # Tokens of a block, its first row, and its expert.
    at = i * groups.rows
    return jax.lax.dynamic_slice(groups.tokens, (at,), (groups.rows,)), at, groups.experts[i]


def rows_of(array: Array, tokens: Array) -> Array:
    """Return the rows of tokens; 0 for padding."""
    return array.at[tokens].get(mode="fill", fill_value=0)


def expert_of(weight: Array, expert: Array) -> Array:
    """Return the part of an expert."""
    part: Array = jax.lax.dynamic_index_in_dim(weight, expert, keepdims=False)
    return part
