"""AITER's kernels for a mixture of experts, interpreted with the arguments that the handlers pack, against float64."""

from __future__ import annotations

from math import erf
from typing import Any

import numpy as np
import pytest

from tests.support.isa.matrix_ops import fp8_numbers
from tests.support.kernels_fake.calls import FakeMachine
from tests.support.kernels_fake.interpreted import call, from_bf16, to_bf16
from tests.support.kernels_fake.trees import KernelTree

pytestmark = [pytest.mark.network, pytest.mark.heavy]

Array = Any


def route(tree: KernelTree, machine: FakeMachine, logits: Array, topk: int, seed: int, *, renormalize: bool) -> Any:
    results = [("f32", (len(logits), topk)), ("s32", (len(logits), topk))]
    return call(
        tree, machine, ("topk_softmax", "JaxAiterTopkSoftmax"), [("f32", logits)], results,
        {"renormalize": renormalize}, seed=seed,
    )  # fmt: skip


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("experts", [128, 256])
@pytest.mark.parametrize("topk", [6, 8])
def test_router_matches_float64(
    kernel_tree: KernelTree, fake_machine: FakeMachine, experts: int, topk: int, renormalize: bool
) -> None:
    random = np.random.default_rng(experts)
    logits = (random.standard_normal((5, experts)) * random.choice([0, 1, 9], (5, 1))).astype(np.float32)
    weights, ids = route(kernel_tree, fake_machine, logits, topk, topk, renormalize=renormalize)
    wanted = np.exp(logits.astype(np.float64))
    wanted /= wanted.sum(1, keepdims=True)
    order = np.argsort(-wanted, axis=1, kind="stable")[:, :topk]
    assert (ids == order).all()
    chosen = np.take_along_axis(wanted, order, 1)
    chosen /= chosen.sum(1, keepdims=True) if renormalize else 1
    assert np.abs(weights - chosen).max() < 1e-6


def test_router_may_repeat_an_expert_without_weight(kernel_tree: KernelTree, fake_machine: FakeMachine) -> None:
    """The documentation of topk_softmax says so."""
    logits = np.full((1, 128), -200, np.float32)
    logits[0, 5] = 0
    weights, ids = route(kernel_tree, fake_machine, logits, 6, 0, renormalize=True)
    assert weights.tolist() == [[1, 0, 0, 0, 0, 0]]
    assert ids[0, 0] == 5
    assert len({*ids[0].tolist()}) < 6


