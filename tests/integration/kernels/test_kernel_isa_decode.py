"""AITER's kernels of decoding, interpreted with the arguments that the handlers pack, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.kernels_fake.calls import FakeMachine
from tests.support.kernels_fake.interpreted import call, from_bf16, to_bf16
from tests.support.kernels_fake.trees import KernelTree

pytestmark = [pytest.mark.network, pytest.mark.heavy]

Array = Any
NONE = ("f32", np.zeros(0, np.float32))


def attention(q: Array, keys: Array, values: Array, scale: float) -> Array:
    """Return attention of the last tokens of a sequence in float64: [l, h, e] of [l, h, d], [k, h, d] and [k, h, e]."""
    scores = np.einsum("lhd,khd->hlk", q, keys) * scale
    queries, tokens = scores.shape[1:]
    scores = np.where(np.arange(tokens) <= np.arange(queries)[:, None] + tokens - queries, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hlk,khe->lhe", weights / weights.sum(-1, keepdims=True), values)


def pages_of(lengths: tuple[int, ...], spare: int, seed: int, size: int = 16) -> tuple[Array, int]:
    """Return pages of sequences in random order, [sequences, width], and their number."""
    used = [-(-length // size) for length in lengths]
    order = np.random.default_rng(seed).permutation(sum(used) + spare).astype(np.int32)
    tables, at = np.zeros((len(lengths), max(used)), np.int32), 0
    for row, count in zip(tables, used, strict=True):
        row[:count], at = order[at : at + count], at + count
    return tables, len(order)


def in_cache(numbers: Array, piece: int, *, values: bool) -> Array:
    """Return [pages, page, heads, d] in the order of the cache."""
    pages, page, heads, depth = numbers.shape
    if values:
        return np.ascontiguousarray(numbers.reshape(pages, page // piece, piece, heads, depth).transpose(0, 3, 1, 4, 2))
    return np.ascontiguousarray(numbers.reshape(pages, page, heads, depth // piece, piece).transpose(0, 2, 3, 1, 4))


@pytest.mark.parametrize(("queries", "group"), [(1, 3), (3, 3), (1, 9)])
def test_paged_attention_matches_float64(
    kernel_tree: KernelTree, fake_machine: FakeMachine, queries: int, group: int
) -> None:
    """Sequences end within a page, and the last one has no tokens."""
    lengths, heads = (37, 150, 0), 2
    random = np.random.default_rng(queries)
    tables, pages = pages_of(lengths, 2, 5)
    q = to_bf16(random.standard_normal((len(lengths), queries, heads * group, 128)))
    caches = [to_bf16(random.standard_normal((pages, 16, heads, 128))) for _ in range(2)]
    starts = np.arange(len(lengths) + 1, dtype=np.int32) * queries if queries > 1 else np.zeros(0, np.int32)
    (found,) = call(
        kernel_tree, fake_machine, ("paged_attention", "JaxAiterPagedAttention"),
        [("bf16", q), *(("bf16", in_cache(one, 8, values=at == 1)) for at, one in enumerate(caches)),
         ("s32", tables), ("s32", np.array(lengths, np.int32)), NONE, NONE, ("s32", starts)],
        [("bf16", q.shape)], {"scale": 0.125, "precision": 0}, lockstep=True, margin=4096,
    )  # fmt: skip
    for s, length in enumerate(lengths[:2]):
        k, v = (
            np.repeat(np.concatenate([from_bf16(one[page]) for page in tables[s]])[:length], group, axis=1)
            for one in caches
        )
        wanted = attention(from_bf16(q[s]), k, v, 0.125)
        assert np.abs(from_bf16(found[s]) - wanted).max() < 2.0**-6 * np.abs(wanted).max()


@pytest.mark.parametrize(("queries", "splits", "heads"), [(2, 1, 16), (3, 2, 16), (1, 1, 16), (1, 1, 128)])
def test_latent_attention_matches_float64(
    kernel_tree: KernelTree, fake_machine: FakeMachine, queries: int, splits: int, heads: int
) -> None:
    """One part is in bfloat16, two parts are in float32 with their log-sum-exp, as is one of 16 heads and one token."""
    lengths, tokens = (70, 20), 128
    random = np.random.default_rng(splits)
    q = to_bf16(random.standard_normal((2, queries, heads, 576)))
    cache = to_bf16(random.standard_normal((tokens, 576)))
    rows = random.permutation(tokens)[: sum(lengths)].astype(np.int32)
    starts = np.array([0, lengths[0], sum(lengths)], np.int32)
    every, whole = np.arange(3, dtype=np.int32), splits == 1 and (queries, heads) != (1, 16)
    parts = (0,) if whole else (2, queries, splits, heads, 512)
    out, partial, lse = call(
        kernel_tree, fake_machine, ("mla_decode", "JaxAiterMlaDecode"),
        [("bf16", q), ("bf16", cache), ("s32", starts), ("s32", rows), ("s32", np.ones(2, np.int32)),
         ("s32", every * queries), ("s32", every * splits), NONE, NONE],
        [("bf16", (2, queries, heads, 512)), ("f32", parts), ("f32", (2, queries, splits, heads))], {"scale": 0.0625},
        lockstep=True, margin=4096,
    )  # fmt: skip
    for s, length in enumerate(lengths):
        keys = np.repeat(from_bf16(cache[rows[starts[s] : starts[s + 1]]])[:, None], heads, axis=1)
        wanted = attention(from_bf16(q[s]), keys, keys[..., :512], 0.0625)
        if whole:
            found = from_bf16(out[s])
        else:
            written = min(splits, -(-length // 16))
            weights = np.exp(lse[s, :, :written].astype(np.float64))[..., None]
            found = (weights * partial[s, :, :written]).sum(1) / weights.sum(1)
        assert np.abs(found - wanted).max() < 2.0**-6 * np.abs(wanted).max()
