"""Attention of decoding: XLA's code against float64, and the custom calls of AITER's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax_aiter import BackendError, NotDifferentiableError
from jax_aiter.mla import combined, mla_decode, packed_tokens
from jax_aiter.paged_attention import page_keys, page_values, paged_attention

from tests.jax_aiter.check_lowering import calls, lowered
from tests.jax_aiter.common import compare, made, wide

BF16, F16, F32, I8 = jnp.bfloat16, jnp.float16, jnp.float32, jnp.int8
E4M3, FNUZ = jnp.float8_e4m3fn, jnp.float8_e4m3fnuz
S = jax.ShapeDtypeStruct
LENGTHS = [37, 16, 1, 0, 600]


def paged(
    dtype: Any = BF16, cache: Any = None, *, queries: int = 1, heads: int = 4, of_keys: int = 2, depth: int = 128,
    page: int = 16, lengths: Any = (37, 16, 1, 0),
) -> dict[str, Any]:  # fmt: skip
    """Return arguments of paged_attention; what no sequence uses is NaN or has no page."""
    rng, cache = np.random.default_rng(queries * heads + page), cache or dtype
    used = [-(-length // page) for length in lengths]
    width, total = max([*used, 1]) + 1, sum(used) + 3
    tables = np.full((len(lengths), width), 10_000, np.int32)
    order = iter(rng.permutation(total))
    for row, count in zip(tables, used, strict=True):
        row[:count] = [next(order) for _ in range(count)]
    numbers = [rng.standard_normal((total, page, of_keys, depth)).astype(np.float32) for _ in range(2)]
    if cache == I8:
        numbers = [np.round(part * 40).clip(-127, 127) for part in numbers]
    elif cache == dtype:
        for row, length in zip(tables, lengths, strict=True):
            if length % page:
                for part in numbers:
                    part[row[length // page], length % page :] = np.nan
    keys, values = (jnp.asarray(part).astype(cache) for part in numbers)
    shape = (len(lengths), heads, depth) if queries == 1 else (len(lengths), queries, heads, depth)
    found = {
        "q": made(1, shape, dtype), "key_cache": page_keys(keys), "value_cache": page_values(values),
        "block_tables": jnp.asarray(tables), "context_lens": jnp.asarray(lengths, jnp.int32),
    }  # fmt: skip
    if cache != dtype:
        for name in ("k_scale", "v_scale"):
            found[name] = jnp.asarray(rng.uniform(0.01, 0.05, (total, of_keys, page)), F32)
    return found


def dense(q: Any, key_cache: Any, value_cache: Any, block_tables: Any, context_lens: Any, **options: Any) -> Any:
    """Return the same in float64, token by token."""
    several, block_tables = q if q.ndim == 4 else q[:, None], np.asarray(block_tables)
    out = np.zeros(several.shape)
    pages, of_keys, _, page, _ = key_cache.shape
    # [pages, page, heads_k, D]
    keys = wide(key_cache).transpose(0, 3, 1, 2, 4).reshape(pages, page, of_keys, -1)
    values = wide(value_cache).transpose(0, 2, 4, 1, 3).reshape(keys.shape)
    scales = [options.get(name) for name in ("k_scale", "v_scale")]
    keys, values = (
        part if scale is None else part * wide(scale).transpose(0, 2, 1)[..., None]
        for part, scale in zip((keys, values), scales, strict=True)
    )
    group, factor = several.shape[2] // of_keys, options.get("softmax_scale") or several.shape[3] ** -0.5
    for s, length in enumerate(np.asarray(context_lens)):
        for token in range(several.shape[1]):
            count = length - several.shape[1] + token + 1
            places = [(block_tables[s, j // page], j % page) for j in range(count)]
            for head in range(several.shape[2] if count > 0 else 0):
                k, v = (np.stack([part[at][head // group] for at in places]) for part in (keys, values))
                scores = k @ wide(several[s, token, head]) * factor
                weights = np.exp(scores - scores.max())
                out[s, token, head] = weights @ v / weights.sum()
    return out.reshape(q.shape)


def latent(
    dtype: Any = BF16, *, queries: int = 1, heads: int = 16, depth: int = 576, page: int = 16,
    lengths: Any = (37, 16, 1, 0),
) -> dict[str, Any]:  # fmt: skip
    """Return arguments of mla_decode; what no sequence uses is NaN or has no page, except in fp8."""
    fp8 = jnp.dtype(dtype).itemsize == 1
    sizes: dict[str, Any] = {"queries": queries, "heads": heads, "depth": depth, "page": page, "lengths": lengths}
    given = paged(F32 if fp8 else dtype, of_keys=1, **sizes)
    pages = given["key_cache"].shape[0]
    cache = wide(given["key_cache"])[:, 0].transpose(0, 2, 1, 3).reshape(pages, page, depth)
    found = {"q": given["q"], "kv_cache": jnp.asarray(np.nan_to_num(cache) if fp8 else cache)}
    found = {name: array.astype(dtype) for name, array in found.items()}
    found |= {name: given[name] for name in ("block_tables", "context_lens")}
    return found | ({"q_scale": jnp.array([0.5]), "kv_scale": jnp.array([0.25])} if fp8 else {})


def dense_latent(q: Any, kv_cache: Any, block_tables: Any, context_lens: Any, **options: Any) -> Any:
    """Return the same in float64."""
    of_q, of_cache = (1.0 if options.get(name) is None else float(options[name][0]) for name in ("q_scale", "kv_scale"))
    cache = (wide(kv_cache) * of_cache).transpose(0, 2, 1)[:, None, :, :, None]
    depth, scale = options.get("v_head_dim", 512), options.get("softmax_scale") or q.shape[-1] ** -0.5
    keys, values = cache, cache.transpose(0, 1, 3, 2, 4)
    out = dense(wide(q) * of_q, keys, values, block_tables, context_lens, softmax_scale=scale)
    return out[..., :depth]


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize("queries", [1, 3])
def check_pages_give_what_float64_gives(dtype: Any, queries: int) -> None:
    """One sequence is longer than a step of the loop, one is empty, and unused entries and tokens have any value."""
    arguments = paged(dtype, queries=queries, lengths=LENGTHS)
    compare(paged_attention(**arguments), dense(**arguments), 1e-5 if dtype == F32 else 1e-2)


@pytest.mark.parametrize("cache", [I8, E4M3, FNUZ])
def check_quantised_pages_give_what_float64_gives(cache: Any) -> None:
    arguments = paged(BF16, cache, queries=2)
    compare(paged_attention(**arguments, softmax_scale=0.05), dense(**arguments, softmax_scale=0.05), 1e-2)


@pytest.mark.parametrize("dtype", [F32, BF16, E4M3, FNUZ])
def check_latent_attention_gives_what_float64_gives(dtype: Any) -> None:
    """One sequence is longer than a step of the loop."""
    arguments = latent(dtype, queries=2, heads=3, depth=24, lengths=LENGTHS)
    found = mla_decode(**arguments, v_head_dim=16, softmax_scale=0.3)
    assert found.dtype == (BF16 if jnp.dtype(dtype).itemsize == 1 else dtype)
    compare(found, dense_latent(**arguments, v_head_dim=16, softmax_scale=0.3), 1e-5 if dtype == F32 else 1e-2)


@settings(max_examples=2)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(1, 3), st.sampled_from([1, 7, 16]))
def check_any_latent_shape_is_right(lengths: list[int], queries: int, page: int) -> None:
    arguments = latent(F32, queries=queries, heads=2, depth=8, page=page * 4, lengths=lengths)
    compare(mla_decode(**arguments, v_head_dim=5), dense_latent(**arguments, v_head_dim=5), 1e-5)


@settings(max_examples=2)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.sampled_from([1, 4, 16]))
def check_tokens_of_sequences_lie_together(lengths: list[int], page: int) -> None:
    width = -(-40 // page)
    tables = np.random.default_rng(page).permutation(len(lengths) * width).reshape(-1, width).astype(np.int32)
    starts, rows = packed_tokens(jnp.asarray(tables), jnp.array(lengths, jnp.int32), page, tables.size * page)
    assert starts.tolist() == [0, *np.cumsum(lengths)]
    wanted = [int(tables[s, j // page]) * page + j % page for s, length in enumerate(lengths) for j in range(length)]
    assert rows.tolist() == wanted + [0] * (len(rows) - len(wanted))


def check_parts_that_kernels_do_not_write_are_not_read() -> None:
    """Sequences of 0, 1, 16, 17 and 64 tokens have 0, 1, 1, 2 and 4 parts of 4, in the order of AITER's reduction."""
    lengths = jnp.array([0, 1, 16, 17, 64], jnp.int32)
    partial, lse = made(1, (5, 2, 4, 3, 8)), made(2, (5, 2, 4, 3))
    parts = [0, 1, 1, 2, 4]
    for s, count in enumerate(parts):
        partial, lse = partial.at[s, :, count:].set(jnp.nan), lse.at[s, :, count:].set(jnp.nan)
    partial, lse = partial.at[4, :, 3].set(jnp.nan), lse.at[4, :, 3].set(-jnp.inf)
    found = wide(combined(partial, lse, lengths, 16))
    for s, count in enumerate([0, 1, 1, 2, 3]):
        weights = np.exp(wide(lse[s, :, :count]))[..., None]
        wanted = (weights * wide(partial[s, :, :count])).sum(1) / np.maximum(weights.sum(1), 1e-30)
        np.testing.assert_allclose(found[s], wanted, 1e-5, 1e-6)