def shuffled(weight: Array) -> Array:
    """Reorder weights [E, N, K] as jax_aiter.layouts.shuffle_weight with the layout (16, 16)."""
    e, n, k = weight.shape
    piece = 16 // weight.itemsize
    tiles = weight.reshape(e, n // 16, 16, k // 32, 32 // piece, piece)
    return np.ascontiguousarray(tiles.transpose(0, 1, 3, 4, 2, 5)).reshape(e, n, k)


def sorted_rows(ids: Array, weights: Array, experts: int) -> tuple[Array, ...]:
    """Return AITER's sorted tokens, their weights, the expert of each block of 32, and the number of rows."""
    tokens, topk = ids.shape
    rows, scales, owners = [], [], []
    for expert in range(experts):
        found = [(token, slot) for token, slot in np.ndindex(*ids.shape) if ids[token, slot] == expert]
        blank = -len(found) % 32
        rows += [token | slot << 24 for token, slot in found] + [tokens | topk << 24] * blank
        scales += [weights[token, slot] for token, slot in found] + [0] * blank
        owners += [expert] * ((len(found) + blank) // 32)
    return (
        np.array(rows, np.int32), np.array(scales, np.float32), np.array(owners, np.int32),
        np.array([len(rows), tokens], np.int32),
    )  # fmt: skip


def quantised(values: Array, numbers: Array) -> Array:
    """Return the values in multiples of the numbers of a dtype, the largest of which is that of the values.

    The kernels round to the nearest number of fp8, but towards zero to int8.
    """
    scale = np.abs(values).max() / numbers.max()
    if numbers.max() == 127:
        return np.trunc(values / scale) * scale
    nearest = np.abs(values[:, None] / scale - numbers).argmin(1)
    return numbers[nearest] * scale


def experts(x: Array, w1: Array, w2: Array, ids: Array, weights: Array, *, gelu: bool, numbers: Array = None) -> Array:
    """Return the result in float64.

    Args:
        numbers: numbers of the dtype that the inner numbers of a token and an expert are quantised to; None for none.
    """
    out, inner = np.zeros(x.shape), w2.shape[2]
    for token, slot in np.ndindex(*ids.shape):
        expert = ids[token, slot]
        hidden = w1[expert] @ x[token]
        gate = hidden[:inner]
        value = gate * (1 + np.vectorize(erf)(gate / 2**0.5)) / 2 if gelu else gate / (1 + np.exp(-gate))
        value = value * hidden[inner:] if len(hidden) > inner else value
        value = value if numbers is None else quantised(value, numbers)
        out[token] += weights[token, slot] * (w2[expert] @ value)
    return out


KINDS = [
    ("gfx942", "bf16", 512, False), ("gfx942", "bf16", 512, True), ("gfx950", "bf16", 512, False),
    ("gfx942", "f8e4m3fnuz", 128, False), ("gfx942", "f8e4m3fnuz", 192, True), ("gfx942", "s8", 320, False),
    ("gfx950", "s8", 128, True),
]  # fmt: skip


@pytest.mark.parametrize(("gfx", "dtype", "inner", "gelu"), KINDS)
def test_experts_match_float64(
    kernel_tree: KernelTree, fake_machine: FakeMachine, gfx: str, dtype: str, inner: int, gelu: bool
) -> None:
    """Each row of each weight has another scale, so that a scale in the wrong place changes the result.

    The kernels without quantisation rely on wavefronts that run side by side.
    """
    tokens, count, topk, depth, half = 7, 3, 2, 512, dtype == "bf16"
    random = np.random.default_rng(inner)
    shapes = (tokens, depth), (count, inner * (1 if half else 2), depth), (count, depth, inner)
    ids, weights = random.integers(0, count, (tokens, topk)), random.uniform(0.2, 1, (tokens, topk)).astype(np.float32)
    numbers = np.arange(256).astype(np.uint8).view(np.int8) if dtype == "s8" else fp8_numbers(8)
    numbers = np.nan_to_num(numbers.astype(np.float64))
    if half:
        parts = [to_bf16(random.standard_normal(shape) / 8) for shape in shapes]
        x, w1, w2 = map(from_bf16, parts)
        scales = [np.zeros(0, np.float32)] * 3
    else:
        wide = [random.integers(0, 256, shape, np.uint8) for shape in shapes]
        parts = [np.where(one == 0x80, 0, one).astype(np.uint8) for one in wide]
        rows_of = (tokens, 1), shapes[1][:2], shapes[2][:2]
        scales = [(random.uniform(0.05, 0.4, one) / numbers.max()).astype(np.float32) for one in rows_of]
        x, w1, w2 = (
            numbers[part] * scale.reshape((*part.shape[:-1], 1)) for part, scale in zip(parts, scales, strict=True)
        )
    rows, row_weights, owners, valid = sorted_rows(ids, weights, count)
    (found,) = call(
        kernel_tree, fake_machine, ("fmoe", "JaxAiterFmoe"),
        [(dtype, parts[0]), (dtype, shuffled(parts[1])), (dtype, shuffled(parts[2])), ("s32", rows),
         ("f32", row_weights), ("s32", owners), ("s32", valid), *(("f32", one) for one in scales)],
        [("bf16", (tokens, depth))], {"topk": topk, "gelu": gelu}, lockstep=half,
        gpu=(gfx, {"gfx942": 80, "gfx950": 32}[gfx]),
    )  # fmt: skip
    wanted = experts(x, w1, w2, ids, weights, gelu=gelu, numbers=None if half else numbers)
    # The experts of a token are added in bfloat16; approximations move some inner numbers to their other neighbour.
    assert np.abs(from_bf16(found) - wanted).max() < 0.01 * np.abs(wanted).max()
