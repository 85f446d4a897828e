"""Flash attention against unblocked attention in float64.

Gradients, masks, dropout, transformations, memory.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax_aiter.mha import flash_attn_func, flash_attn_varlen
from jax_aiter.mha._blocks import Config
from jax_aiter.mha._dropout import kept, seed_words

from kernels.tests.checks.common import (
    compare,
    compare_gradients,
    made,
    wide,
    with_gradients,
)


def qkv(
    sq: int,
    sk: int,
    *,
    batch: int = 2,
    heads: int = 4,
    kv: int = 2,
    dtype: Any = jnp.float32,
) -> Any:
    shapes = (
        (batch, sq, heads, 8),
        (batch, sk, kv, 8),
        (batch, sk, kv, 6),
    )
    return tuple(made(i, shape, dtype) for i, shape in enumerate(shapes))


def dense(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    bias: Any = None,
    slopes: Any = None,
    scale: float | None = None,
    keep: Any = None,
    lengths: Any = None,
) -> tuple[Any, Any, Any]:
    """Return out, lse and the multiplied probabilities, computed by numpy in float64."""
    q = wide(q)
    k = wide(k)
    v = wide(v)
    (batch, sq, heads, d), sk = q.shape, k.shape[1]
    k, v = (np.repeat(part, heads // part.shape[2], 2) for part in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) * (d**-0.5 if scale is None else scale)
    counts = [(sq, sk)] * batch if lengths is None else lengths
    for index, (queries, keys) in enumerate(counts):
        i = np.arange(sq)[:, None] + (keys - queries)
        j = np.arange(sk)
        if bias is not None:
            scores[index] += wide(bias)
        if slopes is not None:
            scores[index] -= wide(slopes)[index][:, None, None] * np.abs(i - j)
        left = window[0]
        right = 0 if causal else window[1]
        seen = (j < keys) & (np.arange(sq)[:, None] < queries)
        seen &= (j >= i - left) if left >= 0 else True
        seen &= (j <= i + right) if right >= 0 else True
        scores[index] = np.where(seen, scores[index], -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        top = scores.max(-1, keepdims=True)
        p = np.exp(scores - np.where(np.isfinite(top), top, 0))
        total = p.sum(-1, keepdims=True)
        lse = np.where(total > 0, np.log(total) + top, -np.inf)[..., 0]
        p = np.where(total > 0, p / total, 0)
    p = p if keep is None else p * keep
    return np.einsum("bhqk,bkhd->bqhd", p, v), lse, p


def same_lse(
    found: Any,
    wanted: Any,
    tolerance: float = 1e-5,
) -> None:
    np.testing.assert_array_equal(np.isinf(wide(found)), np.isinf(wanted))
    finite = np.isfinite(wanted)
    compare(np.where(finite, found, 0), np.where(finite, wanted, 0), tolerance)


@settings(max_examples=6)
@given(
    st.integers(1, 700),
    st.integers(1, 1200),
    st.sampled_from(
        [
            (1, 1),
            (4, 4),
            (4, 2),
            (4, 1),
        ]
    ),
    st.booleans(),
    st.sampled_from(
        [
            (-1, -1),
            (0, 0),
            (64, 3),
            (-1, 5),
            (900, -1),
        ]
    ),
    st.sampled_from([jnp.float32, jnp.bfloat16, jnp.float16]),
)
def check_it_is_right_for_any_shape(
    sq: int,
    sk: int,
    heads: tuple[int, int],
    causal: bool,
    window: tuple[int, int],
    dtype: Any,
) -> None:
    q, k, v = qkv(
        sq,
        sk,
        heads=heads[0],
        kv=heads[1],
        dtype=dtype,
    )
    out, lse = flash_attn_func(
        q,
        k,
        v,
        causal=causal,
        window_size=window,
        return_lse=True,
    )
    wanted, wanted_lse, _ = dense(
        q,
        k,
        v,
        causal=causal,
        window=window,
    )
    assert out.dtype == dtype
    assert lse.dtype == jnp.float32
    compare(
        out,
        wanted,
        {
            jnp.float32: 2e-5,
            jnp.bfloat16: 2e-2,
            jnp.float16: 3e-3,
        }[dtype],
    )
    same_lse(lse, wanted_lse)


OPTIONS: dict[str, dict[str, Any]] = {
    "more queries than keys": {"causal": True, "sizes": (9, 5)},
    "window": {"window_size": (2, 1)},
    "scale": {"softmax_scale": 0.3},
    "bias": {"bias": True},
    "alibi": {"alibi_slopes": True, "causal": True},
    "lengths": {
        "lengths": [
            (4, 6),
            (7, 2),
        ],
        "causal": True,
    },
    "dropout": {"dropout_p": 0.4, "dropout_seed": 12345678901},
}


def made_case(name: str, dtype: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return arrays, options of flash_attn_func, and options of `dense`."""
    options = dict(OPTIONS[name])
    sq, sk = options.pop("sizes", (7, 9))
    arrays = dict(zip("qkv", qkv(sq, sk, dtype=dtype), strict=True))
    told: dict[str, Any] = {
        "causal": options.get("causal", False),
        "window": options.get("window_size", (-1, -1)),
    }
    told["scale"] = options.get("softmax_scale")
    if options.pop("bias", False):
        arrays["bias"] = made(5, (sq, sk), dtype)
    if options.pop("alibi_slopes", False):
        arrays["alibi_slopes"] = abs(
            made(6, (2, 4), jnp.float64 if dtype == jnp.float64 else jnp.float32)
        )
    if lengths := options.pop("lengths", None):
        told["lengths"] = lengths
        for place, key in enumerate(("cu_seqlens_q", "cu_seqlens_kv")):
            options[key] = jnp.cumsum(
                jnp.array([0, *(pair[place] for pair in lengths)]), dtype=jnp.int32
            )
    if options.get("dropout_p"):
        b, h, i, j = np.ix_(*(np.arange(n) for n in (2, 4, sq, sk)))
        keep = kept(
            seed_words(options["dropout_seed"]), 0.4, *map(jnp.asarray, (b, h, i, j))
        )
        told["keep"] = np.asarray(keep) / 0.6
    return arrays, options, told


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.releases] if "dropout" in name else [])
        for name in OPTIONS
    ],
)
def check_each_option_does_what_it_says_and_its_gradients_are_those_of_finite_differences(
    name: str,
) -> None:
    arrays, options, told = made_case(name, jnp.float64)
    other = {"bias": arrays.get("bias"), "slopes": arrays.get("alibi_slopes")}
    wanted = dense(
        arrays["q"],
        arrays["k"],
        arrays["v"],
        **told,
        **other,
    )
    finite = np.isfinite(wanted[1])

    def function(*values: Any) -> Any:
        named = dict(zip(arrays, values, strict=True))
        out, lse, p = flash_attn_func(
            **named,
            **options,
            return_lse=True,
            return_attn_probs=True,
        )
        return (out, jnp.where(finite, lse, 0)), (lse, p)

    (out, _), (lse, p) = compare_gradients(
        function,
        *arrays.values(),
        step=1e-5,
    )
    compare((out, p), (wanted[0], wanted[2]), 1e-12)
    same_lse(lse, wanted[1], 1e-12)


