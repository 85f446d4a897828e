"""AITER's kernels of attention backward, interpreted, against float64.

Waves rely on shared memory being accessed in the order in which they issue, beyond the
waits of the kernels: some reads are outstanding at a barrier after which another wave
writes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels.tests.support.fake.bwd_calls import BwdCase
from kernels.tests.support.fake.interpreted import call, from_bf16, to_bf16
from kernels.tests.support.fake.trees import KernelTree

pytestmark = pytest.mark.network

Array = Any
SCALE = 0.125  # as in BwdCase
UNSEEN = 1e30
"""lse of a query that sees no key, as jax_aiter passes it."""


def gradients(
    case: BwdCase,
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
) -> tuple[Array, ...]:
    """Return lse, d, dq, dk and dv of one sequence in float64.

    Lse and d [h, q], dq [h, q, d], dk and dv [k, h, d].
    """
    k, v = (
        np.repeat(
            one,
            case.group,
            axis=1,
        )
        for one in (k, v)
    )
    scores = np.einsum("qhd,khd->hqk", q, k) * SCALE
    queries, keys = scores.shape[1:]
    diagonal = np.arange(queries)[:, None] + keys - queries
    key = np.arange(keys)
    left, right = case.window
    seen = (key >= diagonal - left) | (left < 0)
    seen &= (key <= diagonal + right) | (right < 0)
    total = np.where(seen, np.exp(scores), 0).sum(-1)
    lse = np.where(total > 0, np.log(np.where(total > 0, total, 1)), UNSEEN)
    p = np.where(seen, np.exp(scores - lse[..., None]), 0)
    d = np.einsum("qhd,hqk,khd->hq", dout, p, v)
    ds = p * (np.einsum("qhd,khd->hqk", dout, v) - d[..., None]) * SCALE
    dq = np.einsum("hqk,khd->hqd", ds, k)
    dk = np.einsum("hqk,qhd->khd", ds, q)
    return lse, d, dq, dk, np.einsum("hqk,qhd->khd", p, dout)


def errors(
    tree: KernelTree,
    case: BwdCase,
    args: list[Array],
    wanted: list[Array],
    seed: int,
) -> Array:
    """Return the errors of dq, dk and dv, in units of their largest numbers."""
    operands, results = case.tensors()
    typed = [
        (one.dtype, value)
        for one, value in zip(
            operands,
            args,
            strict=True,
        )
    ]
    shapes = [(one.dtype, one.shape) for one in results]
    found = call(
        tree,
        "mha_bwd_asm",
        typed,
        shapes,
        case.attributes(),
        seed=seed,
        ordered=True,
    )
    numbers = [found[0], *map(from_bf16, found[1:])]
    found_errors = []
    for one, other in zip(
        numbers,
        wanted,
        strict=True,
    ):
        found_errors.append(np.abs(one - other).max() / np.abs(other).max())
    return np.array(found_errors)


CASES = {
    "padded": BwdCase(
        queries=40,
        keys=70,
        batch=2,
        key_heads=1,
        group=2,
        depth=72,
    ),
    "window": BwdCase(
        queries=60,
        keys=80,
        batch=1,
        key_heads=1,
        group=1,
        window=(16, 3),
    ),
    "64": BwdCase(
        queries=40,
        keys=30,
        batch=1,
        key_heads=1,
        group=1,
        depth=64,
        window=(-1, 0),
    ),
    "192": BwdCase(
        queries=40,
        keys=70,
        batch=1,
        key_heads=1,
        group=1,
        depth=192,
        window=(-1, 0),
    ),
}


def operands(case: BwdCase) -> list[Array]:
    """Return dout, q, k and v."""
    random = np.random.default_rng(case.queries)
    return [to_bf16(random.standard_normal(one.shape)) for one in case.tensors()[0][:4]]


@pytest.mark.parametrize("name", CASES)
def test_batches_match_float64(kernel_tree: KernelTree, name: str) -> None:
    case = CASES[name]
    none = np.zeros(0, np.int32)
    halves = operands(case)
    parts = []
    for b in range(case.batch):
        arrays = (from_bf16(half[b]) for half in halves)
        parts.append(gradients(case, *arrays))
    lse, d, *wanted = map(np.stack, zip(*parts, strict=True))
    rows = [lse.astype(np.float32), d.astype(np.float32)]
    # P and dS are rounded to bfloat16, half away from zero, before they are multiplied.
    assert (
        errors(
            kernel_tree,
            case,
            [*halves, *rows, none, none],
            wanted,
            seed=7,
        ).max()
        < 2.0**-7
    )


def test_packed_sequences_match_float64(kernel_tree: KernelTree) -> None:
    """The second sequence has no queries, and the last rows belong to none."""
    lengths = (33, 0, 20)
    key_lengths = (50, 7, 18)
    case = BwdCase(
        packed=3,
        queries=60,
        keys=80,
        depth=128,
        key_heads=1,
        group=1,
        window=(-1, 0),
        longest=(33, 50),
    )
    cu, cu_keys = (
        np.cumsum([0, *one]).astype(np.int32) for one in (lengths, key_lengths)
    )
    halves = operands(case)
    wanted = [np.zeros(one.shape) for one in case.tensors()[1]]
    lse = np.full((1, 60), UNSEEN)
    d = np.zeros((1, 60))
    for b in range(3):
        rows = slice(cu[b], cu[b + 1])
        keys = slice(cu_keys[b], cu_keys[b + 1])
        dout, q, k, v = (
            from_bf16(one[part])
            for one, part in zip(
                halves,
                (rows, rows, keys, keys),
                strict=True,
            )
        )
        own = gradients(case, dout, q, k, v)
        lse[:, rows], d[:, rows], wanted[0][:, rows] = own[:3]
        wanted[1][keys], wanted[2][keys] = own[3:]
    rows_of = [lse.astype(np.float32), d.astype(np.float32)]
    args = [*halves, *rows_of, cu, cu_keys]
    assert (
        errors(
            kernel_tree,
            case,
            args,
            wanted,
            seed=3,
        ).max()
        < 2.0**-7
    )
