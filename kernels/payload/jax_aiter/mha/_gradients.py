"""Calls of AITER's kernels of the gradient of attention."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from jax_aiter import _limits
from jax_aiter._choice import Choice
from jax_aiter._native import Arrays, ffi
from jax_aiter._table import MHA_BWD, MHA_BWD_ASM
from jax_aiter.mha import _kernels
from jax_aiter.mha._kernels import Task, unpacked
from jax_aiter.mha._operands import Backward

_UNSEEN = 1e30
"""Value of lse for a query that sees no key.

Exp(score - lse) is 0, also where the score is -inf.
"""


def backward(
    task: Task,
    choice: Choice,
    arguments: Backward,
) -> Arrays:
    """Compute the gradients of q, k and v with a kernel."""
    compute = _assembly if choice.call == MHA_BWD_ASM.name else _composable_kernel
    operands = arguments.operands
    dq, dk, dv = compute(task, arguments)
    grads = (dq, _shared(dk, operands.k), _shared(dv, operands.v))
    return tuple(part[None] for part in grads) if task.packed else grads


def _assembly(
    task: Task,
    arguments: Backward,
) -> Arrays:
    # The kernels compute dk, dv, and dq in float32; XLA computes the sums of dout * out
    # before them, and converts dq after them. Source: `fmha_bwd_v3` in AITER's
    # hsa/*/fmha_v3_bwd/codegen.py.
    operands, given, (out, lse), (dout, dlse) = arguments
    sees = given.rows.end > given.rows.start
    wide = (dout.astype(jnp.float32), out.astype(jnp.float32))
    sums = jnp.einsum("bshd,bshd->bhs", *wide, precision="highest")
    d = jnp.where(sees, sums - dlse.astype(jnp.float32), 0)
    lse = jnp.where(sees, lse, _UNSEEN)
    arrays = unpacked(task, dout.astype(out.dtype), *operands[:3], lse, d)
    attrs = _kernels.attributes(task, operands)
    del attrs["dropout"]

    def call(*batch: int) -> Callable[..., Arrays]:
        q, k, v = arrays[1:4]
        queries, heads, depth = q.shape[-3:]
        keys = k.shape[-3]
        results = [
            ((*batch, heads, queries, depth), jnp.float32),
            ((*batch, keys, heads, depth), q.dtype),
            ((*batch, keys, heads, v.shape[-1]), q.dtype),
        ]
        return ffi(MHA_BWD_ASM, results, **attrs)

    def fits(batch: int) -> bool:
        return not _limits.obstacle(MHA_BWD_ASM, **{**known, "batch": batch})

    known = _kernels.facts(task, operands)
    rows = (*[True] * len(arrays), False, False)
    everything = (*arrays, given.cu_q, given.cu_k)
    dq_sum, dk, dv = _kernels.called(task, call, rows, everything, fits)
    return jnp.swapaxes(dq_sum, -3, -2).astype(operands.q.dtype), dk, dv


def _composable_kernel(
    task: Task,
    arguments: Backward,
) -> Arrays:
    # The kernel is not chosen if lse has a cotangent.
    operands, given, (out, lse), (dout, _) = arguments
    arrays = unpacked(task, dout.astype(out.dtype), *operands[:3], out, lse)
    rows = (*[True] * len(arrays), *_kernels.rows_of_extras(operands))

    def call(*batch: int) -> Callable[..., Arrays]:
        q, k, v = arrays[1:4]
        queries, heads, depth = q.shape[-3:]
        keys = k.shape[-3]
        results = [
            ((*batch, queries, heads, depth), q.dtype),
            ((*batch, keys, heads, depth), q.dtype),
            ((*batch, keys, heads, v.shape[-1]), q.dtype),
            ((*batch, queries, heads, depth), jnp.float32),
            ((*batch, heads, queries), jnp.float32),
        ]
        return ffi(MHA_BWD, results, **_kernels.attributes(task, operands))

    everything = (*arrays, *_kernels.extras(task, operands, given))
    return _kernels.called(task, call, rows, everything)[:3]


def _shared(gradient: Array, like: Array) -> Array:
    # Kernels return a gradient for each head of q; gradients of a shared head of k or v
    # are added.
    *front, heads, depth = gradient.shape
    shared = like.shape[-2]
    parts = gradient.reshape(*front, shared, heads // shared, depth)
    return parts.sum(-2, dtype=jnp.float32).astype(like.dtype)
