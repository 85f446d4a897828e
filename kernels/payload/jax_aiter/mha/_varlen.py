"""Flash attention of sequences of different lengths, one after the other in one array."""

from __future__ import annotations

from typing import Any

from jax import Array

from jax_aiter import _check, _conventions
from jax_aiter._native import together
from jax_aiter.mha import _arguments, _attention, _rows
from jax_aiter.mha._kernels import Task, make_plan
from jax_aiter.mha._operands import Given, Operands

_NAME = "flash_attn_varlen"


def flash_attn_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    deterministic: bool | None = None,
    return_lse: bool = False,
    *,
    alibi_slopes: Array | None = None,
    dropout_seed: Any = None,
) -> Any:
    """Compute attention within each of several packed sequences, with gradients.

    See `flash_attn_func`.

    Args:
        q: (total_q, heads, D), bfloat16, float16 or float32 (float64 with
            jax_enable_x64).
        k: (total_k, heads_k, D), of the dtype of q; heads is a multiple of heads_k.
        v: (total_k, heads_k, Dv), of the dtype of q.
        cu_seqlens_q: (sequences + 1,), int32: start of the queries of each sequence,
            from 0, and end of the last one. Results of later queries are 0.
        cu_seqlens_k: (sequences + 1,), int32, likewise for keys; None means
            cu_seqlens_q. AITER's assembly kernels need a key for each query. None
            promises it, and concrete arrays are checked at once; for traced ones, the
            program decides when it runs, which waits for the device.
        max_seqlen_q: upper bound of the lengths of query sequences, for the launch grid
            of kernels; 0 for unknown. An error if cu_seqlens_q is not a tracer and has
            a longer sequence.
        max_seqlen_k: likewise for keys.
        dropout_p: fraction of the attention probabilities that is dropped; 0 for
            evaluation.
        softmax_scale: factor of the scores; None means 1 / sqrt(D).
        causal: whether a query sees no key after its own position; sequences are
            aligned at their ends.
        window_size: (left, right) keys that a query sees before and after its position;
            -1 for all.
        deterministic: True sums gradients in a fixed order, which XLA does and AITER's
            kernels do not; False and None leave the order open, so that AITER's kernels
            are used where they support the arguments.
        return_lse: also return the logarithm of the sum of exponentials;
            differentiable.
        alibi_slopes: (heads,), float32, or None.
        dropout_seed: as for `flash_attn_func`, with positions in the packed arrays.

    Returns:
        out: (total_q, heads, Dv), of the dtype of q; 0 if a query sees no key. With
            return_lse a pair: out, and lse
        (heads, total_q) in float32, -inf if a query sees no key.

    Raises:
        ValueError: shapes do not fit, a number is out of range, or a seed is given
            without dropout.
        TypeError: dtypes do not fit.
        jax_aiter.BackendError: a forced backend is unavailable.
    """
    for name, array in (("q", q), ("k", k), ("v", v)):
        _check.rank(_NAME, name, array, "(total, heads, head dimension)")
    total_q, heads, depth = q.shape
    total_k = k.shape[0]
    _check.shape(_NAME, "v", v, "(total_k, heads_k, Dv)", (total_k, *v.shape[1:]))
    _arguments.heads_fit(_NAME, q, k, v)
    config, seed = _arguments.config(
        _NAME, depth, dropout_p, softmax_scale, dropout_seed
    )
    _check.static(
        _NAME, causal=causal, deterministic=deterministic, return_lse=return_lse
    )
    window = _arguments.window(_NAME, window_size, causal)
    for name, value in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if not isinstance(value, int) or value < 0:
            raise ValueError(
                f"{_NAME}: {name} is {value!r}; it has to be an integer of 0 or more."
            )
    slopes = _arguments.slopes(_NAME, alibi_slopes, 1, heads)
    cu_q = _arguments.cumulative(
        _NAME, "cu_seqlens_q", cu_seqlens_q, None, total_q, max_seqlen_q
    )
    count = cu_q.shape[0] - 1
    given_k = cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
    cu_k = _arguments.cumulative(
        _NAME, "cu_seqlens_k", given_k, count, total_k, max_seqlen_k
    )
    task = Task(
        config,
        window,
        packed=True,
        longest=(max_seqlen_q, max_seqlen_k),
        sequences=count,
        complete=cu_seqlens_k is None or _rows.packed_complete(cu_q, cu_k, window[1]),
        deterministic=bool(deterministic),
        returns_lse=return_lse,
    )
    q, k, v, slopes, cu_q, cu_k, seed = together(
        q,
        k,
        v,
        slopes,
        cu_q,
        cu_k,
        seed,
    )
    rows = _rows.packed(total_q, cu_q, cu_k, *window)
    operands = Operands(q[None], k[None], v[None], None, slopes)
    given = Given(rows, seed, cu_q, cu_k)
    out, lse = _attention.attention(make_plan(task, operands), operands, given)
    results = [out[0]]
    if return_lse:
        results.append(lse[0])
    return _conventions.results(results)
