"""Attention of a few queries with long caches of keys and values, by XLA, and what its operations share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jax_aiter._native import contract, vary, varying

CHUNK = 512
"""Keys that a step of `attend` reads for each sequence."""


class Keys(NamedTuple):
    """Keys and values of one step.

    Attributes:
        keys: [S, C, G, D], of the dtype of the queries.
        values: [S, C, G, E], likewise.
        key_scale, value_scale: factors of them, [S, C, G], or None.
    """

    keys: Array
    values: Array
    key_scale: Array | None = None
    value_scale: Array | None = None


def seen(lengths: Array, queries: int) -> Array:
    """Return the number of keys that each query sees, [S, L]: the queries are the last L tokens of their sequence.

    Args:
        lengths: number of tokens of each sequence, [S], int32.
        queries: L.
    """
    last = lengths[:, None] - queries + 1 + jnp.arange(queries, dtype=jnp.int32)
    return jnp.maximum(last, 0)


def attend(q: Array, lengths: Array, fetch: Callable[[Array], Keys], groups: int, depth: int, scale: float) -> Array:
    """Return attention of the last tokens of each sequence, computed in float32 or wider.

    Steps end with the longest sequence, whatever the size of the cache is.

    Args:
        q: [S, L, H, D].
        lengths: number of tokens of each sequence, [S], int32.
        fetch: function of positions in a sequence, [C], int32, that returns their keys and values.
        groups: G.
        depth: E.
        scale: factor of the scores.

    Returns:
        [S, L, H, E], of the dtype of q; 0 if a query sees no key.
    """
    sequences, queries, heads, _ = q.shape
    wide, rows = jnp.promote_types(q.dtype, jnp.float32), (sequences, groups, heads // groups, queries)
    grouped = q.reshape(sequences, queries, groups, heads // groups, q.shape[3])

    def step(state: _State) -> _State:
        places = state.start + jnp.arange(CHUNK, dtype=jnp.int32)
        return _step(grouped, lengths, places, fetch(places), scale, state)

    longest = lengths.max(initial=0)
    axes = frozenset[str]().union(*(varying(array) for array in (q, lengths)))
    state = _State(
        jnp.zeros((), jnp.int32),
        jnp.full(rows, -jnp.inf, wide),
        jnp.zeros(rows, wide),
        jnp.zeros((*rows, depth), wide),
    )
    first = _State(*(vary(array, axes) for array in state))
    *_, total, sums = jax.lax.while_loop(lambda state: state.start < longest, step, first)
    out = jnp.where(total[..., None] > 0, sums / jnp.where(total > 0, total, 1)[..., None], 0)
    return out.transpose(0, 3, 1, 2, 4).reshape(sequences, queries, heads, depth).astype(q.dtype)


class _State(NamedTuple):
    # First position of the next step; largest score, sum of exponentials and weighted sum of values so far.
    start: Array
    most: Array
    total: Array
    sums: Array


def _step(q: Array, lengths: Array, places: Array, part: Keys, scale: float, state: _State) -> _State:
    wide = state.sums.dtype
    scores = contract("slgrd,scgd->sgrlc", q, part.keys, wide) * scale
    if part.key_scale is not None:
        scores = scores * part.key_scale.transpose(0, 2, 1)[:, :, None, None]
    sees = (places < seen(lengths, q.shape[1])[:, :, None])[:, None, None]
    most = jnp.maximum(state.most, jnp.where(sees, scores, -jnp.inf).max(-1))
    finite = jnp.where(jnp.isfinite(most), most, 0)
    weights = jnp.where(sees, jnp.exp(scores - finite[..., None]), 0)
    kept = jnp.exp(state.most - finite)
    total = state.total * kept + weights.sum(-1)
    # Pages may hold anything beyond the end of a sequence.
    within = (places < lengths[:, None])[..., None, None]
    values = jnp.where(within, part.values, jnp.zeros((), part.values.dtype))
    if part.value_scale is not None:
        weights = weights * jnp.where(within[..., 0], part.value_scale, 0).transpose(0, 2, 1)[:, :, None, None]
    added = contract("sgrlc,scge->sgrle", weights.astype(q.dtype), values, wide)
    return _State(state.start + CHUNK, most, total, state.sums * kept[..., None] + added)
