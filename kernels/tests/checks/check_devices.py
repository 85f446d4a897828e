"""Programs on 8 devices: each operation runs on its part, and no operand is gathered."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax_aiter._partition import Rule
from jax_aiter.flatmm_fp8 import flatmm_fp8
from jax_aiter.gemm import gemm
from jax_aiter.gemm_fp4 import gemm_fp4
from jax_aiter.gemm_fp8 import gemm_fp8_mi350
from jax_aiter.gemm_i8 import gemm_i8
from jax_aiter.mha import flash_attn_func, flash_attn_varlen
from jax_aiter.rmsnorm import rms_norm, rms_norm_with_add

from kernels.tests.checks.check_lowering import numbers
from kernels.tests.checks.common import compare, with_gradients

pytestmark = pytest.mark.usefixtures("on_cpu")
S = jax.ShapeDtypeStruct
F32, BF16, E4M3, U8, I8 = jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn, jnp.uint8, jnp.int8
MOVES = re.compile(r" (all-gather|all-to-all|collective-permute|ragged-all-to-all)(?:-start)?\(")
CALL = re.compile(r'custom_call_target="jax_aiter_(\w+)", operand_layout_constraints=\{(.*)\}, api_version')
SHAPE = re.compile(r"\[([1-9][0-9,]*)\]")

X, HALF, GAMMA = S((4, 8, 64), F32), S((4, 8, 64), BF16), S((64,), F32)
QKV = (S((2, 20, 8, 128), BF16), *[S((2, 20, 4, 128), BF16)] * 2)
FEW = (S((2, 7, 8, 16), BF16), *[S((2, 9, 4, 16), BF16)] * 2)
ONE = (FEW[0], *[S((2, 9, 1, 16), BF16)] * 2)
FP8 = (S((64, 512), E4M3), S((1024, 512), E4M3), S((4, 64), F32), S((4, 8), F32))
I8S = (S((8, 128), I8), S((512, 128), I8), S((8, 1), F32), S((1, 512), F32), S((512,), F32))
FP4 = (S((64, 128), U8), S((512, 128), U8), S((64, 8), U8), S((512, 8), U8))
M, N, ON_1 = P("x"), P("y"), P(None, "y")
HEADS, CU = P("x", None, "y"), jnp.array([0, 7, 16], jnp.int32)


def attention(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return flash_attn_func(q, k, v, deterministic=False, **options)


# Name -> GPU, program, operands and how x=2 and y=4 divide them, calls of one device with the shapes of their operands.
CASES: dict[str, tuple[str, Callable[..., Any], tuple[Any, ...], tuple[P, ...], list[str]]] = {
    "rms_norm": ("gfx942", with_gradients(rms_norm), (X, GAMMA), (P("x", "y"), P()), [
        "rms_norm 4,64 64", "rms_norm_bwd 4,64 4,64 64 4"]),
    "rms_norm_with_add": ("gfx942", with_gradients(rms_norm_with_add), (X, X, GAMMA), (P("x"), P("x"), P()), [
        "rms_norm_with_add 16,64 16,64 64", "rms_norm_bwd 16,64 16,64 64 16"]),
    "rms_norm of vmap": ("gfx942", jax.vmap(rms_norm), (X, S((4, 64), F32)), (P("x", "y"), P("x")), [
        "rms_norm 2,64 64"]),
    "gemm": ("gfx942", with_gradients(lambda a, b, c: gemm(a, b, bias=c)), (
        S((128, 256), BF16), S((256, 256), BF16), S((256,), F32)), (M, N, N), [
        "gemm_bf16 64,256 64,256"]),
    "gemm by k": ("gfx942", with_gradients(gemm), (S((128, 256), BF16), S((192, 256), BF16)), (P("x", "y"), ON_1), [
        "gemm_bf16 64,64 192,64"]),
    "gemm_i8": ("gfx942", gemm_i8, I8S, (M, N, M, ON_1, N), ["gemm_i8 4,128 128,128 4,1 1,128 128"]),
    "gemm_fp8_mi350": ("gfx950", gemm_fp8_mi350, FP8, (M, N, P(None, "x"), ON_1), [
        "gemm_fp8_mi350 32,512 256,512 4,32 2,4"]),
    "flatmm_fp8": ("gfx942", flatmm_fp8, FP8, (M, N, P(None, "x"), ON_1), ["flatmm_fp8 32,512 256,512 4,32 4,2"]),
    "gemm_fp4": ("gfx950", gemm_fp4, FP4, (M, N, M, N), ["gemm_fp4 32,128 128,128 256,8 256,8"]),
    "attention by assembly": ("gfx942", with_gradients(lambda q, k, v: flash_attn_func(q, k, v, causal=True)), QKV, (
        HEADS,) * 3, [
        "mha_fwd_asm 1,20,2,128 1,20,1,128 1,20,1,128",
        "mha_bwd_asm 1,20,2,128 1,20,2,128 1,20,1,128 1,20,1,128 1,2,20 1,2,20"]),
    "attention": ("gfx950", with_gradients(attention), FEW, (HEADS,) * 3, [
        "mha_fwd 1,7,2,16 1,9,1,16 1,9,1,16", "mha_bwd 1,7,2,16 1,7,2,16 1,9,1,16 1,9,1,16 1,7,2,16 1,2,7"]),
    "attention with one head of keys": ("gfx950", with_gradients(attention), ONE, (HEADS, P("x"), P("x")), [
        "mha_fwd 1,7,2,16 1,9,1,16 1,9,1,16", "mha_bwd 1,7,2,16 1,7,2,16 1,9,1,16 1,9,1,16 1,7,2,16 1,2,7"]),
    "attention with slopes": ("gfx950", with_gradients(lambda q, k, v, s: attention(q, k, v, alibi_slopes=s)), (
        *FEW, S((8,), F32)), (HEADS, HEADS, HEADS, N), ["mha_fwd 1,7,2,16 1,9,1,16 1,9,1,16 1,2"]),
    "packed attention": ("gfx942", with_gradients(lambda q, k, v: flash_attn_varlen(q, k, v, CU, CU)), (
        S((16, 8, 128), BF16),) * 3, (ON_1,) * 3, [
        "mha_fwd_asm 16,2,128 16,2,128 16,2,128 3 3",
        "mha_bwd_asm 16,2,128 16,2,128 16,2,128 16,2,128 2,16 2,16 3 3"]),
}  # fmt: skip
FOR_RELEASES = ("rms_norm", "rms_norm of vmap", "gemm by k", "gemm_i8", "attention")


def operands_of(name: str) -> list[Any]:
    return [numbers(seed, part) for seed, part in enumerate(CASES[name][2])]


def called(text: str) -> list[str]:
    """Return the custom calls of a compiled program, with the shapes of operands that are not empty."""
    found = [" ".join([name, *SHAPE.findall(shapes)]) for name, shapes in CALL.findall(text)]
    assert len(found) == text.count('custom_call_target="jax_aiter_')
    return found


@cache
def on_one_device(name: str) -> Any:
    return jax.device_get(jax.jit(CASES[name][1])(*operands_of(name)))


ALL = [
    pytest.param(
        *(name, kind),
        id=f"{name} {kind}",
        marks=[pytest.mark.releases] if name in FOR_RELEASES or kind == AxisType.Auto else [],
    )
    for name in CASES
    for kind in (AxisType.Auto, AxisType.Explicit)
]


@pytest.mark.parametrize(("name", "kind"), ALL)
def check_each_device_computes_its_part(name: str, kind: AxisType, monkeypatch: pytest.MonkeyPatch) -> None:
    gfx, function, _, specs, wanted = CASES[name]
    monkeypatch.setenv("JAX_AITER_TARGET", gfx)
    monkeypatch.setenv("JAX_AITER_BACKEND_GEMM", "aiter")
    program = jax.jit(function)
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind, kind))
    with jax.set_mesh(mesh) if kind == AxisType.Explicit else nullcontext():
        divided = [
            jax.device_put(part, NamedSharding(mesh, spec)) for part, spec in zip(operands_of(name), specs, strict=True)
        ]
        compiled = program.lower(*divided).compile()
        found = compiled(*divided)
    assert sorted(called(compiled.as_text())) == sorted(wanted)
    assert MOVES.findall(compiled.as_text()) == []
    kinds = [operand.dtype for operand in operands_of(name)]
    compare(found, on_one_device(name), 1e-5 if kinds[0] == F32 and BF16 not in kinds else 1e-2)


def rows_on(kinds: tuple[AxisType, AxisType]) -> tuple[Mesh, list[Any]]:
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=kinds)
    operands = [numbers(seed, part) for seed, part in enumerate((X, GAMMA))]
    return mesh, [
        jax.device_put(part, NamedSharding(mesh, spec)) for part, spec in zip(operands, (M, P()), strict=True)
    ]


@pytest.mark.releases
def check_explicit_axes_that_the_caller_made_automatic_are_divided() -> None:
    mesh, operands = rows_on((AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        text = jax.jit(jax.sharding.auto_axes(rms_norm, out_sharding=M)).lower(*operands).compile().as_text()
    assert (called(text), MOVES.findall(text)) == (["rms_norm 16,64 64"], [])


@pytest.mark.releases
def check_older_partitioner_of_xla_divides() -> None:
    _, operands = rows_on((AxisType.Auto,) * 2)
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        text = jax.jit(rms_norm).lower(*operands).compile().as_text()
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)
    assert (called(text), MOVES.findall(text)) == (["rms_norm 16,64 64"], [])


GEMM, GROUPS = Rule.parse("m k, n k -> m n", m=1, n=64), Rule.parse("b q h d, b k h' d -> b q h d", b=1, h=1)


@pytest.mark.parametrize(
    ("rule", "shapes", "specs", "wanted"),
    [
        (GEMM, [(8, 256), (256, 256)], [P("x"), P("y")], {"m": ("x",), "n": ("y",)}),
        (GEMM, [(8, 256), (256, 256)], [P(None, "x"), P(None, "x")], {}),
        (GEMM, [(8, 256), (256, 256)], [P("x"), P(), P(None, "y")], {"m": ("x",), "n": ("y",)}),
        (GEMM, [(8, 256), (128, 256)], [P("x"), P("y")], {"m": ("x",)}),
        (GEMM, [(4, 256), (256, 256)], [P(("x", "y")), P()], {"m": ("x",)}),
        (GROUPS, [(2, 5, 8, 16), (2, 5, 2, 16)], [P(None, None, "y"), P()], {}),
    ],
)
def check_dimensions_are_divided_into_parts_that_kernels_support(
    rule: Rule, shapes: Any, specs: Any, wanted: Any
) -> None:
    assert rule.assign(shapes, specs, {"x": 2, "y": 4}) == wanted
