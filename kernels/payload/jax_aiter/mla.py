"""Decoding with multi-head latent attention (MLA): queries absorb the projection of keys, and heads share the cache.

AITER has kernels for the sizes of DeepSeek V2, V3 and R1: 576 numbers for each token, of which the first 512 are its
value. They compute attention with parts of the tokens; XLA combines the parts. No derivative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_aiter import _check, _limits, _mla_splits
from jax_aiter._choice import Choice, choose, places, wanted_targets
from jax_aiter._decoding import Keys, attend, seen
from jax_aiter._evidence import Problem
from jax_aiter._native import dispatch, empty, ffi, rowwise, together
from jax_aiter._partition import Axes, Rule, partitioned
from jax_aiter._quantised import not_differentiable
from jax_aiter._table import AITER, MLA_DECODE, XLA

__all__ = ["mla_decode"]

_NAME = "mla_decode"
_FP8 = (jnp.float8_e4m3fn, jnp.float8_e4m3fnuz)
_DTYPES = (jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64, *_FP8)
_FEW, _MANY = 16, 128
_UNITS = 304
"""Compute units of an MI300X, for GPUs that are unknown."""


@dataclass(frozen=True, slots=True)
class _Task:
    # Everything but the arrays; splits 0 are AITER's.
    choice: Choice
    scale: float
    depth: int
    splits: int
    units: int


def mla_decode(
    q: Array,
    kv_cache: Array,
    block_tables: Array,
    context_lens: Array,
    *,
    v_head_dim: int = 512,
    q_scale: Array | None = None,
    kv_scale: Array | None = None,
    softmax_scale: float | None = None,
    num_kv_splits: int | None = None,
) -> Array:
    """Compute attention of the last tokens of each sequence with all of its tokens, in the latent space.

    Args:
        q: [sequences, heads, D] for one token of each sequence, or [sequences, L, heads, D] for the last L tokens, each
            of which sees the tokens up to itself; bfloat16, float16, float32 (float64 with jax_enable_x64),
            float8_e4m3fn or float8_e4m3fnuz. AITER's kernels need bfloat16, or float8_e4m3fnuz on gfx942 and
            float8_e4m3fn on gfx950, and a multiple of 16 heads.
        kv_cache: [pages, page, D], of the dtype of q: the key of each token, which begins with its value. AITER's
            kernels need D = 576.
        block_tables: [sequences, W], int32: pages of each sequence; entries beyond its tokens are not used.
        context_lens: [sequences], int32: number of tokens of each sequence, at most W * page, those of q included.
        v_head_dim: numbers of a value, Dv.
        q_scale: [1], float32: factor of q; required for fp8, else None.
        kv_scale: likewise for the cache.
        softmax_scale: factor of the scores; None means 1 / sqrt(D). Models whose keys had another dimension before the
            absorption, such as DeepSeek V3 with 192, pass theirs.
        num_kv_splits: parts of the tokens that a kernel computes attention with; None means AITER's choice. XLA's code
            has no parts.

    Returns:
        Array of the shape of q with Dv numbers for each head, of the dtype of q, bfloat16 for fp8; 0 for a token that
        sees no token.

    Raises:
        ValueError: shapes do not fit, a number is out of range, or scales are missing or not needed.
        TypeError: dtypes do not fit.
        jax_aiter.NotDifferentiableError: the operation was differentiated.
        jax_aiter.BackendError: a forced backend is unavailable, or its kernels do not support the arguments.
    """
    one = getattr(q, "ndim", 0) == 3
    _check.rank(_NAME, "q", q, "[sequences, heads, D]" if one else "[sequences, L, heads, D]")
    whole = q[:, None] if one else q
    _validate(whole, kv_cache, v_head_dim)
    _check.tables(_NAME, whole.shape[0], block_tables, context_lens, kv_cache.shape[1])
    scales = _scales(q, q_scale=q_scale, kv_scale=kv_scale)
    if num_kv_splits is not None and (not isinstance(num_kv_splits, int) or num_kv_splits < 1):
        raise ValueError(f"{_NAME}: num_kv_splits is {num_kv_splits!r}; it has to be an integer of 1 or more.")
    if isinstance(softmax_scale, jax.Array):
        raise TypeError(f"{_NAME}: softmax_scale is an array; it has to be a number.")
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale)
    units = min((number for _, number in places()), default=_UNITS)
    facts = _facts(whole, kv_cache, block_tables, v_head_dim, num_kv_splits or 0, units)
    (sequences, queries, heads, depth), page = whole.shape, kv_cache.shape[1]
    text = f"{q.dtype.name} queries={queries} heads={heads} page={page} Dv={v_head_dim} splits={num_kv_splits}"
    problem = Problem(sequences, block_tables.shape[1] * page, depth, text)
    choice = choose(_NAME, obstacles={AITER: _limits.obstacle(MLA_DECODE, **facts)}, problem=problem)
    task = _Task(choice, scale, v_head_dim, num_kv_splits or 0, units)
    out = _compiled(task, *together(whole, kv_cache, block_tables, context_lens, *scales))
    return out[:, 0] if one else out


def _validate(q: Array, cache: Array, depth: int) -> None:
    _check.dtype(_NAME, "q", q, _DTYPES)
    _check.rank(_NAME, "kv_cache", cache, "[pages, page, D]")
    _check.dtype(_NAME, "kv_cache", cache, (q.dtype,))
    _check.equal(_NAME, "kv_cache", cache.shape[2:], q.shape[3:], "[..., D]")
    if q.shape[2] == 0 or q.shape[3] == 0 or cache.shape[1] == 0:
        raise ValueError(
            f"{_NAME}: q has the shape {list(q.shape)} and kv_cache {list(cache.shape)}; no size may be 0."
        )
    if not isinstance(depth, int) or not 0 < depth <= q.shape[3]:
        raise ValueError(f"{_NAME}: v_head_dim is {depth!r}; it has to be from 1 to D = {q.shape[3]}.")


def _scales(q: Array, **scales: Array | None) -> list[Array]:
    quantised, found = q.dtype.itemsize == 1, []
    for name, scale in scales.items():
        if quantised == (scale is None):
            needed = "is required" if scale is None else "has to be None"
            raise ValueError(f"{_NAME}: {name} {needed} for a q of the dtype {q.dtype}.")
        if scale is not None:
            _check.rank(_NAME, name, scale, "[1]")
            _check.equal(_NAME, name, scale.shape, (1,), "[1]")
            _check.dtype(_NAME, name, scale, (jnp.float32,))
        found.append(empty(jnp.float32) if scale is None else scale)
    return found


def _splits(q: Any, cache: Array, tables: Array, splits: int, units: int) -> int:
    tokens = q.shape[0] * tables.shape[1] * cache.shape[1]
    if splits or not tokens:
        return max(1, splits)
    rows, fp8 = (_heads(q.shape[2]), min(q.shape[1], 4)), q.dtype.itemsize == 1
    return _mla_splits.count(q.shape[0], tokens, *rows, units, fp8=fp8)


def _heads(heads: int) -> int:
    # Heads of a call: kernels exist for 16 and 128.
    return _MANY if heads == _MANY else _FEW


def _facts(q: Any, cache: Array, tables: Array, depth: int, splits: int, units: int) -> dict[str, Any]:
    return {
        "dtype": q.dtype.name,
        "gfx": {target.partition(":")[0] for target in wanted_targets()[0]},
        "sequences": q.shape[0],
        "queries": q.shape[1],
        "heads": q.shape[2],
        "part": _heads(q.shape[2]),
        "depth": q.shape[3],
        "value_depth": depth,
        "tokens": cache.shape[0] * cache.shape[1],
        "width": tables.shape[1] * cache.shape[1],
        "splits": _splits(q, cache, tables, splits, units),
        "element": q.dtype.itemsize,
    }


def _reference(task: _Task, q: Array, cache: Array, *others: Array) -> Array:
    tables, lengths, q_scale, kv_scale = others
    page, fp8 = cache.shape[1], q.dtype.itemsize == 1
    dtype = jnp.bfloat16 if fp8 else q.dtype

    def fetch(spots: Array) -> Keys:
        pages = jnp.take(tables, spots // page, axis=1, mode="clip")
        keys = cache.at[pages, spots % page].get(mode="clip")[:, :, None].astype(dtype)
        if not fp8:
            return Keys(keys, keys[..., : task.depth])
        factors = (jnp.broadcast_to(scale, keys.shape[:3]) for scale in (q_scale * kv_scale, kv_scale))
        return Keys(keys, keys[..., : task.depth], *factors)

    return attend(q.astype(dtype), lengths, fetch, 1, task.depth, task.scale)


def packed_tokens(tables: Array, lengths: Array, page: int, most: int) -> tuple[Array, Array]:
    """Return the rows of the cache of all sequences, one sequence after the other.

    Args:
        tables: pages of each sequence, [S, W], int32.
        lengths: tokens of each sequence, [S], int32.
        page: tokens of a page.
        most: rows of the cache.

    Returns:
        starts: [S + 1], int32: first token of each sequence, and end of the last one.
        rows: [S * W * page], int32; 0 beyond the end.
    """
    sequences, width = tables.shape[0], tables.shape[1] * page
    starts = jnp.concatenate([jnp.zeros((1,), jnp.int32), jnp.cumsum(lengths, dtype=jnp.int32)])
    spots = jnp.arange(width, dtype=jnp.int32)
    rows = jnp.clip(tables[:, spots // page] * page + spots % page, 0, most - 1)
    to = jnp.where(spots < lengths[:, None], starts[:-1, None] + spots, sequences * width)
    return starts, jnp.zeros((sequences * width,), jnp.int32).at[to].set(rows, mode="drop")


def combined(partial: Array, lse: Array, lengths: Array, granule: int) -> Array:
    """Return attention from its parts, in float32.

    Args:
        partial: results of the parts, [S, L, N, H, E], float32.
        lse: logarithms of their sums of exponentials, [S, L, N, H].
        lengths: tokens of each sequence, [S], int32.
        granule: see `_mla_splits.granule`; further parts of a sequence are not written.

    Returns:
        [S, L, H, E].
    """
    parts = jnp.arange(lse.shape[2], dtype=jnp.int32)
    written = (parts < -(-lengths // granule)[:, None])[:, None, :, None]
    lse = jnp.where(written, lse, -jnp.inf)
    most = lse.max(2, keepdims=True)
    weights = jnp.where(written, jnp.exp(lse - jnp.where(jnp.isfinite(most), most, 0)), 0)[..., None]
    total = weights.sum(2)
    sums = jnp.where(weights > 0, weights * partial, 0).sum(2)
    return sums / jnp.where(total > 0, total, 1)


def _kernel(task: _Task, *operands: Array) -> Array:
    def call(_sequences: int) -> Any:
        return lambda *operands: (_calls(task, *operands),)

    def fits(sequences: int) -> bool:
        q, cache, tables = operands[:3]
        of_all = (sequences, *q.shape[1:])
        facts = _facts(jax.ShapeDtypeStruct(of_all, q.dtype), cache, tables, task.depth, task.splits, task.units)
        return not _limits.obstacle(MLA_DECODE, **facts)

    (out,) = rowwise(call, (True, False, True, True, False, False), fits)(*operands)
    sees = seen(operands[3], operands[0].shape[1]) > 0
    return jnp.where(sees[:, :, None, None], out, jnp.zeros((), out.dtype))


def _calls(task: _Task, q: Array, cache: Array, tables: Array, lengths: Array, *scales: Array) -> Array:
    pages, page, depth = cache.shape
    sequences, queries, heads, _ = q.shape
    starts, tokens = packed_tokens(tables, lengths, page, pages * page)
    part, splits = _heads(heads), _splits(q, cache, tables, task.splits, task.units)
    every = jnp.arange(sequences + 1, dtype=jnp.int32)
    rest = (starts, tokens, jnp.ones((sequences,), jnp.int32), every * queries, every * splits, *scales)
    whole = splits == 1 and (q.dtype.itemsize == 1 or (part, queries) != (_FEW, 1))
    shape = (sequences, queries, splits, part)
    results = [
        ((sequences, queries, part, task.depth), jnp.bfloat16),
        ((0,) if whole else (*shape, task.depth), jnp.float32),
        (shape, jnp.float32),
    ]
    flat, granule, made = cache.reshape(pages * page, depth), _mla_splits.granule(part, queries), []
    for first in range(0, heads, part):
        call = ffi(MLA_DECODE, results, scale=np.float32(task.scale))
        out, partial, lse = call(q[:, :, first : first + part], flat, *rest)
        made.append(out if whole else combined(partial, lse, lengths, granule).astype(out.dtype))
    return made[0] if len(made) == 1 else jnp.concatenate(made, axis=2)


def _divided(task: _Task, *operands: Array) -> Array:
    def local(_axes: Axes, *operands: Array) -> tuple[Array, ...]:
        choice = task.choice
        out: Array = dispatch(choice, lambda *a: _kernel(task, *a), lambda *a: _reference(task, *a), *operands)
        return (out,)

    # Parts have heads of whole calls.
    heads = 16 if task.choice.backend != XLA else 1
    rule = Rule.parse("b l h d, n p d, b w, b, one, two -> b l h e", b=1, h=heads)
    return partitioned(rule, local, *operands, by_rule=task.choice.backend != XLA)[0]


_compiled = not_differentiable(_NAME, "it is for decoding. Use jax_aiter.mha for training", _divided)