@settings(max_examples=2)
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3),
    st.sampled_from([8, 16, 24]), st.sampled_from([8, 16, 40]),
)  # fmt: skip
def check_any_shape_is_right(lengths: list[int], queries: int, of_keys: int, group: int, page: int, depth: int) -> None:
    arguments = paged(
        F32, queries=queries, heads=of_keys * group, of_keys=of_keys, page=page, depth=depth, lengths=lengths
    )
    compare(paged_attention(**arguments), dense(**arguments), 1e-5)


@pytest.mark.releases
def check_vmap_adds_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    two = paged(F32), paged(F32, lengths=(3, 0, 37, 16))
    assert two[0]["key_cache"].shape == two[1]["key_cache"].shape
    keys, values = two[0]["key_cache"], two[0]["value_cache"]
    stacked = [jnp.stack([one[name] for one in two]) for name in ("q", "block_tables", "context_lens")]

    def one(q: Any, tables: Any, lengths: Any) -> Any:
        return paged_attention(q, keys, values, tables, lengths)

    loop = [one(*(part[i] for part in stacked)) for i in range(2)]
    compare(jax.jit(jax.vmap(one))(*stacked), jnp.stack(loop), 1e-5)


@pytest.mark.releases
def check_decoding_has_no_gradient() -> None:
    arguments = paged(F32)
    with pytest.raises(NotDifferentiableError, match=r"paged_attention has no derivative: .*jax_aiter\.mha"):
        jax.grad(lambda q: paged_attention(**arguments | {"q": q}).sum())(arguments["q"])
    of_latent = latent(F32, depth=8)
    with pytest.raises(NotDifferentiableError, match=r"mla_decode has no derivative: .*jax_aiter\.mha"):
        jax.grad(lambda q: mla_decode(**of_latent | {"q": q}, v_head_dim=4).sum())(of_latent["q"])


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "rank": ({"q": jnp.ones((4, 128), BF16)}, r"q has the shape \[4, 128\]; it has to be \[sequences, L, heads, D\]"),
    "heads": ({"q": jnp.ones((4, 3, 128), BF16)}, "q has 3 heads and key_cache has 2"),
    "depth": ({"q": jnp.ones((4, 4, 64), BF16)}, r"key_cache has the shape .*= \[8, 2, 8, 16, 8\]"),
    "values": ({"value_cache": jnp.ones((8, 2, 128, 16), BF16)}, r"has to be \[pages, heads_k, page/x, D, x\]"),
    "tables": ({"block_tables": jnp.zeros((3, 4), jnp.int32)}, r"block_tables has the shape \[3\]"),
    "lengths": ({"context_lens": jnp.array([65, 1, 1, -1], jnp.int32)}, "from -1 to 65; they have to be from 0 to W"),
    "a scale": ({"k_scale": jnp.ones((8, 2, 16))}, "k_scale has to be None for a key_cache of the dtype bfloat16"),
    "no scale": ({"key_cache": jnp.ones((8, 2, 8, 16, 16), I8), "value_cache": jnp.ones((8, 2, 1, 128, 16), I8)},
                 "k_scale is required for a key_cache of the dtype int8"),
    "precision": ({"high_precision": 3}, "high_precision is 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def check_bad_arguments_are_named(name: str) -> None:
    changes, said = BAD[name]
    with pytest.raises(ValueError, match=said):
        paged_attention(**paged() | changes)


BAD_LATENT: dict[str, tuple[dict[str, Any], str]] = {
    "rank": ({"kv_cache": jnp.ones((8, 16, 1, 576), BF16)}, r"it has to be \[pages, page, D\]"),
    "depth": ({"kv_cache": jnp.ones((8, 16, 512), BF16)}, r"has the shape \[512\]; it has to be \[..., D\] = \[576\]"),
    "no page": ({"kv_cache": jnp.ones((8, 0, 576), BF16)}, "no size may be 0"),
    "values": ({"v_head_dim": 577}, "v_head_dim is 577; it has to be from 1 to D = 576"),
    "lengths": ({"context_lens": jnp.array([65, 1, 1, 0], jnp.int32)}, "from 0 to 65; they have to be from 0 to W"),
    "a scale": ({"kv_scale": jnp.ones(1)}, "kv_scale has to be None for a q of the dtype bfloat16"),
    "no scale": ({"q": jnp.ones((4, 16, 576), E4M3), "kv_cache": jnp.ones((8, 16, 576), E4M3)}, "q_scale is required"),
    "parts": ({"num_kv_splits": 0}, "num_kv_splits is 0; it has to be an integer of 1 or more"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_LATENT)
def check_bad_latent_arguments_are_named(name: str) -> None:
    changes, said = BAD_LATENT[name]
    with pytest.raises(ValueError, match=said):
        mla_decode(**latent() | changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"q": jnp.ones((4, 4, 128), I8)}, "q has the dtype int8"),
        ({"context_lens": jnp.zeros((4,), F32)}, "context_lens has the dtype float32"),
        ({"value_cache": jnp.ones((8, 2, 2, 128, 8), F16)}, "value_cache has the dtype float16"),
        ({"softmax_scale": jnp.ones(())}, "softmax_scale is an array"),
    ],
)
def check_bad_dtypes_are_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        paged_attention(**paged() | changes)


