"""Attention of decoding: the last tokens of each sequence, with keys and values in pages. No derivative.

AITER has kernels for pages of 16 tokens and heads of 128 numbers, with caches in bfloat16, float16, int8 and fp8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_aiter import _check, _limits
from jax_aiter._choice import Choice, choose, wanted_targets
from jax_aiter._decoding import Keys, attend, seen
from jax_aiter._evidence import Problem
from jax_aiter._native import dispatch, empty, ffi, int32, rowwise, together
from jax_aiter._partition import Axes, Rule, partitioned
from jax_aiter._quantised import not_differentiable
from jax_aiter._table import AITER, PAGED_ATTENTION, XLA

__all__ = ["page_keys", "page_values", "paged_attention"]

_NAME = "paged_attention"
_DTYPES = (jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64)
_QUANTISED = (jnp.int8, jnp.float8_e4m3fn, jnp.float8_e4m3fnuz)
_PIECE = 16
_KEYS, _VALUES = "[pages, heads_k, D/x, page, x]", "[pages, heads_k, page/x, D, x]"


@dataclass(frozen=True, slots=True)
class _Task:
    # Everything but the arrays.
    choice: Choice
    scale: float
    precision: int


def page_keys(keys: Array) -> Array:
    """Return keys in the order of the cache: the 16 bytes of x numbers of a token lie together.

    Args:
        keys: [pages, page, heads_k, D]; D a multiple of x = 16 / bytes of a number.

    Returns:
        [pages, heads_k, D/x, page, x].

    Raises:
        ValueError: the shape does not fit.
    """
    _check.rank("page_keys", "keys", keys, "[pages, page, heads_k, D]")
    pages, page, heads, depth = keys.shape
    piece = _PIECE // keys.dtype.itemsize
    _check.multiple("page_keys", "D", depth, piece)
    return keys.reshape(pages, page, heads, depth // piece, piece).transpose(0, 2, 3, 1, 4)


def page_values(values: Array) -> Array:
    """Return values in the order of the cache: the 16 bytes of x tokens lie together.

    Args:
        values: [pages, page, heads_k, D]; page a multiple of x = 16 / bytes of a number.

    Returns:
        [pages, heads_k, page/x, D, x].

    Raises:
        ValueError: the shape does not fit.
    """
    _check.rank("page_values", "values", values, "[pages, page, heads_k, D]")
    pages, page, heads, depth = values.shape
    piece = _PIECE // values.dtype.itemsize
    _check.multiple("page_values", "page", page, piece)
    return values.reshape(pages, page // piece, piece, heads, depth).transpose(0, 3, 1, 4, 2)


def paged_attention(
    q: Array,
    key_cache: Array,
    value_cache: Array,
    block_tables: Array,
    context_lens: Array,
    *,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    softmax_scale: float | None = None,
    high_precision: int = 1,
) -> Array:
    """Compute attention of the last tokens of each sequence with all of its tokens, whose keys and values are cached.

    Caches have the order of AITER's `pa_fwd_asm`, with pieces of 16 bytes, which are x numbers; `page_keys` and
    `page_values` return it.

    Args:
        q: [sequences, heads, D] for one token of each sequence, or [sequences, L, heads, D] for the last L tokens, each
            of which sees the tokens up to itself; bfloat16, float16 or float32 (float64 with jax_enable_x64).
        key_cache: [pages, heads_k, D/x, page, x], of the dtype of q, or int8, float8_e4m3fn or float8_e4m3fnuz. AITER's
            kernels need float8_e4m3fnuz on gfx942 and float8_e4m3fn on gfx950.
        value_cache: [pages, heads_k, page/x, D, x], of the dtype of key_cache.
        block_tables: [sequences, W], int32: pages of each sequence; entries beyond its tokens are not used.
        context_lens: [sequences], int32: number of tokens of each sequence, at most W * page, those of q included.
        k_scale: [pages, heads_k, page], float32: factor of each token's key; required for int8 and fp8, else None.
        v_scale: likewise for values.
        softmax_scale: factor of the scores; None means 1 / sqrt(D).
        high_precision: precision of AITER's kernels for fp8, one token and at most 8 heads for each of the cache: 0, 1
            or 2. Other kernels have no such choice: they support 0 and 1.

    Returns:
        Array of the shape and dtype of q; 0 for a token that sees no token.

    Raises:
        ValueError: shapes do not fit, a number is out of range, or scales are missing or not needed.
        TypeError: dtypes do not fit.
        jax_aiter.NotDifferentiableError: the operation was differentiated.
        jax_aiter.BackendError: a forced backend is unavailable, or its kernels do not support the arguments.
    """
    one = getattr(q, "ndim", 0) == 3
    _check.rank(_NAME, "q", q, "[sequences, heads, D]" if one else "[sequences, L, heads, D]")
    whole = q[:, None] if one else q
    _validate(whole, key_cache, value_cache, block_tables, context_lens)
    scales = _scales(key_cache, k_scale, v_scale)
    if high_precision not in (0, 1, 2):
        raise ValueError(f"{_NAME}: high_precision is {high_precision!r}; it has to be 0, 1 or 2.")
    if isinstance(softmax_scale, jax.Array):
        raise TypeError(f"{_NAME}: softmax_scale is an array; it has to be a number.")
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale)
    obstacle = _limits.obstacle(PAGED_ATTENTION, **_facts(whole, key_cache, block_tables, high_precision))
    (sequences, queries, heads, depth), (_, key_heads, _, page, _) = whole.shape, key_cache.shape
    text = f"{q.dtype.name}/{key_cache.dtype.name} queries={queries} heads={heads}/{key_heads} page={page}"
    problem = Problem(sequences, block_tables.shape[1] * page, depth, f"{text} precision={high_precision}")
    task = _Task(choose(_NAME, obstacles={AITER: obstacle}, problem=problem), scale, high_precision)
    out = _compiled(task, *together(whole, key_cache, value_cache, block_tables, context_lens, *scales))
    return out[:, 0] if one else out


def _validate(q: Array, keys: Array, values: Array, tables: Array, lengths: Array) -> None:
    sequences, _, heads, depth = q.shape
    _check.dtype(_NAME, "q", q, _DTYPES)
    _check.rank(_NAME, "key_cache", keys, _KEYS)
    _check.dtype(_NAME, "key_cache", keys, (q.dtype, *_QUANTISED))
    pages, key_heads, _, page, _ = keys.shape
    piece = _PIECE // keys.dtype.itemsize
    _check.multiple(_NAME, "the head dimension of q", depth, piece)
    _check.multiple(_NAME, "the page of key_cache", page, piece)
    _check.equal(_NAME, "key_cache", keys.shape, (pages, key_heads, depth // piece, page, piece), _KEYS)
    _check.rank(_NAME, "value_cache", values, _VALUES)
    _check.dtype(_NAME, "value_cache", values, (keys.dtype,))
    _check.equal(_NAME, "value_cache", values.shape, (pages, key_heads, page // piece, depth, piece), _VALUES)
    if key_heads == 0 or heads == 0 or heads % key_heads:
        text = f"{_NAME}: q has {heads} heads and key_cache has {key_heads}"
        raise ValueError(f"{text}; q has to have a multiple of the heads of key_cache.")
    _check.tables(_NAME, sequences, tables, lengths, page)


def _scales(keys: Array, *scales: Array | None) -> tuple[Array, Array]:
    shape = (keys.shape[0], keys.shape[1], keys.shape[3])
    found = []
    for name, scale in zip(("k_scale", "v_scale"), scales, strict=True):
        if (keys.dtype in map(jnp.dtype, _QUANTISED)) == (scale is None):
            needed = "is required" if scale is None else "has to be None"
            raise ValueError(f"{_NAME}: {name} {needed} for a key_cache of the dtype {keys.dtype}.")
        if scale is not None:
            _check.rank(_NAME, name, scale, "[pages, heads_k, page]")
            _check.equal(_NAME, name, scale.shape, shape, "[pages, heads_k, page]")
            _check.dtype(_NAME, name, scale, (jnp.float32,))
        found.append(empty(jnp.float32) if scale is None else scale)
    return found[0], found[1]


def _facts(q: Array, keys: Array, tables: Array, precision: int) -> dict[str, Any]:
    return {
        "dtype": q.dtype.name,
        "gfx": {target.partition(":")[0] for target in wanted_targets()[0]},
        "sequences": q.shape[0],
        "queries": q.shape[1],
        "heads": q.shape[2],
        "depth": q.shape[3],
        "cache": "" if keys.dtype == q.dtype else keys.dtype.name,
        "pages": keys.shape[0],
        "key_heads": keys.shape[1],
        "page": keys.shape[3],
        "width": tables.shape[1],
        "precision": precision,
    }


def _reference(task: _Task, q: Array, keys: Array, values: Array, *others: Array) -> Array:
    tables, lengths, key_scale, value_scale = others
    page, quantised = keys.shape[3], key_scale.ndim == 3

    def fetch(places: Array) -> Keys:
        pages = jnp.take(tables, places // page, axis=1, mode="clip")
        row = places % page
        piece = keys.shape[4]
        # Indices that are arrays come first: [S, C, heads_k, ...].
        k = keys.at[pages, :, :, row].get(mode="clip")
        v = values.at[pages, :, row // piece, :, row % piece].get(mode="clip")
        scales = (scale.at[pages, :, row].get(mode="clip") if quantised else None for scale in (key_scale, value_scale))
        # Numbers of 8 bits are exact in the dtypes of q.
        return Keys(k.reshape(*k.shape[:3], -1).astype(q.dtype), v.astype(q.dtype), *scales)

    return attend(q, lengths, fetch, keys.shape[1], q.shape[3], task.scale)


def _kernel(task: _Task, *operands: Array) -> Array:
    attrs = {"scale": np.float32(task.scale), "precision": int32(task.precision)}
    queries = operands[0].shape[1]

    def call(sequences: int) -> Any:
        def run(*operands: Array) -> tuple[Array, ...]:
            several = queries > 1
            starts = jnp.arange(sequences + 1, dtype=jnp.int32) * queries if several else empty(jnp.int32)
            q = operands[0]
            return ffi(PAGED_ATTENTION, [(q.shape, q.dtype)], **attrs)(*operands, starts)

        return run

    def fits(sequences: int) -> bool:
        q, keys, _, tables = operands[:4]
        facts = _facts(q, keys, tables, task.precision) | {"sequences": sequences}
        return not _limits.obstacle(PAGED_ATTENTION, **facts)

    rows = (True, False, False, True, True, False, False)
    (out,) = rowwise(call, rows, fits)(*operands)
    sees = seen(operands[4], queries) > 0
    return jnp.where(sees[:, :, None, None], out, jnp.zeros((), out.dtype))


def _divided(task: _Task, *operands: Array) -> Array:
    q, keys, *_, key_scale, _ = operands
    heads, of_keys = q.shape[2], keys.shape[1]
    shared = "h" if of_keys == heads else "one" if of_keys == 1 else "h'"
    scale = f"n {shared} p" if key_scale.ndim == 3 else "none"
    text = f"b l h d, n {shared} dx p x, n {shared} px d x, b w, b, {scale}, {scale} -> b l h d"

    def local(_axes: Axes, *operands: Array) -> tuple[Array, ...]:
        choice = task.choice
        out: Array = dispatch(choice, lambda *a: _kernel(task, *a), lambda *a: _reference(task, *a), *operands)
        return (out,)

    return partitioned(Rule.parse(text, b=1, h=1), local, *operands, by_rule=task.choice.backend != XLA)[0]


_compiled = not_differentiable(_NAME, "it is for decoding. Use jax_aiter.mha for training", _divided)
