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

from jax_aiter._native import Arrays, all_varying, contract, vary
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

    def dropped(self, array: Array) -> Array:
        """Return the array with dropped elements 0 and the others enlarged."""
        return array if self.factor is None else array * self.factor


def pad(config: Config, sequence: Sequence) -> Sequence:
    """Return the sequence padded to whole blocks; padding neither attends nor is attended to."""
    count, key_count = sequence.q.shape[0], sequence.k.shape[0]
    queries = _missing(count, config.queries)
    keys = _missing(key_count, config.keys)

    def longer(array: Array, *more: int) -> Array:
        sizes = (*more, *[0] * (array.ndim - len(more)))
        return jnp.pad(array, [(0, extra) for extra in sizes])

    bias = sequence.bias
    if bias is not None:
        bias = longer(bias, queries, keys)
    return sequence._replace(
        q=longer(sequence.q, queries),
        k=longer(sequence.k, keys),
        v=longer(sequence.v, keys),
        bias=bias,
        rows=Rows(*(longer(part, queries) for part in sequence.rows)),
    )


def _missing(count: int, block: int) -> int:
    # An empty sequence becomes one block. The remainder of a negative number would be
    # shorter, but symbolic sizes would not be known to contain a block.
    blocks = (count + block - 1) // block if count else 1
    return blocks * block - count


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
    axes = all_varying(*jax.tree.leaves(sequence))

    def one(index: Array) -> tuple[Array, Array]:
        q = _cut(sequence.q, index, config.queries)
        rows = _cut_rows(sequence.rows, index, config.queries)

        def step(place: Array, carry: Arrays) -> Arrays:
            highest, total, out = carry
            block = _block(
                config,
                sequence,
                q,
                rows,
                index,
                place,
            )
            higher = jnp.maximum(highest, jnp.max(block.scores, axis=-1))
            base = jnp.where(higher == -jnp.inf, 0, higher)
            p = jnp.exp(block.scores - base[..., None])
            shrink = jnp.exp(highest - base)
            total = total * shrink + jnp.sum(p, axis=-1)
            v = _cut(sequence.v, place, config.keys)
            dropped = block.dropped(p).astype(v.dtype)
            more = contract("hgqk,khd->hgqd", dropped, v, wide)
            return higher, total, out * shrink[..., None] + more

        shape = (heads, group, config.queries)
        start = (
            jnp.full(shape, -jnp.inf, wide),
            jnp.zeros(shape, wide),
            jnp.zeros((*shape, sequence.v.shape[-1]), wide),
        )
        carry = tuple(vary(part, axes) for part in start)
        first, last = _visited(config, rows)
        highest, total, out = jax.lax.fori_loop(first, last, step, carry)
        divisor = jnp.where(total == 0, 1, total)
        lse = jnp.where(total == 0, -jnp.inf, highest + jnp.log(divisor))
        out = out / divisor[..., None]
        return out.transpose(2, 0, 1, 3), lse.transpose(2, 0, 1)

    out, lse = jax.lax.map(one, _indices(config, sequence))
    joined = out.reshape(-1, *out.shape[2:])[:count].astype(sequence.v.dtype)
    return joined, lse.reshape(-1, heads, group)[:count]


def probabilities(
    config: Config,
    whole: Sequence,
    lse: Array,
) -> Array:
    """Return all probabilities as they multiply v, [Hk, G, queries, keys].

    A whole matrix, for tests.
    """
    queries, keys = whole.q.shape[0], whole.k.shape[0]
    one = Config(config.scale, config.dropout, max(queries, 1), max(keys, 1))
    sequence = pad(one, whole)
    zero = jnp.int32(0)
    block = _block(
        one,
        sequence,
        sequence.q,
        sequence.rows,
        zero,
        zero,
    )
    saved = _finite(lse.transpose(1, 2, 0))[..., None]
    return block.dropped(jnp.exp(block.scores[:, :, :queries, :keys] - saved))


class Gradients(NamedTuple):
    """Gradients with respect to the parts of a sequence, in the accumulator's dtype."""

    q: Array
    k: Array
    v: Array
    bias: Array | None
    slopes: Array | None


