"""Dropout of attention probabilities as a function of seed and position, equal in both directions.

The result depends neither on the blocks of the scores nor on the number of queries,
keys or sequences.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

_GOLDEN = 0x9E3779B9
_ODD = 0x85EBCA77


def seed_words(seed: Any) -> Array:
    """Return a seed as two words.

    Args:
        seed: integer from 0 to 2**64 - 1, or an integer array without dimensions, which
            may be traced.

    Returns:
        [2], uint32.

    Raises:
        ValueError: the number is out of range.
        TypeError: the seed is neither an integer nor such an array.
    """
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        number = int(seed)
        if not 0 <= number < 1 << 64:
            raise ValueError(
                f"dropout_seed is {number}; it has to be between 0 and 2**64 - 1."
            )
        return jnp.array([number & 0xFFFFFFFF, number >> 32], jnp.uint32)
    if not (
        hasattr(seed, "dtype")
        and jnp.issubdtype(seed.dtype, jnp.integer)
        and seed.ndim == 0
    ):
        raise TypeError(
            "dropout_seed has to be an integer, or an integer array without dimensions."
        )
    low = seed.astype(jnp.uint32)
    return jnp.stack([low, jnp.zeros_like(low)])


def kept(
    seed: Array,
    probability: float,
    batch: Array,
    heads: Array,
    row: Array,
    column: Array,
) -> Array:
    """Return which probabilities are kept.

    Args:
        seed: [2], uint32.
        probability: probability of being dropped, between 0 and 1.
        batch, heads, row, column: indices, broadcast against each other.

    Returns:
        bool, of the broadcast shape of the indices.
    """
    state = _mixed(seed[0] + jnp.uint32(_GOLDEN)) ^ seed[1]
    for place in (batch, heads, row):
        state = _mixed(_mixed(state) + place.astype(jnp.uint32) * jnp.uint32(_GOLDEN))
    of_column = _mixed(state ^ column.astype(jnp.uint32) * jnp.uint32(_ODD))
    bits = _mixed(of_column + _mixed(state + jnp.uint32(_ODD)))
    dropped = min(round(probability * 2**32), 2**32 - 1)
    return bits >= jnp.uint32(dropped)


def _mixed(x: Array) -> Array:
    # Finaliser of 32-bit MurmurHash3: each input bit changes each bit of the result
    # with probability 1/2.
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
