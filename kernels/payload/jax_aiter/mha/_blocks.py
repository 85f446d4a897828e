"""Attention in blocks, forward and backward, as XLA operations on one sequence.

Scores exist for one block of queries and one block of keys at a time. The forward
direction keeps a running maximum and sum; the backward direction recomputes the scores
from the saved log-sum-exp. Blocks of keys that no query of a block sees are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jax_aiter._native import contract, vary, varying
from jax_aiter.mha._dropout import kept
from jax_aiter.mha._rows import Rows

_FAR = jnp.iinfo(jnp.int32).max


@dataclass(frozen=True, slots=True)
class Config:
    """Constants of a program.

    Attributes:
        scale: factor of the scores.
        dropout: probability of being dropped.
        queries, keys: sizes of a block.
    """

    scale: float
    dropout: float
    queries: int = 256
    keys: int = 512


class Sequence(NamedTuple):
    """One sequence, with Hk heads of keys, each shared by G heads of queries.

    Attributes:
        q: [queries, Hk, G, D].
        k: [keys, Hk, D].
        v: [keys, Hk, Dv].
        bias: [queries, keys], or None.
        slopes: [Hk, G] of ALiBi, or None.
        rows: ranges of keys that the queries see.
        seed: [2], uint32, of dropout.
        place: [2], int32: indices of the sequence and of its first head, for dropout.
    """

    q: Array
    k: Array
    v: Array
    bias: Array | None
    slopes: Array | None
    rows: Rows
    seed: Array
    place: Array


class Block(NamedTuple):
    """Scores of a block of queries and a block of keys.

    Attributes:
        scores: [Hk, G, block of queries, block of keys], -inf if a query does not see a
            key.
        distance: [block of queries, block of keys], from the diagonal.
        factor: factor of the probabilities, 0 for dropped ones; None without dropout.
    """

    scores: Array
    distance: Array
    factor: Array | None


def pad(config: Config, sequence: Sequence) -> Sequence:
    """Return the sequence padded to whole blocks; padding neither attends nor is attended to."""
    queries = -sequence.q.shape[0] % config.queries or (
        config.queries if sequence.q.shape[0] == 0 else 0
    )
    keys = -sequence.k.shape[0] % config.keys or (
        config.keys if sequence.k.shape[0] == 0 else 0
    )

    def longer(array: Array, *more: int) -> Array:
        return jnp.pad(
            array, [(0, extra) for extra in (*more, *[0] * (array.ndim - len(more)))]
        )

    return sequence._replace(
        q=longer(sequence.q, queries),
        k=longer(sequence.k, keys),
        v=longer(sequence.v, keys),
        bias=None if sequence.bias is None else longer(sequence.bias, queries, keys),
        rows=Rows(*(longer(part, queries) for part in sequence.rows)),
    )


def forward(config: Config, whole: Sequence) -> tuple[Array, Array]:
    """Compute attention of one sequence.

    Returns:
        out: [queries, Hk, G, Dv] of the dtype of v; 0 if a query sees no key.
        lse: [queries, Hk, G], the logarithm of the sum of exponentials; -inf if a query
            sees no key.
    """
    count = whole.q.shape[0]
    sequence = pad(config, whole)
    wide = _wide(sequence.q)
    _, heads, group, _ = sequence.q.shape
    axes = _axes(sequence)

    def one(index: Array) -> tuple[Array, Array]:
        q = _cut(sequence.q, index, config.queries)
        rows = _cut_rows(sequence.rows, index, config.queries)

        def step(
            place: Array, carry: tuple[Array, Array, Array]
        ) -> tuple[Array, Array, Array]:
            highest, total, out = carry
            block = _block(config, sequence, q, rows, index, place)
            higher = jnp.maximum(highest, jnp.max(block.scores, axis=-1))
            base = jnp.where(higher == -jnp.inf, 0, higher)
            p = jnp.exp(block.scores - base[..., None])
            shrink = jnp.exp(highest - base)
            total = total * shrink + jnp.sum(p, axis=-1)
            dropped = p if block.factor is None else p * block.factor
            v = _cut(sequence.v, place, config.keys)
            more = contract("hgqk,khd->hgqd", dropped.astype(v.dtype), v, wide)
            return higher, total, out * shrink[..., None] + more

        shape = (heads, group, config.queries)
        start = (
            jnp.full(shape, -jnp.inf, wide),
            jnp.zeros(shape, wide),
            jnp.zeros((*shape, sequence.v.shape[-1]), wide),
        )
        carry = tuple(vary(part, axes) for part in start)
        highest, total, out = jax.lax.fori_loop(*_visited(config, rows), step, carry)
        divisor = jnp.where(total == 0, 1, total)
        lse = jnp.where(total == 0, -jnp.inf, highest + jnp.log(divisor))
        return (out / divisor[..., None]).transpose(2, 0, 1, 3), lse.transpose(2, 0, 1)

    out, lse = jax.lax.map(
        one, jnp.arange(sequence.q.shape[0] // config.queries, dtype=jnp.int32)
    )
    joined = out.reshape(-1, *out.shape[2:])[:count].astype(sequence.v.dtype)
    return joined, lse.reshape(-1, heads, group)[:count]


def probabilities(config: Config, whole: Sequence, lse: Array) -> Array:
    """Return all probabilities as they multiply v, [Hk, G, queries, keys].

    A whole matrix, for tests.
    """
    one = Config(
        config.scale, config.dropout, max(whole.q.shape[0], 1), max(whole.k.shape[0], 1)
    )
    sequence = pad(one, whole)
    zero = jnp.int32(0)
    block = _block(one, sequence, sequence.q, sequence.rows, zero, zero)
    saved = _finite(lse.transpose(1, 2, 0))[..., None]
    p = jnp.exp(block.scores[:, :, : whole.q.shape[0], : whole.k.shape[0]] - saved)
    return p if block.factor is None else p * block.factor


class Gradients(NamedTuple):
    """Gradients with respect to the parts of a sequence, in the accumulator's dtype."""

    q: Array
    k: Array
    v: Array
    bias: Array | None
    slopes: Array | None