@pytest.mark.usefixtures("x64")
def check_gradients_over_several_blocks() -> None:
    arrays = qkv(
        600,
        1100,
        batch=1,
        dtype=jnp.float64,
    )

    blocks = partial(flash_attn_func, causal=True, window_size=(300, 0))
    compare_gradients(lambda *a: (blocks(*a), ()), *arrays)
    both = jax.jit(with_gradients(blocks))
    for dtype, tolerance in ((jnp.float32, 2e-5), (jnp.bfloat16, 4e-2)):
        narrow = [part.astype(dtype) for part in arrays]
        found = both(*narrow)
        assert {part.dtype for part in jax.tree.leaves(found)} == {jnp.dtype(dtype)}
        compare(found, both(*(part.astype(jnp.float64) for part in narrow)), tolerance)


@pytest.mark.parametrize(
    "options",
    [
        {"window_size": (3, 2)},
        {"causal": True, "window_size": (30, -1)},
    ],
    ids=str,
)
def check_packed_sequences_are_sequences_of_their_own(options: dict[str, Any]) -> None:
    lengths_q = [5, 0, 300, 1, 40]
    lengths_k = [9, 4, 260, 7, 0]
    cu_q, cu_k = (
        jnp.cumsum(jnp.array([0, *n]), dtype=jnp.int32) for n in (lengths_q, lengths_k)
    )
    q, k, v = (
        made(i, s)
        for i, s in enumerate(
            [
                (350, 4, 8),
                (290, 2, 8),
                (290, 2, 6),
            ]
        )
    )
    slopes = abs(made(5, (4,)))

    packed: Any = partial(
        flash_attn_varlen,
        alibi_slopes=slopes,
        return_lse=True,
        **options,
    )
    out, lse = jax.jit(packed)(q, k, v, cu_q, cu_k)
    compare(packed(q, k, v, cu_q, cu_k)[0], out)
    assert lse.shape == (4, 350)
    assert (out[346:] == 0).all()
    assert (lse[:, 346:] == -jnp.inf).all()
    told = {
        "causal": options.get("causal", False),
        "window": options.get("window_size", (-1, -1)),
    }
    for n in range(5):
        rows = slice(int(cu_q[n]), int(cu_q[n + 1]))
        columns = slice(int(cu_k[n]), int(cu_k[n + 1]))
        if lengths_q[n] and lengths_k[n]:
            one = dense(
                q[rows][None],
                k[columns][None],
                v[columns][None],
                slopes=slopes[None],
                **told,
            )
            compare(out[rows], one[0][0], 2e-5)
            same_lse(lse[:, rows], one[1][0])
        else:
            assert (out[rows] == 0).all()


