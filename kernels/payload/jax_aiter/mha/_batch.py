"""Flash attention of a batch: (batch, sequence, heads, head dimension)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_aiter import _check, _conventions
from jax_aiter._native import empty, together
from jax_aiter.mha import _arguments, _attention, _rows
from jax_aiter.mha._kernels import Task, make_plan
from jax_aiter.mha._operands import Given, Operands

_NAME = "flash_attn_func"


def flash_attn_func(
    q: Array,
    k: Array,
    v: Array,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    bias: Array | None = None,
    alibi_slopes: Array | None = None,
    deterministic: bool | None = None,
    return_lse: bool = False,
    return_attn_probs: bool = False,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_kv: Array | None = None,
    *,
    dropout_seed: Any = None,
) -> Any:
    """Compute attention, softmax(q @ k.T * softmax_scale + bias) @ v for each head, with gradients.

    The sequences of queries and keys are aligned at their ends: the position of query i
    is key i + Sk - Sq.

    Args:
        q: (batch, Sq, heads, D), bfloat16, float16 or float32 (float64 with
            jax_enable_x64).
        k: (batch, Sk, heads_k, D), of the dtype of q; heads is a multiple of heads_k
            (MQA and GQA).
        v: (batch, Sk, heads_k, Dv), of the dtype of q.
        dropout_p: fraction of the attention probabilities that is dropped; 0 for
            evaluation.
        softmax_scale: factor of the scores; None means 1 / sqrt(D).
        causal: whether a query sees no key after its own position.
        window_size: (left, right) keys that a query sees before and after its position;
            -1 for all.
        bias: (Sq, Sk), any float dtype, added to the scores of every head and sequence;
            differentiable.
        alibi_slopes: (heads,) or (batch, heads), float32; slope * distance is
            subtracted from the scores (ALiBi).
        deterministic: True sums gradients in a fixed order, which XLA does and AITER's
            kernels do not; False and None leave the order open, so that AITER's kernels
            are used where they support the arguments.
        return_lse: also return the logarithm of the sum of exponentials;
            differentiable.
        return_attn_probs: also return the probabilities as they multiply v, dropout
            included: a whole matrix, for tests, without a gradient.
        cu_seqlens_q: (batch + 1,), int32; the differences are the numbers of valid
            queries of each sequence. Results of other queries are 0. Requires
            cu_seqlens_kv.
        cu_seqlens_kv: (batch + 1,), int32, likewise for keys.
        dropout_seed: integer from 0 to 2**64 - 1, or an integer array without
            dimensions; an error without dropout. None means 0: each call drops the same
            probabilities, so pass another one at every step. Dropout depends only on
            the seed and on the indices of batch, head, query and key. Under shard_map,
            each device counts these from 0, so derive the seed from jax.lax.axis_index.

    Returns:
        out: (batch, Sq, heads, Dv), of the dtype of q; 0 if a query sees no key. With
            return_lse or return_attn_probs a
        tuple: out, then lse (batch, heads, Sq) in float32, -inf if a query sees no key,
            then probabilities
        (batch, heads, Sq, Sk) in float32.

    Raises:
        ValueError: shapes do not fit, a number is out of range, both bias and ALiBi are
            given, or a seed is given without dropout.
        TypeError: dtypes do not fit.
        jax_aiter.BackendError: a forced backend is unavailable.
    """
    for name, array in (("q", q), ("k", k), ("v", v)):
        _check.rank(_NAME, name, array, "(batch, sequence, heads, head dimension)")
    batch, queries, heads, depth = q.shape
    keys = k.shape[1]
    _check.shape(_NAME, "k", k, "(batch, Sk, heads_k, D)", (batch, *k.shape[1:]))
    _check.shape(_NAME, "v", v, "(batch, Sk, heads_k, Dv)", (batch, keys, *v.shape[2:]))
    _arguments.heads_fit(_NAME, q, k, v)
    config, seed = _arguments.config(
        _NAME, depth, dropout_p, softmax_scale, dropout_seed
    )
    if bias is not None:
        if alibi_slopes is not None:
            raise ValueError(f"{_NAME}: bias and alibi_slopes cannot be combined.")
        _check.shape(_NAME, "bias", bias, "(Sq, Sk)", (queries, keys))
        _check.dtype(_NAME, "bias", bias, _arguments.DTYPES)
    slopes = _arguments.slopes(_NAME, alibi_slopes, batch, heads)
    _check.static(
        _NAME,
        causal=causal,
        deterministic=deterministic,
        return_lse=return_lse,
        return_attn_probs=return_attn_probs,
    )
    window = _arguments.window(_NAME, window_size, causal)
    rows = _ranges(q, k, cu_seqlens_q, cu_seqlens_kv, window)
    task = Task(
        config,
        window,
        padded=cu_seqlens_q is not None,
        complete=_rows.complete(queries, keys, window[1]),
        deterministic=bool(deterministic),
        # Probabilities are computed from lse too, with XLA's dropout.
        returns_lse=return_lse or return_attn_probs,
    )
    q, k, v, bias, slopes, seed, *ranges = together(
        q,
        k,
        v,
        bias,
        slopes,
        seed,
        *rows,
    )
    whole = empty(jnp.int32)
    operands = Operands(q, k, v, bias, slopes)
    given = Given(_rows.Rows(*ranges), seed, whole, whole)
    out, lse = _attention.attention(make_plan(task, operands), operands, given)
    results = [out]
    if return_lse:
        results.append(lse)
    if return_attn_probs:
        results.append(_attention.probabilities(config, operands, given, lse))
    return _conventions.results(results)


def _ranges(
    q: Array,
    k: Array,
    cu_q: Any,
    cu_kv: Any,
    window: tuple[int, int],
) -> _rows.Rows:
    # Ranges of [queries] if all queries are valid, else of [batch, queries].
    (batch, queries), keys = q.shape[:2], k.shape[1]
    if (cu_q is None) != (cu_kv is None):
        raise ValueError(
            f"{_NAME}: cu_seqlens_q and cu_seqlens_kv have to be given together."
        )
    if cu_q is None:
        return _rows.whole(queries, keys, *window)
    query_counts = _lengths("cu_seqlens_q", cu_q, batch, queries)
    key_counts = _lengths("cu_seqlens_kv", cu_kv, batch, keys)

    def ranges(query_count: Array, key_count: Array) -> _rows.Rows:
        return _rows.padded(queries, query_count, key_count, *window)

    return jax.vmap(ranges)(query_counts, key_counts)  # type: ignore[no-any-return]


def _lengths(
    name: str,
    array: Any,
    batch: int,
    places: int,
) -> Array:
    checked = _arguments.cumulative(_NAME, name, array, batch, batch * places)
    if not isinstance(array, jax.core.Tracer):
        # NumPy, because under jit every operation of jax returns a tracer, even for
        # constants.
        longest = int(np.diff(np.asarray(array)).max())
        if _check.proven(lambda: longest > places):
            raise ValueError(
                f"{_NAME}: a sequence of {name} has the length {longest}, but its array"
                f" has {places}."
            )
    return checked[1:] - checked[:-1]