def backward(
    config: Config, whole: Sequence, lse: Array, out: Array, dout: Array, dlse: Array
) -> Gradients:
    """Compute the gradients of one sequence.

    Args:
        config: constants of the forward direction.
        whole: the sequence.
        lse, out: results of `forward`.
        dout: cotangent of out.
        dlse: cotangent of lse.
    """
    count = whole.q.shape[0]
    keys = whole.k.shape[0]
    sequence = pad(config, whole)
    wide = _wide(sequence.q)
    extra = ((0, sequence.q.shape[0] - count),)
    delta = jnp.sum(dout.astype(wide) * out.astype(wide), axis=-1) - dlse.astype(wide)
    saved, delta = (
        jnp.pad(part, (*extra, (0, 0), (0, 0))) for part in (_finite(lse), delta)
    )
    dout = jnp.pad(dout.astype(sequence.v.dtype), (*extra, (0, 0), (0, 0), (0, 0)))
    axes = _axes(sequence)

    def zeros(like: Array | None) -> Array | None:
        return None if like is None else vary(jnp.zeros(like.shape, wide), axes)

    def one(carry: Any, index: Array) -> tuple[Any, Array]:
        q = _cut(sequence.q, index, config.queries)
        rows = _cut_rows(sequence.rows, index, config.queries)
        do = _cut(dout, index, config.queries)
        high, dot = (
            _cut(part, index, config.queries).transpose(1, 2, 0)[..., None]
            for part in (saved, delta)
        )

        def step(place: Array, sums: Gradients) -> Gradients:
            block = _block(config, sequence, q, rows, index, place)
            p = jnp.exp(block.scores - high)
            k = _cut(sequence.k, place, config.keys)
            v = _cut(sequence.v, place, config.keys)
            dp = contract("qhgd,khd->hgqk", do, v, wide)
            dropped = p if block.factor is None else p * block.factor
            ds = p * ((dp if block.factor is None else dp * block.factor) - dot)
            narrow = ds.astype(q.dtype)
            at = place * config.keys
            return Gradients(
                q=sums.q + contract("hgqk,khd->qhgd", narrow, k, wide) * config.scale,
                k=_add(
                    sums.k,
                    contract("hgqk,qhgd->khd", narrow, q, wide) * config.scale,
                    at,
                ),
                v=_add(
                    sums.v,
                    contract("hgqk,qhgd->khd", dropped.astype(v.dtype), do, wide),
                    at,
                ),
                bias=None
                if sums.bias is None
                else _add(sums.bias, ds.sum((0, 1)), index * config.queries, at),
                slopes=None
                if sums.slopes is None
                else sums.slopes - (ds * block.distance).sum((2, 3)),
            )

        sums = Gradients(vary(jnp.zeros(q.shape, wide), axes), *carry)
        sums = jax.lax.fori_loop(*_visited(config, rows), step, sums)
        return tuple(sums[1:]), sums.q

    start = (
        zeros(sequence.k),
        zeros(sequence.v),
        zeros(sequence.bias),
        zeros(sequence.slopes),
    )
    blocks = jnp.arange(sequence.q.shape[0] // config.queries, dtype=jnp.int32)
    (dk, dv, dbias, dslopes), dq = jax.lax.scan(one, start, blocks)
    return Gradients(
        q=dq.reshape(sequence.q.shape)[:count],
        k=dk[:keys],
        v=dv[:keys],
        bias=None if dbias is None else dbias[:count, :keys],
        slopes=dslopes,
    )


def _block(
    config: Config, sequence: Sequence, q: Array, rows: Rows, index: Array, place: Array
) -> Block:
    wide = _wide(q)
    column = place * config.keys + jnp.arange(config.keys, dtype=jnp.int32)
    k = _cut(sequence.k, place, config.keys)
    scores = contract("qhgd,khd->hgqk", q, k, wide) * config.scale
    if sequence.bias is not None:
        places = (index * config.queries, place * config.keys)
        scores += jax.lax.dynamic_slice(
            sequence.bias, places, (config.queries, config.keys)
        ).astype(wide)
    distance = jnp.abs(rows.diagonal[:, None] - column).astype(wide)
    if sequence.slopes is not None:
        scores -= sequence.slopes.astype(wide)[..., None, None] * distance
    seen = (column >= rows.start[:, None]) & (column < rows.end[:, None])
    factor = None
    if config.dropout:
        _, heads, group, _ = q.shape
        batch, first = sequence.place
        head = first + jnp.arange(heads * group, dtype=jnp.int32).reshape(
            heads, group, 1, 1
        )
        row = (index * config.queries + jnp.arange(config.queries, dtype=jnp.int32))[
            :, None
        ]
        keep = kept(sequence.seed, config.dropout, batch, head, row, column)
        factor = jnp.where(keep, 1 / (1 - config.dropout), 0).astype(wide)
    return Block(jnp.where(seen, scores, -jnp.inf), distance, factor)


def _visited(config: Config, rows: Rows) -> tuple[Array, Array]:
    # Return the first block of keys that a query sees, and the one after the last.
    first = jnp.min(jnp.where(rows.end > rows.start, rows.start, _FAR))
    last = jnp.max(rows.end)
    return jnp.minimum(first, last) // config.keys, (
        last + config.keys - 1
    ) // config.keys


def _cut(array: Array, index: Array, size: int) -> Array:
    part: Array = jax.lax.dynamic_slice_in_dim(array, index * size, size)
    return part


def _cut_rows(rows: Rows, index: Array, size: int) -> Rows:
    return Rows(*(_cut(part, index, size) for part in rows))


def _add(array: Array, part: Array, *places: Array) -> Array:
    where = (*places, *[jnp.int32(0)] * (array.ndim - len(places)))
    before = jax.lax.dynamic_slice(array, where, part.shape)
    sums: Array = jax.lax.dynamic_update_slice(array, before + part, where)
    return sums


def _wide(array: Array) -> Any:
    return jnp.promote_types(array.dtype, jnp.float32)


def _finite(lse: Array) -> Array:
    # A query that sees no key has no probabilities to recompute.
    return jnp.where(lse == -jnp.inf, 0, lse)


def _axes(sequence: Sequence) -> frozenset[str]:
    return frozenset[str]().union(*map(varying, jax.tree.leaves(sequence)))