def backward(
    config: Config,
    whole: Sequence,
    lse: Array,
    out: Array,
    dout: Array,
    dlse: Array,
) -> Gradients:
    """Compute the gradients of one sequence.

    Args:
        config: constants of the forward direction.
        whole: the sequence.
        lse, out: results of `forward`.
        dout: cotangent of out.
        dlse: cotangent of lse.
    """
    count, keys = whole.q.shape[0], whole.k.shape[0]
    sequence = pad(config, whole)
    wide = _wide(sequence.q)
    extra = ((0, sequence.q.shape[0] - count), (0, 0), (0, 0))
    delta = jnp.sum(dout.astype(wide) * out.astype(wide), axis=-1) - dlse.astype(wide)
    saved = jnp.pad(_finite(lse), extra)
    delta = jnp.pad(delta, extra)
    dout = jnp.pad(dout.astype(sequence.v.dtype), (*extra, (0, 0)))
    axes = all_varying(*jax.tree.leaves(sequence))

    def zeros(like: Array) -> Array:
        return vary(jnp.zeros(like.shape, wide), axes)

    def one(carry: Arrays, index: Array) -> tuple[Arrays, Array]:
        q = _cut(sequence.q, index, config.queries)
        rows = _cut_rows(sequence.rows, index, config.queries)
        do = _cut(dout, index, config.queries)
        high = _cut(saved, index, config.queries).transpose(1, 2, 0)[..., None]
        dot = _cut(delta, index, config.queries).transpose(1, 2, 0)[..., None]

        def step(place: Array, sums: Gradients) -> Gradients:
            block = _block(
                config,
                sequence,
                q,
                rows,
                index,
                place,
            )
            p = jnp.exp(block.scores - high)
            k = _cut(sequence.k, place, config.keys)
            v = _cut(sequence.v, place, config.keys)
            dp = contract("qhgd,khd->hgqk", do, v, wide)
            dropped = block.dropped(p).astype(v.dtype)
            ds = p * (block.dropped(dp) - dot)
            narrow = ds.astype(q.dtype)
            dq = contract("hgqk,khd->qhgd", narrow, k, wide) * config.scale
            dk = contract("hgqk,qhgd->khd", narrow, q, wide) * config.scale
            dv = contract("hgqk,qhgd->khd", dropped, do, wide)
            at = place * config.keys
            dbias, dslopes = sums.bias, sums.slopes
            if dbias is not None:
                dbias = _add(dbias, ds.sum((0, 1)), index * config.queries, at)
            if dslopes is not None:
                dslopes = dslopes - (ds * block.distance).sum((2, 3))
            return Gradients(
                q=sums.q + dq,
                k=_add(sums.k, dk, at),
                v=_add(sums.v, dv, at),
                bias=dbias,
                slopes=dslopes,
            )

        sums = Gradients(zeros(q), *carry)
        first, last = _visited(config, rows)
        sums = jax.lax.fori_loop(first, last, step, sums)
        return tuple(sums[1:]), sums.q

    # Parts that are None have no gradient.
    parts = (sequence.k, sequence.v, sequence.bias, sequence.slopes)
    start = jax.tree.map(zeros, parts)
    (dk, dv, dbias, dslopes), dq = jax.lax.scan(one, start, _indices(config, sequence))
    return Gradients(
        q=dq.reshape(sequence.q.shape)[:count],
        k=dk[:keys],
        v=dv[:keys],
        bias=None if dbias is None else dbias[:count, :keys],
        slopes=dslopes,
    )


def _block(
    config: Config,
    sequence: Sequence,
    q: Array,
    rows: Rows,
    index: Array,
    place: Array,
) -> Block:
    wide = _wide(q)
    column = place * config.keys + jnp.arange(config.keys, dtype=jnp.int32)
    k = _cut(sequence.k, place, config.keys)
    scores = contract("qhgd,khd->hgqk", q, k, wide) * config.scale
    if sequence.bias is not None:
        places = (index * config.queries, place * config.keys)
        sizes = (config.queries, config.keys)
        part = jax.lax.dynamic_slice(sequence.bias, places, sizes)
        scores += part.astype(wide)
    distance = jnp.abs(rows.diagonal[:, None] - column).astype(wide)
    if sequence.slopes is not None:
        scores -= sequence.slopes.astype(wide)[..., None, None] * distance
    seen = (column >= rows.start[:, None]) & (column < rows.end[:, None])
    factor = None
    if config.dropout:
        _, heads, group, _ = q.shape
        batch, first = sequence.place
        heads_here = jnp.arange(heads * group, dtype=jnp.int32)
        head = first + heads_here.reshape(heads, group, 1, 1)
        row = index * config.queries + jnp.arange(config.queries, dtype=jnp.int32)
        keep = kept(
            sequence.seed,
            config.dropout,
            batch,
            head,
            row[:, None],
            column,
        )
        factor = jnp.where(keep, 1 / (1 - config.dropout), 0).astype(wide)
    return Block(jnp.where(seen, scores, -jnp.inf), distance, factor)


def _indices(config: Config, sequence: Sequence) -> Array:
    # Of the blocks of queries.
    return jnp.arange(sequence.q.shape[0] // config.queries, dtype=jnp.int32)


def _visited(config: Config, rows: Rows) -> tuple[Array, Array]:
    # Return the first block of keys that a query sees, and the one after the last.
    first = jnp.min(jnp.where(rows.end > rows.start, rows.start, _FAR))
    last = jnp.max(rows.end)
    first = jnp.minimum(first, last) // config.keys
    return first, (last + config.keys - 1) // config.keys


def _cut(
    array: Array,
    index: Array,
    size: int,
) -> Array:
    return jax.lax.dynamic_slice_in_dim(array, index * size, size)


def _cut_rows(
    rows: Rows,
    index: Array,
    size: int,
) -> Rows:
    return Rows(*(_cut(part, index, size) for part in rows))


def _add(
    array: Array,
    part: Array,
    *places: Array,
) -> Array:
    zeros = [jnp.int32(0)] * (array.ndim - len(places))
    where = (*places, *zeros)
    before = jax.lax.dynamic_slice(array, where, part.shape)
    return jax.lax.dynamic_update_slice(array, before + part, where)


def _wide(array: Array) -> Any:
    return jnp.promote_types(array.dtype, jnp.float32)


def _finite(lse: Array) -> Array:
    # A query that sees no key has no probabilities to recompute.
    return jnp.where(lse == -jnp.inf, 0, lse)
