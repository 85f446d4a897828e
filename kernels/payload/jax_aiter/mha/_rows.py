"""Ranges of keys that queries see, from causality, windows and lengths."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_aiter._check import proven


class Rows(NamedTuple):
    """Range of keys for each query, int32.

    Attributes:
        start, end: the query sees the keys start <= j < end; none if they are equal.
        diagonal: key at the query's own position if both sequences are aligned at their
            ends; distances count from it.
    """

    start: Array
    end: Array
    diagonal: Array


def whole(
    queries: int,
    keys: int,
    left: int,
    right: int,
) -> Rows:
    """Return the ranges of one sequence whose queries and keys are all valid.

    Args:
        queries: number of queries.
        keys: number of keys.
        left: keys that a query sees before its diagonal; negative for all.
        right: keys that a query sees after its diagonal; negative for all.
    """
    row = jnp.arange(queries, dtype=jnp.int32)
    end = jnp.full_like(row, keys)
    diagonal = row + (keys - queries)
    return _windowed(jnp.zeros_like(row), end, diagonal, left, right)


def complete(
    queries: int,
    keys: int,
    right: int,
) -> bool:
    """Return whether each query of a full sequence is known to see a key."""
    return bool(proven(lambda: keys > 0 and (right < 0 or keys - queries + right >= 0)))


def packed_complete(
    cu_queries: Array,
    cu_keys: Array,
    right: int,
) -> bool:
    """Return whether each query of packed sequences is known to see a key; False for traced arrays.

    Args:
        cu_queries, cu_keys: as for `packed`.
        right: keys that a query sees after its diagonal; negative for all.
    """
    if isinstance(cu_queries, jax.core.Tracer) or isinstance(cu_keys, jax.core.Tracer):
        return False
    queries = np.diff(np.asarray(cu_queries))
    keys = np.diff(np.asarray(cu_keys))
    for query_count, key_count in zip(queries, keys, strict=True):
        if query_count and not complete(int(query_count), int(key_count), right):
            return False
    return True


def all_see(rows: Rows, cu_queries: Array) -> Array:
    """Return whether each query of packed sequences sees a key, as a traced value.

    Args:
        rows: ranges of keys, [queries].
        cu_queries: as for `packed`.
    """
    row = jnp.arange(rows.start.shape[0], dtype=jnp.int32)
    sees = rows.end > rows.start
    outside = (row < cu_queries[0]) | (row >= cu_queries[-1])
    return jnp.all(sees | outside)


def padded(
    queries: int,
    query_count: Any,
    key_count: Any,
    left: int,
    right: int,
) -> Rows:
    """Return the ranges of one sequence that fills only the beginning of its row.

    Args:
        queries: length of the row; positions from query_count on see nothing.
        query_count: number of queries, an int32 array without dimensions.
        key_count: number of keys, likewise.
        left, right: as for `whole`.
    """
    row = jnp.arange(queries, dtype=jnp.int32)
    end = jnp.where(row < query_count, key_count, 0)
    diagonal = row + (key_count - query_count)
    return _windowed(jnp.zeros_like(row), end, diagonal, left, right)


def packed(
    queries: int,
    cu_queries: Array,
    cu_keys: Array,
    left: int,
    right: int,
) -> Rows:
    """Return the ranges of sequences that lie one after the other.

    Args:
        queries: length of the packed array; positions after the last sequence see
            nothing.
        cu_queries: [sequences + 1], int32: start of the queries of each sequence, and
            end of the last one.
        cu_keys: [sequences + 1], int32, likewise for keys.
        left, right: as for `whole`.
    """
    row = jnp.arange(queries, dtype=jnp.int32)
    last = cu_queries.shape[0] - 2
    # jnp.searchsorted needs a number of sequences that is not symbolic.
    after = jnp.sum(cu_queries <= row[:, None], axis=1, dtype=jnp.int32)
    sequence = jnp.clip(after - 1, 0, last)
    start = cu_keys[sequence]
    end = cu_keys[sequence + 1]
    inside = (row >= cu_queries[0]) & (row < cu_queries[-1])
    end = jnp.where(inside, end, start)
    # The diagonal is as far from the end of the keys as the query is from the end of
    # the queries.
    diagonal = cu_keys[sequence + 1] - (cu_queries[sequence + 1] - row)
    return _windowed(start, end, diagonal, left, right)


def _windowed(
    start: Array,
    end: Array,
    diagonal: Array,
    left: int,
    right: int,
) -> Rows:
    if left >= 0:
        start = jnp.maximum(start, diagonal - left)
    if right >= 0:
        end = jnp.minimum(end, diagonal + right + 1)
    empty = end <= start
    return Rows(jnp.where(empty, 0, start), jnp.where(empty, 0, end), diagonal)
