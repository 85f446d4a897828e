"""A transformer of three layers under each transformation of JAX, against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from jax_aiter.gemm import gemm
from jax_aiter.mha import flash_attn_func
from jax_aiter.rmsnorm import rms_norm_with_add

from kernels.tests.checks.common import compare, made, mesh
from kernels.tests.checks.programs import BF16, F32, lowered

LAYERS = 3
HEADS = 4
KEY_HEADS = 2
WIDTH = 128
BATCH = 8
LENGTH = 20


def plain_norm(
    x: Any,
    residual: Any,
    gamma: Any,
) -> Any:
    total = x + residual
    mean = jnp.mean(total * total, axis=-1, keepdims=True)
    return total / jnp.sqrt(mean + 1e-6) * gamma, total


def plain_attention(
    q: Any,
    k: Any,
    v: Any,
) -> Any:
    k, v = (jnp.repeat(part, HEADS // KEY_HEADS, 2) for part in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    seen = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    p = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


@dataclass(frozen=True)
class Operations:
    """Implementation of the operations; products and attention have the dtype `narrow`."""

    narrow: Any
    norm: Callable[..., Any]
    product: Callable[..., Any]
    attention: Callable[..., Any]


ATTENTION = partial(flash_attn_func, causal=True)
KERNELS = Operations(
    BF16,
    rms_norm_with_add,
    gemm,
    ATTENTION,
)
BY_XLA = Operations(
    F32,
    rms_norm_with_add,
    gemm,
    ATTENTION,
)
PLAIN = Operations(
    jnp.float64,
    plain_norm,
    lambda a, b: a @ b.T,
    plain_attention,
)


def layer(
    operations: Operations,
    depth: int,
    carry: Any,
    weights: Any,
) -> Any:
    x, branch = carry
    front = x.shape[:2]

    def dense(array: Any, name: str) -> Any:
        weight = weights[name].astype(operations.narrow)
        rows = array.reshape(-1, weight.shape[1]).astype(operations.narrow)
        return operations.product(rows, weight).reshape(*front, -1)

    normal, x = operations.norm(branch, x, weights["before"])
    q, k, v = (dense(normal, name).reshape(*front, -1, depth) for name in "qkv")
    branch = dense(operations.attention(q, k, v), "out").astype(x.dtype)
    normal, x = operations.norm(branch, x, weights["after"])
    branch = dense(jax.nn.silu(dense(normal, "up")), "down")
    return (x, branch.astype(x.dtype)), None


def model(
    one: Callable[..., Any],
    x: Any,
    weights: Any,
) -> Any:
    (x, branch), _ = jax.lax.scan(one, (x, jnp.zeros_like(x)), weights)
    return x + branch


def unrolled(
    one: Callable[..., Any],
    x: Any,
    weights: Any,
) -> Any:
    carry = (x, jnp.zeros_like(x))
    for place in range(LAYERS):
        own = jax.tree.map(lambda part: part[place], weights)  # noqa: B023
        carry, _ = one(carry, own)
    return carry[0] + carry[1]


def remat(
    one: Callable[..., Any],
    x: Any,
    weights: Any,
) -> Any:
    return model(jax.checkpoint(one), x, weights)


def mapped(
    one: Callable[..., Any],
    x: Any,
    weights: Any,
) -> Any:
    return jax.vmap(lambda part: model(one, part[None], weights)[0])(x)


def divided(
    one: Callable[..., Any],
    x: Any,
    weights: Any,
) -> Any:
    function = jax.shard_map(
        partial(model, one),
        mesh=mesh(),
        in_specs=(P("d"), P()),
        out_specs=P("d"),
    )
    return function(x, weights)


def operands(depth: int) -> Any:
    shapes = {
        "before": (WIDTH,),
        "after": (WIDTH,),
        "q": (HEADS * depth, WIDTH),
        "k": (KEY_HEADS * depth, WIDTH),
        "v": (KEY_HEADS * depth, WIDTH),
        "out": (WIDTH, HEADS * depth),
        "up": (2 * WIDTH, WIDTH),
        "down": (WIDTH, 2 * WIDTH),
    }
    weights = {}
    for seed, (name, shape) in enumerate(shapes.items()):
        weight = made(seed, (LAYERS, *shape)) / shape[-1] ** 0.5
        weights[name] = weight if len(shape) == 2 else 1 + weight
    return made(9, (BATCH, LENGTH, WIDTH)), weights


def with_gradients(
    transformed: Callable[..., Any],
    operations: Operations,
    depth: int,
) -> Any:
    one = partial(layer, operations, depth)

    def loss(x: Any, weights: Any) -> Any:
        out = transformed(one, x, weights)
        return (out**2).mean(), out

    return jax.value_and_grad(loss, (0, 1), has_aux=True)


@cache
def wanted(depth: int) -> Any:
    """Return output and gradients of the unblocked model in float64."""
    jax.config.update("jax_enable_x64", True)
    arrays = jax.tree.map(lambda part: part.astype(jnp.float64), operands(depth))
    function = with_gradients(unrolled, PLAIN, depth)
    found = jax.device_get(jax.jit(function)(*arrays))
    jax.config.update("jax_enable_x64", False)
    return found


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("depth", "backend"),
    [
        pytest.param(64, "aiter", marks=pytest.mark.releases),
        (128, "aiter"),
        (128, "xla"),
    ],
)
@pytest.mark.parametrize("transformed", [unrolled, model, remat, mapped, divided])
def check_a_transformer_matches_float64(
    transformed: Callable[..., Any],
    depth: int,
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAX_AITER_BACKEND", "auto" if backend == "aiter" else "xla")
    monkeypatch.setenv("JAX_AITER_BACKEND_GEMM", backend)
    operations = KERNELS if backend == "aiter" else BY_XLA
    function, arrays = with_gradients(transformed, operations, depth), operands(depth)
    text = lowered(function, *arrays, platform="cpu")
    for name in ("gemm_bf16", "rms_norm_with_add", "rms_norm_bwd", "mha_bwd_asm"):
        assert (f"@jax_aiter_{name}(" in text) == (backend == "aiter")
    found = jax.jit(function)(*arrays)
    compare(found, wanted(depth), 4e-2 if backend == "aiter" else 2e-5)
