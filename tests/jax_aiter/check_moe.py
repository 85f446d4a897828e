"""Mixture of experts: the router and the experts against float64, gradients, refusals."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P
from jax_aiter import NotDifferentiableError
from jax_aiter.layouts import shuffle_weight, unshuffle_weight
from jax_aiter.moe import LAYOUT, _grouped, fused_moe, topk_softmax

from tests.jax_aiter.common import compare, compare_gradients, made, mesh, wide, with_gradients

BF16, E4M3, FNUZ = jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e4m3fnuz


def moe(*operands: Any, **words: Any) -> Any:
    return fused_moe(*operands, **words)


def experts_by_numpy(*operands: Any, activation: str = "silu") -> Any:
    """Return the result in float64, one token and expert after the other."""
    *arrays, ids = operands
    x, w1, w2, weights = map(wide, arrays)
    out, inner = np.zeros(x.shape), w2.shape[2]
    erf = np.vectorize(math.erf)
    for token, slot in np.ndindex(*ids.shape):
        expert = int(ids[token, slot])
        if not 0 <= expert < len(w1):
            continue
        hidden = w1[expert] @ x[token]
        gate, up = hidden[:inner], hidden[inner:]
        value = gate / (1 + np.exp(-gate)) if activation == "silu" else gate * (1 + erf(gate / 2**0.5)) / 2
        out[token] += weights[token, slot] * (w2[expert] @ (value * up if up.size else value))
    return out


def problem(
    m: int, experts: int, topk: int, depth: int = 6, inner: int = 5, *, gated: bool = True, dtype: Any = jnp.float32
) -> Any:
    weights = jax.nn.softmax(made(4, (m, topk), jnp.promote_types(dtype, jnp.float32)))
    ids = jnp.asarray(np.random.default_rng(5).integers(0, experts, (m, topk)), jnp.int32)
    w1 = made(2, (experts, inner * (1 + gated), depth), dtype)
    return made(1, (m, depth), dtype), w1, made(3, (experts, depth, inner), dtype), weights, ids


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.booleans())
def check_router_returns_the_largest_weights(m: int, experts: int, topk: int, renormalize: bool) -> None:
    topk = min(topk, experts)
    logits = made(experts, (m, experts)) * 3
    weights, ids = topk_softmax(logits, topk, renormalize)
    assert (weights.dtype, ids.dtype) == (jnp.float32, jnp.int32)
    wanted = np.exp(wide(logits))
    wanted /= wanted.sum(1, keepdims=True)
    order = np.argsort(-wanted, axis=1, kind="stable")[:, :topk]
    assert (np.asarray(ids) == order).all()
    chosen = np.take_along_axis(wanted, order, 1)
    compare(weights, chosen / chosen.sum(1, keepdims=True) if renormalize else chosen)


def check_router_takes_the_lower_expert_of_equal_ones() -> None:
    ids = topk_softmax(jnp.zeros((2, 5), BF16), 3, True)[1]
    assert ids.tolist() == [[0, 1, 2]] * 2


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("renormalize", [True, False])
def check_gradient_of_the_router_is_that_of_finite_differences(renormalize: bool) -> None:
    compare_gradients(lambda logits: topk_softmax(logits, 3, renormalize), made(1, (4, 7), jnp.float64))


def check_gradient_of_the_router_has_the_dtype_of_its_argument() -> None:
    assert jax.grad(lambda x: topk_softmax(x, 2, False)[0][:, 0].sum())(made(1, (3, 4), BF16)).dtype == BF16


@pytest.mark.parametrize(
    ("m", "experts", "topk", "gated", "activation"),
    [(0, 3, 2, True, "silu"), (1, 6, 4, True, "gelu"), (7, 1, 1, False, "silu"), (40, 5, 3, True, "silu"),
     (33, 2, 2, False, "gelu")],
)  # fmt: skip
def check_experts_are_right(m: int, experts: int, topk: int, gated: bool, activation: str) -> None:
    operands = problem(m, experts, topk, gated=gated)
    compare(moe(*operands, activation=activation), experts_by_numpy(*operands, activation=activation), 1e-5)


@pytest.mark.parametrize("dtype", [BF16, jnp.float16])
def check_experts_of_halves_sum_in_float32(dtype: Any) -> None:
    operands = problem(300, 3, 2, 64, 32, dtype=dtype)  # more rows than a block has
    found = fused_moe(*operands)
    assert found.dtype == dtype
    compare(found, experts_by_numpy(*operands), 1e-2)


def check_other_experts_contribute_nothing() -> None:
    x, w1, w2, weights, ids = problem(9, 4, 3)
    whole = fused_moe(x, w1, w2, weights, ids)
    # Each of two devices has two of the experts.
    parts = [fused_moe(x, w1[at : at + 2], w2[at : at + 2], weights, ids - at) for at in (0, 2)]
    compare(parts[0] + parts[1], whole, 1e-5)
    assert not fused_moe(x, w1, w2, weights, jnp.full_like(ids, -1)).any()


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("gated", "activation"), [(True, "silu"), (False, "gelu")])
def check_gradients_of_experts_are_those_of_finite_differences(gated: bool, activation: str) -> None:
    *arrays, ids = problem(35, 3, 2, gated=gated, dtype=jnp.float64)
    ids = ids.at[3, 1].set(7)
    found = compare_gradients(lambda *a: (moe(*a, ids, activation=activation), ()), *arrays)[0]
    compare(found, experts_by_numpy(*arrays, ids, activation=activation))


def check_gradients_of_halves_have_the_dtype_of_their_operand() -> None:
    *arrays, ids = problem(20, 3, 2, dtype=BF16)
    found = jax.jit(jax.grad(lambda *a: moe(*a, ids).astype(jnp.float32).sum(), (0, 1, 2, 3)))(*arrays)
    assert [one.dtype for one in found] == [one.dtype for one in arrays]
    plain = jax.jit(jax.grad(lambda *a: moe(*a, ids).sum(), (0, 1, 2, 3)))
    wanted = plain(*(one.astype(jnp.float32) for one in arrays))
    compare(found, wanted, 2e-2)


def check_memory_grows_with_tokens_and_not_with_experts() -> None:
    """Products of all experts with all tokens would need a thousand times the numbers of the tokens."""
    x, w1, w2 = (jax.ShapeDtypeStruct(shape, BF16) for shape in ((4096, 64), (128, 64, 64), (128, 64, 32)))
    weights, ids = (jax.ShapeDtypeStruct((4096, 2), dtype) for dtype in (jnp.float32, jnp.int32))
    used = jax.jit(fused_moe).lower(x, w1, w2, weights, ids).compile().memory_analysis()
    assert used.temp_size_in_bytes < 16 * 4096 * 64 * 4


@pytest.mark.parametrize("dtype", [jnp.int8, E4M3, FNUZ])
@pytest.mark.parametrize("shuffled", [False, True])
def check_quantised_experts_are_right(dtype: Any, shuffled: bool) -> None:
    _, _, _, weights, ids = problem(20, 3, 2)
    x, most = made(1, (20, 64)), 127 if dtype == jnp.int8 else float(ml_dtypes.finfo(dtype).max)
    parts = [np.asarray(wide(made(seed, shape))) for seed, shape in ((2, (3, 64, 64)), (3, (3, 64, 32)))]
    scales = [np.abs(part).max(2, keepdims=True) / most for part in parts]
    quantised = [
        jnp.asarray(np.round(a / s) if most == 127 else a / s, dtype) for a, s in zip(parts, scales, strict=True)
    ]
    wanted = experts_by_numpy(x, *(wide(q) * s for q, s in zip(quantised, scales, strict=True)), weights, ids)
    w1, w2 = (shuffle_weight(one, LAYOUT) for one in quantised) if shuffled else quantised
    w1_scale, w2_scale = (jnp.asarray(scale, jnp.float32) for scale in scales)
    words: dict[str, Any] = {"w1_scale": w1_scale, "w2_scale": w2_scale[..., 0], "preshuffled": shuffled}
    found = fused_moe(x, w1, w2, weights, ids, **words)
    assert found.dtype == jnp.float32
    tolerance = 0.02 if dtype == jnp.int8 else 0.06  # of the tokens' own rounding to the quantised dtype
    compare(found, wanted, tolerance)
    x_scale = jnp.max(jnp.abs(x), 1, keepdims=True) / most
    x_quantised = (jnp.round(x / x_scale) if most == 127 else x / x_scale).astype(dtype)
    given = fused_moe(x_quantised, w1, w2, weights, ids, **words, a1_scale=x_scale)
    assert given.dtype == BF16
    compare(given, found, 1e-2)


def check_tokens_without_numbers_are_quantised() -> None:
    x = jnp.zeros((2, 32)).at[1].set(3)
    w1, w2 = jnp.ones((1, 32, 32), jnp.int8), jnp.ones((1, 32, 32), jnp.int8)
    ones = jnp.ones((1, 32))
    found = fused_moe(x, w1, w2, jnp.ones((2, 1)), jnp.zeros((2, 1), jnp.int32), w1_scale=ones, w2_scale=ones)
    compare(found, np.repeat([[0], [96 * 32]], 32, 1), 1e-2)


def check_quantised_experts_have_no_derivative() -> None:
    x, _, _, weights, ids = problem(2, 2, 1, 32, 32)
    w1, w2, ones = jnp.ones((2, 32, 32), jnp.int8), jnp.ones((2, 32, 32), jnp.int8), jnp.ones((2, 32))
    with pytest.raises(NotDifferentiableError, match=r"fused_moe has no derivative.*with floats"):
        jax.grad(lambda x: fused_moe(x, w1, w2, weights, ids, w1_scale=ones, w2_scale=ones).sum())(x)


@pytest.mark.releases
def check_shuffled_weights_have_shuffled_gradients() -> None:
    *arrays, ids = problem(5, 2, 1, 32, 32, dtype=BF16)
    x, w1, w2, weights = arrays
    plain = jax.jit(with_gradients(lambda *a: moe(*a, ids)))(*arrays)
    shuffled = jax.jit(with_gradients(lambda *a: moe(*a, ids, preshuffled=True)))(
        x, shuffle_weight(w1), shuffle_weight(w2), weights
    )
    compare(shuffled[0], plain[0])
    compare([unshuffle_weight(one) for one in shuffled[1][1:3]], plain[1][1:3])


@pytest.mark.releases
def check_vmap_is_a_loop() -> None:
    *arrays, ids = problem(5, 3, 2)
    x, w1, w2, weights = (jnp.stack([one, one * 0.5, one * 2]) for one in arrays)
    ids = jnp.stack([ids, (ids + 1) % 3, ids])

    def both(ids: Any, *arrays: Any) -> Any:
        return with_gradients(lambda *a: moe(*a, ids))(*arrays)

    one = jax.jit(both)
    loop = [one(ids[i], x[i], w1[i], w2[i], weights[i]) for i in range(3)]
    found = jax.jit(jax.vmap(both))(ids, x, w1, w2, weights)
    compare(found, jax.tree.map(lambda *p: jnp.stack(p), *loop), 1e-5)
    logits = made(1, (3, 4, 5))
    route = jax.jit(with_gradients(lambda x: topk_softmax(x, 2, True)[0]))
    compare(jax.vmap(route)(logits), jax.tree.map(lambda *p: jnp.stack(p), *map(route, logits)))


@pytest.mark.releases
def check_experts_inside_of_shard_map() -> None:
    *arrays, ids = problem(16, 3, 2)
    wanted = jax.jit(with_gradients(lambda *a: moe(*a, ids)))(*arrays)

    def sums(x: Any, w1: Any, w2: Any, weights: Any) -> Any:
        divided = jax.shard_map(
            fused_moe, mesh=mesh(), in_specs=(P("d"), P(), P(), P("d"), P("d")), out_specs=P("d")
        )  # fmt: skip
        return divided(x, w1, w2, weights, ids)

    compare(jax.jit(with_gradients(sums))(*arrays), wanted, 1e-5)


@pytest.mark.parametrize(("m", "experts", "topk", "rows"), [(1, 1, 1, 32), (30, 5, 4, 1), (7, 3, 2, 4), (40, 2, 3, 32)])
def check_rows_are_sorted_by_expert(m: int, experts: int, topk: int, rows: int) -> None:
    ids = np.random.default_rng(m).integers(-1, experts + 1, (m, topk))
    groups = _grouped.sort_tokens(jnp.asarray(ids), experts, rows)
    places, tokens, owners = (np.asarray(one) for one in (groups.places, groups.tokens, groups.experts))
    for (token, slot), place in np.ndenumerate(places):
        expert = ids[token, slot]
        assert (place == len(tokens)) == (not 0 <= expert < experts)
        if place < len(tokens):
            assert (tokens[place], owners[place // rows]) == (token, expert)
    used = places[places < len(tokens)]
    assert len({*used}) == used.size
    assert (np.delete(tokens, used) == m).all()
    counts = np.bincount(ids[(ids >= 0) & (ids < experts)], minlength=experts)
    assert int(groups.valid) == (-(-counts // rows) * rows).sum() <= len(tokens) == len(owners) * rows


X, W1, W2, WEIGHT, IDS = problem(4, 3, 2)
BYTES = (W1.astype(jnp.int8), W2.astype(jnp.int8))


@pytest.mark.parametrize(
    ("arguments", "words", "kind", "said"),
    [
        ((X[0], W1, W2, WEIGHT, IDS), {}, ValueError, r"hidden_states has the shape \[6\]; it has to be \[M, D\]"),
        ((X, W1[:2], W2, WEIGHT, IDS), {}, ValueError, r"w1 has the shape \[2, 10, 6\]; it has to be .*\[3, 10, 6\]"),
        ((X, W1[:, :7], W2, WEIGHT, IDS), {}, ValueError, r"w1 has the shape \[3, 7, 6\]"),
        ((X, W1, W2[:, :5], WEIGHT, IDS), {}, ValueError, r"w2 has the shape \[3, 5, 5\]; .* = \[3, 6, 5\]"),
        ((X, W1, W2, WEIGHT[:, :1], IDS), {}, ValueError, r"topk_weight has the shape \[4, 1\]"),
        ((X, W1, W2, WEIGHT[:, :0], IDS[:, :0]), {}, ValueError, "there has to be an expert"),
        ((X, W1, W2, WEIGHT, IDS[:3]), {}, ValueError, r"topk_ids has the shape \[3, 2\]"),
        ((X, W1, W2, WEIGHT, WEIGHT), {}, TypeError, "topk_ids has the dtype float32"),
        ((X, W1, W2, IDS, IDS), {}, TypeError, "topk_weight has the dtype int32"),
        ((X.astype(BF16), W1, W2, WEIGHT, IDS), {}, TypeError, "hidden_states has the dtype bfloat16"),
        ((X, W1, W2.astype(BF16), WEIGHT, IDS), {}, TypeError, "w2 has the dtype bfloat16"),
        ((X, W1, W2, WEIGHT, IDS), {"activation": "relu"}, ValueError, "activation is 'relu'; it has to be silu or"),
        ((X, W1, W2, WEIGHT, IDS), {"a1_scale": X}, ValueError, "a1_scale is given, but w1 is not quantised"),
        ((X, *BYTES, WEIGHT, IDS), {}, ValueError, "w1_scale is missing"),
        ((X, *BYTES, WEIGHT, IDS), {"w1_scale": W1[..., 0]}, ValueError, "w2_scale is missing"),
        ((X, *BYTES, WEIGHT, IDS), {"w1_scale": W1[..., 0], "w2_scale": X}, ValueError, "w2_scale has the shape"),
        ((X, *BYTES, WEIGHT, IDS), {"a1_scale": X[:, :1]}, ValueError, "a1_scale is given, but hidden_states has the"),
    ],
)
def check_unsuitable_arguments_are_named(arguments: Any, words: Any, kind: Any, said: str) -> None:
    with pytest.raises(kind, match=said):
        fused_moe(*arguments, **words)


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ((X[0], 2, True), ValueError, r"gating_output has the shape \[6\]; it has to be \[M, E\]"),
        ((IDS, 2, True), TypeError, "gating_output has the dtype int32"),
        ((X, 7, True), ValueError, "topk is 7; it has to be from 1 to the number of experts, 6"),
        ((X, 0, True), ValueError, "topk is 0"),
        ((X, 2.0, True), TypeError, "topk is a float"),
    ],
)
def check_router_names_unsuitable_arguments(arguments: Any, kind: Any, said: str) -> None:
    with pytest.raises(kind, match=said):
        topk_softmax(*arguments)


def check_shuffled_weight_is_made_of_pieces_of_16_bytes() -> None:
    weight = jnp.arange(2 * 16 * 64, dtype=jnp.float32).reshape(2, 16, 64).astype(BF16)
    shuffled = shuffle_weight(weight)
    assert (unshuffle_weight(shuffled) == weight).all()
    # The second piece of the first expert's first tile is that of the second row.
    assert (shuffled[0].reshape(-1)[8:16] == weight[0, 1, :8]).all()
    assert (shuffled[0].reshape(-1)[128:136] == weight[0, 0, 8:16]).all()
    with pytest.raises(TypeError, match="it has to be a dtype of one or two bytes"):
        shuffle_weight(weight.astype(jnp.float32))
