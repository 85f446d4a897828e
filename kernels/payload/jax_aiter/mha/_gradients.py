"""Calls of AITER's kernels of the gradient of attention."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from jax_aiter import _limits
from jax_aiter._choice import Choice
from jax_aiter._native import ffi
from jax_aiter._table import MHA_BWD, MHA_BWD_ASM
from jax_aiter.mha import _backward_asm, _kernels
from jax_aiter.mha._kernels import Plan, Task
from jax_aiter.mha._operands import Given, Operands


def backward(
    plan: Plan,
    choice: Choice,
    operands: Operands,
    given: Given,
    saved: tuple[Array, Array],
    cotangents: tuple[Array, Array],
) -> Operands:
    """Compute the gradients of q, k and v with a kernel."""
    task = plan.task
    compute = _assembly if choice.call == MHA_BWD_ASM.name else _composable_kernel
    dq, dk, dv = compute(task, operands, given, saved, cotangents)
    dk = _shared(dk, operands.k)
    dv = _shared(dv, operands.v)
    dq, dk, dv = ((part[None] if task.packed else part) for part in (dq, dk, dv))
    return Operands(dq, dk, dv, None, None)


def _assembly(
    task: Task,
    operands: Operands,
    given: Given,
    saved: tuple[Array, Array],
    cotangents: tuple[Array, Array],
) -> tuple[Array, Array, Array]:
    sees = given.rows.end > given.rows.start
    arrays = _backward_asm.operands(*operands[:3], *cotangents, *saved, sees)
    arrays = tuple(part[0] for part in arrays) if task.packed else arrays
    names = ("scale", "window_left", "window_right", "longest_query", "longest_key")
    attrs = {
        name: value
        for name, value in _kernels.attributes(task, operands).items()
        if name in names
    }

    def call(batch: int) -> Any:
        return ffi(
            MHA_BWD_ASM,
            _backward_asm.results((batch,) if not task.packed else (), *arrays[1:4]),
            **attrs,
        )

    def fits(batch: int) -> bool:
        return not _limits.obstacle(MHA_BWD_ASM, **{**known, "batch": batch})

    known = _kernels.facts(task, operands)
    rows = (*[True] * len(arrays), False, False)
    dq_sum, dk, dv = _kernels.called(
        task, call, rows, (*arrays, given.cu_q, given.cu_k), fits
    )
    return _backward_asm.converted(dq_sum, operands.q.dtype), dk, dv


def _composable_kernel(
    task: Task,
    operands: Operands,
    given: Given,
    saved: tuple[Array, Array],
    cotangents: tuple[Array, Array],
) -> tuple[Array, Array, Array]:
    # The kernel is not chosen if lse has a cotangent.
    out, lse = saved
    dout, q, k, v, out, lse = (
        part[0] if task.packed else part
        for part in (cotangents[0].astype(out.dtype), *operands[:3], out, lse)
    )
    rows = (True, True, True, True, True, True, *_kernels.rows_of_extras(operands))

    def call(batch: int) -> Any:
        count = (batch,) if not task.packed else ()
        queries, heads, depth = q.shape[-3:]
        keys = k.shape[-3]
        results = [
            ((*count, queries, heads, depth), q.dtype),
            ((*count, keys, heads, depth), q.dtype),
            ((*count, keys, heads, v.shape[-1]), q.dtype),
            ((*count, queries, heads, depth), jnp.float32),
            ((*count, heads, queries), jnp.float32),
        ]
        return ffi(MHA_BWD, results, **_kernels.attributes(task, operands))

    arrays = (dout, q, k, v, out, lse, *_kernels.extras(task, operands, given))
    dq, dk, dv, _, _ = _kernels.called(task, call, rows, arrays)
    return dq, dk, dv


def _shared(gradient: Array, like: Array) -> Array:
    # Kernels return a gradient for each head of q; gradients of a shared head of k or v
    # are added.
    heads = like.shape[-2]
    parts = gradient.reshape(
        *gradient.shape[:-2], heads, gradient.shape[-2] // heads, gradient.shape[-1]
    )
    return parts.sum(-2, dtype=jnp.float32).astype(like.dtype)
