"""Operands of attention."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from jax_aiter.mha._rows import Rows

Pair = tuple[Array, Array]
"""Out and lse, or their cotangents."""


class Operands(NamedTuple):
    """Operands of a batch of B sequences that may have gradients.

    Attributes:
        q: [B, queries, H, D].
        k: [B, keys, Hk, D].
        v: [B, keys, Hk, Dv].
        bias: [queries, keys], shared by all heads and sequences, or None.
        slopes: [H] or [B, H], or None.
    """

    q: Array
    k: Array
    v: Array
    bias: Array | None
    slopes: Array | None

    def with_all_slopes(self) -> Operands:
        """Return the operands with slopes of [B, H]."""
        if self.slopes is None:
            return self
        batch, _, heads, _ = self.q.shape
        return self._replace(slopes=jnp.broadcast_to(self.slopes, (batch, heads)))


class Given(NamedTuple):
    """Operands without a gradient.

    Attributes:
        rows: range of keys that each query attends to, [queries] for all sequences or
            [B, queries].
        seed: [2], uint32.
        cu_q, cu_k: starts of packed sequences and the end of the last one, [sequences +
            1], int32; shape [0] if the sequences are not packed.
        first: [2], int32: indices of the first sequence and head; None if the operands
            are not the part of a device.
    """

    rows: Rows
    seed: Array
    cu_q: Array
    cu_k: Array
    first: Array | None = None


class Backward(NamedTuple):
    """Arguments of the backward direction.

    Attributes:
        operands, given: arguments of the forward direction.
        saved: its results.
        cotangents: their cotangents.
    """

    operands: Operands
    given: Given
    saved: Pair
    cotangents: Pair