# GPU, arguments, reason why there is no kernel, or "".
KERNELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bfloat16": ("gfx942", {}, ""),
    "four tokens": ("gfx950", {"queries": 4}, ""),
    "int8": ("gfx942", {"cache": I8, "heads": 32}, ""),
    "int8 and two tokens": ("gfx950", {"cache": I8, "heads": 32, "queries": 2}, ""),
    "fnuz": ("gfx942", {"cache": FNUZ}, ""),
    "fn": ("gfx950", {"cache": E4M3, "queries": 3}, ""),
    "float32": ("gfx942", {"dtype": F32}, "need float16 or bfloat16, not float32"),
    "fn on gfx942": ("gfx942", {"cache": E4M3}, "the fp8 of the GPU, not float8_e4m3fn"),
    "head": ("gfx942", {"depth": 64}, "need a head dimension of 128, not 64"),
    "page": ("gfx942", {"page": 32}, "need pages of 16 tokens, not 32"),
    "five tokens": ("gfx942", {"queries": 5}, "need 1 to 4 tokens of each sequence, not 5"),
    "group": ("gfx942", {"heads": 34}, "at most 16 heads for each of the cache, not 34 for 2"),
    "group of tokens": ("gfx942", {"heads": 18, "queries": 2}, "for several tokens need at most 8 heads"),
}


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", KERNELS)
def check_kernels_give_what_xla_gives_or_there_is_a_reason(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gfx, shape, said = KERNELS[name]
    arguments = paged(**shape)
    names, arrays = tuple(arguments), tuple(arguments.values())
    function: Callable[..., Any] = jax.jit(lambda *a: paged_attention(**dict(zip(names, a, strict=True))))
    monkeypatch.setenv("JAX_AITER_TARGET", gfx)
    jax.clear_caches()
    made_calls = [call[0] for call in calls(lowered(function, *arrays, platform="cpu"))]
    assert made_calls == ([] if said else ["jax_aiter_paged_attention"])
    if said:
        monkeypatch.setenv("JAX_AITER_BACKEND", "aiter")
        jax.clear_caches()
        with pytest.raises(BackendError, match=said):
            lowered(function, *arrays)
        return
    compare(function(*arrays), dense(**arguments), 1e-2)


@pytest.mark.releases
@pytest.mark.usefixtures("installed")
def check_vmap_makes_one_call_of_more_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx942")
    arguments = paged()
    keys, values = arguments["key_cache"], arguments["value_cache"]
    mapped = [S((3, *arguments[name].shape), arguments[name].dtype) for name in ("q", "block_tables", "context_lens")]
    text = lowered(jax.vmap(lambda q, t, n: paged_attention(q, keys, values, t, n)), *mapped)
    assert [call[1][0] for call in calls(text)] == ["12x1x4x128xbf16"]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "high precision of 2 need an fp8 cache"),
        ({"cache": FNUZ, "heads": 18}, "high precision of 2 need"),
        ({"cache": FNUZ, "queries": 2}, "high precision of 2 need"),
        ({"cache": FNUZ}, ""),
    ],
)
def check_precision_is_of_fp8(options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx942")
    monkeypatch.setenv("JAX_AITER_BACKEND", "aiter")
    arguments = paged(**options)
    names, arrays = tuple(arguments), tuple(arguments.values())

    def function(*arrays: Any) -> Any:
        return paged_attention(**dict(zip(names, arrays, strict=True)), high_precision=2)

    if said:
        with pytest.raises(BackendError, match=said):
            lowered(function, *arrays)
    else:
        (call,) = calls(lowered(function, *arrays))
        assert call[3]["precision"] == "2 : i32"


# GPU, arguments, options, reason why there is no kernel, or the number of calls and the shape of their parts.
LATENT: dict[str, tuple[str, dict[str, Any], dict[str, Any], str | tuple[int, str]]] = {
    "AITER's parts": ("gfx942", {"lengths": (300, 16, 1, 0)}, {}, (1, "4x1x16x16xf32")),
    "two parts": ("gfx942", {}, {"num_kv_splits": 2}, (1, "4x1x2x16xf32")),
    "one part in float32": ("gfx950", {}, {"num_kv_splits": 1, "softmax_scale": 0.1}, (1, "4x1x1x16xf32")),
    "one part": ("gfx942", {"queries": 2}, {"num_kv_splits": 1}, (1, "4x2x1x16xf32")),
    "several tokens": ("gfx942", {"queries": 4, "page": 8}, {"num_kv_splits": 3}, (1, "4x4x3x16xf32")),
    "48 heads": ("gfx942", {"heads": 48}, {"num_kv_splits": 2}, (3, "4x1x2x16xf32")),
    "128 heads": ("gfx950", {"heads": 128, "lengths": (5, 0)}, {"num_kv_splits": 2}, (1, "2x1x2x128xf32")),
    "fnuz": ("gfx942", {"dtype": FNUZ}, {}, (1, "4x1x1x16xf32")),
    "fn in parts": ("gfx950", {"dtype": E4M3, "queries": 2}, {"num_kv_splits": 3}, (1, "4x2x3x16xf32")),
    "fn on gfx942": ("gfx942", {"dtype": E4M3}, {}, "need bfloat16 or the fp8 of the GPU, not float8_e4m3fn"),
    "float16": ("gfx942", {"dtype": F16}, {}, "need bfloat16 or the fp8 of the GPU, not float16"),
    "depth": ("gfx942", {"depth": 512}, {}, r"need keys of 576 numbers and values of 512, not \[512, 512\]"),
    "heads": ("gfx942", {"heads": 24}, {}, "need a multiple of 16 heads, not 24"),
    "five tokens": ("gfx942", {"queries": 5}, {}, "need 1 to 4 tokens of each sequence, not 5"),
}  # fmt: skip


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", LATENT)
def check_latent_kernels_give_what_xla_gives_or_there_is_a_reason(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gfx, shape, options, wanted = LATENT[name]
    arguments = latent(**shape)
    names, arrays = tuple(arguments), tuple(arguments.values())
    function = jax.jit(lambda *a: mla_decode(**dict(zip(names, a, strict=True)), **options))
    monkeypatch.setenv("JAX_AITER_TARGET", gfx)
    jax.clear_caches()
    found = calls(lowered(function, *arrays, platform="cpu"))
    if isinstance(wanted, str):
        assert found == []
        monkeypatch.setenv("JAX_AITER_BACKEND", "aiter")
        jax.clear_caches()
        with pytest.raises(BackendError, match=wanted):
            lowered(function, *arrays)
        return
    assert (len(found), found[0][2][2]) == wanted
    compare(function(*arrays), dense_latent(**arguments, **options), 1e-2)
