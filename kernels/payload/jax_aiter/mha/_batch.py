"""Flash attention of a batch: (batch, sequence, heads, head dimension)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_aiter import _check
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
    deterministic: bool = True,
    return_lse: bool = False,
    return_attn_probs: bool = False,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_kv: Array | None = None,
    *,
    dropout_seed: Any = None,
) -> Any:
    """Attention: softmax(q @ k.T * softmax_scale + bias) @ v for each head, with gradients.

    Query i of Sq stands at the key i + Sk - Sq of Sk: both sequences are aligned at their ends.

    Args:
        q: (batch, Sq, heads, D), bfloat16, float16 or float32 (float64 with jax_enable_x64).
        k: (batch, Sk, heads_k, D), of the dtype of q; heads is a multiple of heads_k (MQA and GQA).
        v: (batch, Sk, heads_k, Dv), likewise.
        dropout_p: probability with which a probability is dropped; 0 for evaluation.
        softmax_scale: of the scores; None takes 1 / sqrt(D).
        causal: a query sees no key after its own place.
        window_size: (left, right) keys that a query sees before and after its place; -1 for all.
        bias: (Sq, Sk), any float dtype, added to the scores of every head and sequence; it has a gradient.
        alibi_slopes: (heads,) or (batch, heads), float32: subtracts slope * distance from the scores (ALiBi).
        deterministic: gradients are summed in one order. XLA's always are; AITER's backward kernels sum in any, so
            they are taken with False alone.
        return_lse: also give the logarithm of the sum of exponentials; it has a gradient.
        return_attn_probs: also give the probabilities as they multiply v, dropout included: a whole matrix, for
            tests, without a gradient.
        cu_seqlens_q: (batch + 1,), int32: the differences are how many queries of each sequence count. What is beyond
            them gives 0. Comes with cu_seqlens_kv.
        cu_seqlens_kv: (batch + 1,), int32, likewise for keys.
        dropout_seed: a number from 0 to 2**64 - 1, or an integer array of no dimensions; needed with dropout. What is
            dropped depends on the seed and on batch, head, query and key alone. Under shard_map, where each device
            counts them from 0, make the seed of jax.lax.axis_index.

    Returns:
        out: (batch, Sq, heads, Dv), of the dtype of q; 0 where a query sees no key. With return_lse or
        return_attn_probs a tuple: out, then lse (batch, heads, Sq) in float32, -inf where a query sees no key, then
        probabilities (batch, heads, Sq, Sk) in float32.

    Raises:
        ValueError: shapes do not fit, a number is out of range, bias and ALiBi come together, or dropout has no seed.
        TypeError: dtypes do not fit.
        jax_aiter.BackendError: a backend was forced that is not there.
    """
    for name, array in (("q", q), ("k", k), ("v", v)):
        _check.rank(_NAME, name, array, "(batch, sequence, heads, head dimension)")
    batch, queries, heads, depth = q.shape
    keys = k.shape[1]
    _check.equal(_NAME, "k", k.shape[:1], (batch,), "(batch, ...)")
    _check.equal(_NAME, "v", v.shape[:2], (batch, keys), "(batch, Sk, ...)")
    _arguments.heads_fit(_NAME, q, k, v)
    config, seed = _arguments.config(_NAME, depth, dropout_p, softmax_scale, dropout_seed)
    if bias is not None:
        if alibi_slopes is not None:
            raise ValueError(f"{_NAME}: bias and alibi_slopes are given; it can be one of them.")
        _check.rank(_NAME, "bias", bias, "(Sq, Sk)")
        _check.equal(_NAME, "bias", bias.shape, (queries, keys), "(Sq, Sk)")
        _check.dtype(_NAME, "bias", bias, (jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64))
    slopes = _arguments.slopes(_NAME, alibi_slopes, batch, heads)
    window = _arguments.window(_NAME, window_size, causal)
    rows = _ranges(q, k, cu_seqlens_q, cu_seqlens_kv, window)
    task = Task(
        config,
        window,
        padded=cu_seqlens_q is not None,
        complete=_rows.complete(queries, keys, window[1]),
        deterministic=deterministic,
        # Probabilities too are of lse, and of what XLA drops.
        returns_lse=return_lse or return_attn_probs,
    )
    q, k, v, bias, slopes, seed, *ranges = together(q, k, v, bias, slopes, seed, *rows)
    whole = empty(jnp.int32)
    operands, given = Operands(q, k, v, bias, slopes), Given(_rows.Rows(*ranges), seed, whole, whole)
    out, lse = _attention.attention(make_plan(task, operands), operands, given)
    results = [out]
    if return_lse:
        results.append(lse)
    if return_attn_probs:
        results.append(_attention.probabilities(config, operands, given, lse))
    return results[0] if len(results) == 1 else tuple(results)


def _ranges(q: Array, k: Array, cu_q: Any, cu_kv: Any, window: tuple[int, int]) -> _rows.Rows:
    # [queries] where all of them count, and otherwise [batch, queries].
    (batch, queries), keys = q.shape[:2], k.shape[1]
    if (cu_q is None) != (cu_kv is None):
        raise ValueError(f"{_NAME}: cu_seqlens_q and cu_seqlens_kv come together.")
    if cu_q is None:
        return _rows.whole(queries, keys, *window)
    query_counts = _lengths("cu_seqlens_q", cu_q, batch, queries)
    key_counts = _lengths("cu_seqlens_kv", cu_kv, batch, keys)
    rows: _rows.Rows = jax.vmap(lambda one, other: _rows.padded(queries, one, other, *window))(query_counts, key_counts)
    return rows


def _lengths(name: str, array: Any, batch: int, places: int) -> Array:
    checked = _arguments.cumulative(_NAME, name, array, batch, batch * places)
    if not isinstance(array, jax.core.Tracer):
        # As numbers of the host: under jit every operation of jax gives a tracer, of a constant too.
        longest = int(np.diff(np.asarray(array)).max())
        if longest > places:
            raise ValueError(f"{_NAME}: a sequence of {name} has {longest}, and there are {places} places.")
    lengths: Array = checked[1:] - checked[:-1]
    return lengths
