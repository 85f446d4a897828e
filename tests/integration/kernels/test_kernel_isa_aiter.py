"""AITER's code objects, interpreted with the arguments that the handlers pack, against float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.isa.machine import GpuMachine
from tests.support.isa.memory import Memory
from tests.support.kernels_fake import golden
from tests.support.kernels_fake.calls import LOAD, MEMSET, FakeMachine, Tensor
from tests.support.kernels_fake.trees import KernelTree, find_device

pytestmark = [pytest.mark.network, pytest.mark.heavy]

Array = Any


def bf16(values: Array) -> Array:
    """Return numbers rounded to bfloat16, as their bits."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)


def exact(bits: Array) -> Array:
    """Return bfloat16 numbers as float64."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


class Gpu:
    """A GPU whose handlers run above FakeHip and whose kernels are interpreted."""

    def __init__(self, tree: KernelTree, fake: FakeMachine, module: str, seed: int) -> None:
        self._tree, self._fake, self._module, self._seed = tree, fake, module, seed
        self._contents: list[bytes] = []

    def call(
        self, symbol: str, args: Sequence[tuple[str, Array]], results: Sequence[tuple[str, Array]],
        attributes: dict[str, object],
    ) -> tuple[Memory, list[int]]:  # fmt: skip
        """Call a handler and run the kernel that it launches.

        Returns:
            The memory, and the addresses of the results.
        """
        memory = Memory()
        at = [memory.put(value.tobytes()) for _, value in [*args, *results]]
        places = [
            Tensor(dtype, value.shape, place) for place, (dtype, value) in zip(at, [*args, *results], strict=True)
        ]
        self._fake.records()
        self._fake.call(
            self._tree.library(self._module), symbol, places[: len(args)], places[len(args) :], attributes,
            device=find_device("gfx942", 304),
        )  # fmt: skip
        *before, launch = (record for record in self._fake.records() if record.what != LOAD)
        for record in before:
            assert record.what == MEMSET
            memory.fill(record.to, record.value, record.size)
        (path,) = (one for one in (self._tree.hsa / "gfx942").rglob("*.co") if golden.digest(one) == launch.sha256)
        x, y, z = launch.grid
        GpuMachine(path, self._seed, memory).run(launch.kernel, launch.arguments, (x, y, z), launch.block[0])
        return memory, at[len(args) :]


def read(memory: Memory, address: int, dtype: Any, shape: tuple[int, ...]) -> Array:
    """Return a result."""
    return np.frombuffer(memory.get(address), dtype).reshape(shape)


@pytest.mark.parametrize(("m", "n", "k", "split"), [(40, 64, 128, 1), (33, 128, 256, 2)])
def test_gemm_bf16_matches_float64(
    kernel_tree: KernelTree, fake_machine: FakeMachine, m: int, n: int, k: int, split: int
) -> None:
    random = np.random.default_rng(m)
    a, b = bf16(random.standard_normal((m, k))), bf16(random.standard_normal((n, k)))
    out, none = np.full((m, n), np.nan, np.float32), np.zeros((0,), np.float32)
    gpu = Gpu(kernel_tree, fake_machine, "gemm_bf16", seed=split)
    memory, (at, _) = gpu.call(
        "JaxAiterGemmBf16", [("bf16", a), ("bf16", b), ("f32", none)],
        [("f32", out), ("u32", np.zeros(1024, np.uint32))],
        {"splitk": split, "kernel": "_ZN5aiter28bf16gemm_outf32_tn_32x64_pf3E"},
    )  # fmt: skip
    wanted = exact(a) @ exact(b).T
    assert np.abs(read(memory, at, np.float32, (m, n)) - wanted).max() < 1e-6 * k


def attention(q: Array, k: Array, v: Array, scale: float, *, causal: bool) -> tuple[Array, Array]:
    """Return attention and its log-sum-exp in float64: [b, q, h, d] and [b, h, q]."""
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(exact(one), group, axis=2) for one in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", exact(q), k) * scale
    if causal:
        queries, keys = scores.shape[2:]
        scores = np.where(np.arange(keys) <= np.arange(queries)[:, None] + keys - queries, scores, -np.inf)
    most = scores.max(-1, keepdims=True)
    weights = np.exp(scores - most)
    total = weights.sum(-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", weights / total, v), (most + np.log(total))[..., 0]


@pytest.mark.parametrize(
    ("causal", "queries", "keys", "heads", "key_heads"), [(False, 70, 100, 2, 1), (True, 90, 130, 1, 1)]
)
def test_attention_and_natural_lse_match_float64(
    kernel_tree: KernelTree,
    fake_machine: FakeMachine,
    causal: bool,
    queries: int,
    keys: int,
    heads: int,
    key_heads: int,
) -> None:
    """The log-sum-exp is natural, of the scaled scores: log(sum(exp(scale * q k)))."""
    random = np.random.default_rng(queries)
    q, k, v = (
        bf16(random.standard_normal((1, *shape, 128)))
        for shape in ((queries, heads), (keys, key_heads), (keys, key_heads))
    )
    out, lse = np.full_like(q, 0xFFFF), np.full((1, heads, queries), np.nan, np.float32)
    none = ("s32", np.zeros((0,), np.int32))
    gpu = Gpu(kernel_tree, fake_machine, "mha_fwd_asm", seed=0)
    memory, (at, lse_at) = gpu.call(
        "JaxAiterMhaFwdAsm", [("bf16", q), ("bf16", k), ("bf16", v), none, none],
        [("bf16", out), ("f32", lse)], {"scale": 0.125, "causal": causal},
    )  # fmt: skip
    wanted, wanted_lse = attention(q, k, v, 0.125, causal=causal)
    found = exact(read(memory, at, np.uint16, out.shape))
    # P is rounded to bfloat16, half away from zero, before it is multiplied with V.
    assert np.abs(found - wanted).max() < 2.0**-8 * np.abs(wanted).max()
    assert np.abs(read(memory, lse_at, np.float32, lse.shape) - wanted_lse).max() < 1e-5
