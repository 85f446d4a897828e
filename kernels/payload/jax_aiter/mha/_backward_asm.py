"""Operands and results of AITER's assembly kernels of the gradient of attention.

The kernels compute dk, dv, and dq in float32; XLA computes the sums of dout * out
before them, and converts dq after them. Source: `fmha_bwd_v3` in AITER's
hsa/*/fmha_v3_bwd/codegen.py.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

_UNSEEN = 1e30
"""Value of lse for a query that sees no key.

Exp(score - lse) is 0, also where the score is -inf.
"""


def operands(
    q: Array,
    k: Array,
    v: Array,
    dout: Array,
    dlse: Array,
    out: Array,
    lse: Array,
    sees: Array,
) -> tuple[Array, ...]:
    """Return the operands dout, q, k, v, lse and d of the call; see modules.toml.

    Args:
        q, k, v: operands of attention, [B, sequence, heads, depth].
        dout, dlse: cotangents of the results.
        out, lse: results, [B, queries, H, Dv] and [B, H, queries].
        sees: whether each query sees a key, [queries] or [B, 1, queries].
    """
    sums = jnp.einsum(
        "bshd,bshd->bhs",
        dout.astype(jnp.float32),
        out.astype(jnp.float32),
        precision="highest",
    )
    d = jnp.where(sees, sums - dlse.astype(jnp.float32), 0)
    return dout.astype(out.dtype), q, k, v, jnp.where(sees, lse, _UNSEEN), d


def results(
    batch: tuple[int, ...], q: Array, k: Array, v: Array
) -> list[tuple[tuple[int, ...], Any]]:
    """Return shape and dtype of the results dq_sum, dk and dv.

    `batch` is () for packed sequences.
    """
    queries, heads, depth = q.shape[-3:]
    keys = k.shape[-3]
    return [
        ((*batch, heads, queries, depth), jnp.float32),
        ((*batch, keys, heads, depth), q.dtype),
        ((*batch, keys, heads, v.shape[-1]), q.dtype),
    ]


def converted(dq_sum: Array, dtype: Any) -> Array:
    """Return dq, [..., queries, heads, depth], from the sums of the kernel."""
    return jnp.swapaxes(dq_sum, -3, -2).astype(dtype)
