"""Operands of attention."""

from __future__ import annotations

from typing import NamedTuple

from jax import Array

from jax_aiter.mha._rows import Rows


class Operands(NamedTuple):
    """Operands of a batch of B sequences that may have gradients.

    Attributes:
        q: [B, queries, H, D].
        k: [B, keys, Hk, D].
        v: [B, keys, Hk, Dv].
        bias: [queries, keys], shared by all heads and sequences, or None.
        slopes: [B, H], or None.
    """

    q: Array
    k: Array
    v: Array
    bias: Array | None
    slopes: Array | None


class Given(NamedTuple):
    """Operands without a gradient.

    Attributes:
        rows: range of keys that each query attends to, [queries] for all sequences or [B, queries].
        seed: [2], uint32.
        cu_q, cu_k: starts of packed sequences and the end of the last one, [sequences + 1], int32; shape [0] if the
            sequences are not packed.
    """

    rows: Rows
    seed: Array
    cu_q: Array
    cu_k: Array