def check_dropout_is_fair_and_independent_of_seed_and_place() -> None:
    ranges = map(np.arange, (2, 4, 128, 128))
    places = [jnp.asarray(place) for place in np.ix_(*ranges)]
    first, *others = (
        np.asarray(kept(seed_words(seed), 0.3, *places)) for seed in (0, 1, 1 << 32)
    )
    # For 131072 samples, six standard deviations are 0.0076.
    assert abs(first.mean() - 0.7) < 0.0076
    others += [np.roll(first, 1, axis) for axis in range(4)]
    for other in others:
        assert abs((first == other).mean() - 0.58) < 0.01


def check_dropout_does_not_depend_on_blocks_nor_on_how_the_seed_comes() -> None:
    q, k, v = qkv(300, 700)
    dropped = partial(flash_attn_func, dropout_p=0.5)
    run = jax.jit(lambda seed: dropped(q, k, v, dropout_seed=seed))
    out = dropped(q, k, v, dropout_seed=7)
    compare(run(jnp.int32(7)), out)
    assert np.abs(wide(run(jnp.int32(8))) - wide(out)).max() > 0.1
    first = dropped(q[:1], k[:1], v[:1], dropout_seed=7)
    compare(first, out[:1])


def check_scores_are_never_there_as_a_whole() -> None:
    length = 8192
    heads = 2
    shape = jax.ShapeDtypeStruct((1, length, heads, 16), jnp.float32)
    whole = length * length * heads * 4

    def loss(
        q: Any,
        k: Any,
        v: Any,
    ) -> Any:
        return flash_attn_func(q, k, v, causal=True).sum()

    for function in (loss, jax.grad(loss, (0, 1, 2))):
        compiled = jax.jit(function).lower(shape, shape, shape).compile()
        assert compiled.memory_analysis().temp_size_in_bytes < whole / 8
    block = Config(1.0, 0.0)
    assert block.queries * block.keys * heads * 4 < whole / 100
