"""Lowering: custom calls for AMD GPUs, plain XLA elsewhere, and both from one trace."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax_aiter import BackendError, _choice, _loader
from jax_aiter import gemm as gemm_module
from jax_aiter._loader import Loader
from jax_aiter._table import TARGETS
from jax_aiter.flatmm_fp8 import flatmm_fp8
from jax_aiter.gemm import gemm
from jax_aiter.gemm_fp4 import gemm_fp4
from jax_aiter.gemm_fp8 import gemm_fp8_mi350
from jax_aiter.gemm_i8 import gemm_i8
from jax_aiter.mha import _kernels, flash_attn_func, flash_attn_varlen
from jax_aiter.rmsnorm import rms_norm, rms_norm_with_add

from kernels.tests.checks.common import compare, made, with_gradients
from kernels.tests.checks.kernels import Kernels

pytestmark = pytest.mark.usefixtures("installed")
S = jax.ShapeDtypeStruct
F32, BF16, E4M3, U8, I8 = jnp.float32, jnp.bfloat16, jnp.float8_e4m3fn, jnp.uint8, jnp.int8
X, GAMMA = S((4, 128), F32), S((128,), F32)
A, B = S((16, 128), BF16), S((256, 128), BF16)
INT8 = (S((4, 128), I8), S((256, 128), I8), S((4, 1), F32), S((1, 256), F32), S((1, 256), F32))
FP8 = (S((16, 512), E4M3), S((256, 512), E4M3), S((4, 16), F32), S((4, 2), F32))
QKV = (S((2, 256, 8, 128), BF16), *[S((2, 512, 2, 128), BF16)] * 2)
HEADS = ["2x256x8x128xbf16", *["2x512x2x128xbf16"] * 2]
FEW = (S((2, 7, 4, 16), BF16), *[S((2, 9, 2, 16), BF16)] * 2)
FEW_HEADS, FEW_RESULTS = ["2x7x4x16xbf16", *["2x9x2x16xbf16"] * 2], ["2x7x4x16xbf16", "2x4x7xf32"]
OPTIONS = {"scale": "2.500000e-01 : f32", "dropout": "0.000000e+00 : f32", "window_left": "-1 : i32"}
OPTIONS |= {"window_right": "-1 : i32", "longest_query": "0 : i32", "longest_key": "0 : i32"}


def total(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *a: sum(part.astype(F32).sum() for part in jax.tree.leaves(function(*a)))


def lowered(function: Callable[..., Any], *arguments: Any, platform: str = "rocm") -> str:
    text: str = jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
    return text


def calls(text: str) -> list[tuple[str, list[str], list[str], dict[str, str]]]:
    """Return each custom call: its target, the types of its operands and of its results, its attributes."""
    found = []
    for line in text.splitlines():
        if match := re.search(
            r"custom_call @(jax_aiter_\w+)\(.*mhlo\.backend_config = \{(.*?)\}.* : \((.*)\) -> (.*)$", line
        ):
            types = [re.findall(r"tensor<([^>]*)>", part) for part in match.groups()[2:]]
            attrs = dict(part.split(" = ", 1) for part in match[2].split(", ") if part)
            found.append((match[1], types[0], types[1], attrs))
    assert len(found) == text.count("custom_call @jax_aiter_")
    return found


CASES: dict[str, tuple[str, Callable[..., Any], Any, list[Any]]] = {
    "gemm that AITER tuned": ("gfx942", lambda a, b: gemm(a, b, out_dtype=F32), (A, B), [(
        "jax_aiter_gemm_bf16", ["16x128xbf16", "256x128xbf16", "0xf32"], ["16x256xf32", "1024xui32"],
        {"splitk": "2 : i32", "kernel": '"small_64x64"'})]),
    "gemm_i8": ("gfx942", gemm_i8, INT8, [(
        "jax_aiter_gemm_i8", ["4x128xi8", "256x128xi8", "4x1xf32", "1x256xf32", "256xf32"], ["4x256xbf16"],
        {"splitk": "1 : i32", "kernel": '"int8_128x128"'})]),
    "gemm_fp8_mi350": ("gfx950", gemm_fp8_mi350, FP8, [(
        "jax_aiter_gemm_fp8_mi350", ["16x512xf8E4M3FN", "256x512xf8E4M3FN", "4x16xf32", "2x4xf32"], ["16x256xbf16"],
        {})]),
    "gemm_fp4": ("gfx950", gemm_fp4, (S((4, 128), U8), S((256, 128), U8), S((4, 8), U8), S((256, 8), U8)), [(
        "jax_aiter_gemm_fp4", ["32x128xui8", "256x128xui8", "256x8xui8", "256x8xui8"], ["32x256xbf16"],
        {"splitk": "1 : i32", "kernel": '"fp4_64x128"', "bpreshuffle": "true"})]),
    "flatmm_fp8": ("gfx942", flatmm_fp8, FP8, [(
        "jax_aiter_flatmm_fp8", ["16x512xf8E4M3FNUZ", "256x512xf8E4M3FNUZ", "4x16xf32", "4x2xf32"], ["16x256xf16"],
        {})]),
    "rms_norm_with_add": ("gfx950", lambda x, r, g: rms_norm_with_add(x, r, g, 0.5), (X, X, GAMMA), [(
        "jax_aiter_rms_norm_with_add", ["4x128xf32", "4x128xf32", "128xf32"], ["4x128xf32", "4x128xf32", "4xf32"],
        {"epsilon": "5.000000e-01 : f32"})]),
    "rms_norm of halves": ("gfx90a", lambda x, g: rms_norm(x, g, 0.5), (S((4, 128), BF16), S((128,), BF16)), [(
        "jax_aiter_ck_rms_norm", ["4x128xbf16", "0xbf16", "128xbf16"], ["4x128xbf16", "0xbf16"],
        {"epsilon": "5.000000e-01 : f32"})]),
    "attention with dropout and its gradient": ("gfx950", jax.grad(total(lambda q, k, v: flash_attn_func(
        q, k, v, 0.25, dropout_seed=7, deterministic=False))), FEW, [
        ("jax_aiter_mha_fwd", [*FEW_HEADS, "0xbf16", "0xf32", "0xi32", "0xi32", "4xui32"], FEW_RESULTS,
         OPTIONS | {"dropout": "2.500000e-01 : f32"}),
        ("jax_aiter_mha_bwd", ["2x7x4x16xbf16", *FEW_HEADS, "2x7x4x16xbf16", "2x4x7xf32", "0xbf16", "0xf32", "0xi32",
                               "0xi32", "4xui32"],
         ["2x7x4x16xbf16", "2x9x4x16xbf16", "2x9x4x16xbf16", "2x7x4x16xf32", "2x4x7xf32"],
         OPTIONS | {"dropout": "2.500000e-01 : f32"})]),
    "gradient of attention": ("gfx942", jax.grad(total(lambda q, k, v: flash_attn_func(q, k, v, causal=True))), QKV, [
        ("jax_aiter_mha_fwd_asm", [*HEADS, "0xi32", "0xi32"], ["2x256x8x128xbf16", "2x8x256xf32"],
         {"scale": "0.0883883461 : f32", "causal": "true"}),
        ("jax_aiter_mha_bwd_asm", ["2x256x8x128xbf16", *HEADS, "2x8x256xf32", "2x8x256xf32", "0xi32", "0xi32"],
         ["2x8x256x128xf32", *["2x512x8x128xbf16"] * 2],
         {"scale": "0.0883883461 : f32", "window_left": "-1 : i32", "window_right": "0 : i32",
          "longest_query": "0 : i32", "longest_key": "0 : i32"})]),
    "gradient of packed attention": ("gfx950", jax.grad(total(
        lambda q, k, v, cu: flash_attn_varlen(q, k, v, cu, cu, 70, 80, softmax_scale=0.5))), (
        *[S((300, 8, 128), BF16)] * 3, S((4,), jnp.int32)), [
        ("jax_aiter_mha_fwd_asm", [*["300x8x128xbf16"] * 3, "4xi32", "4xi32"], ["300x8x128xbf16", "8x300xf32"],
         {"scale": "5.000000e-01 : f32", "causal": "false"}),
        ("jax_aiter_mha_bwd_asm", [*["300x8x128xbf16"] * 4, *["8x300xf32"] * 2, "4xi32", "4xi32"],
         ["8x300x128xf32", *["300x8x128xbf16"] * 2],
         {"scale": "5.000000e-01 : f32", "window_left": "-1 : i32", "window_right": "-1 : i32",
          "longest_query": "70 : i32", "longest_key": "80 : i32"})]),
    "gradient of rms_norm": ("gfx90a", jax.grad(total(lambda x, g: rms_norm(x, g, 0.5))), (X, GAMMA), [
        ("jax_aiter_rms_norm", ["4x128xf32", "128xf32"], ["4x128xf32", "4xf32"], {"epsilon": "5.000000e-01 : f32"}),
        ("jax_aiter_rms_norm_bwd", ["4x128xf32", "4x128xf32", "128xf32", "4xf32"], ["4x128xf32", "4x128xf32"], {})]),
}  # fmt: skip


@pytest.mark.releases
@pytest.mark.parametrize("name", CASES)
def check_amd_gpus_get_the_custom_call_of_the_contract(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gfx, function, arguments, wanted = CASES[name]
    assert calls(lowered(function, *arguments)) == []
    jax.clear_caches()
    monkeypatch.setenv("JAX_AITER_TARGET", gfx)
    monkeypatch.setenv("JAX_AITER_COMPUTE_UNITS", "80" if gfx == "gfx942" else "256")
    assert calls(lowered(function, *arguments)) == wanted
    for target, operands, results, attrs in wanted:
        row = TARGETS[target]
        assert (len(operands), len(results), set(attrs)) == (len(row.args), len(row.results), set(row.attrs))
    assert calls(lowered(function, *arguments, platform="cpu")) == []
    assert calls(lowered(function, *arguments, platform="cuda")) == []


@pytest.mark.releases
def check_one_export_serves_both_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx942")
    allowed = [export.DisabledSafetyCheck.custom_call(name) for name in TARGETS]
    both = export.export(jax.jit(rms_norm), platforms=["cpu", "rocm"], disabled_checks=allowed)(X, GAMMA)
    assert len(calls(both.mlir_module())) == 1
    x, gamma = made(1, X.shape), made(2, GAMMA.shape)
    compare(both.call(x, gamma), rms_norm(x, gamma))


@pytest.mark.releases
def check_what_is_forced_has_no_stand_in_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx942")
    monkeypatch.setenv("JAX_AITER_BACKEND_RMS_NORM", "portable")
    assert len(calls(lowered(rms_norm, X, GAMMA))) == 1
    with pytest.raises(NotImplementedError, match="cpu"):
        lowered(rms_norm, X, GAMMA, platform="cpu")
    monkeypatch.setenv("JAX_AITER_BACKEND_RMS_NORM", "xla")
    jax.clear_caches()
    assert calls(lowered(rms_norm, X, GAMMA)) == []


@pytest.mark.releases
def check_vmap_makes_more_rows_and_not_more_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx942")
    text = lowered(jax.vmap(rms_norm, (0, None)), S((3, 4, 128), F32), GAMMA)
    assert [call[1][0] for call in calls(text)] == ["12x128xf32"]
    assert "stablehlo.while" not in text
    monkeypatch.setenv("JAX_AITER_BACKEND_GEMM", "aiter")
    text = lowered(jax.vmap(gemm, (0, None)), S((3, 16, 128), BF16), B)
    assert [call[1][0] for call in calls(text)] == ["48x128xbf16"]
    # One weight per element means one call per element.
    text = lowered(jax.vmap(gemm), S((3, 16, 128), BF16), S((3, 256, 128), BF16))
    assert [call[1][0] for call in calls(text)] == ["16x128xbf16"]
    assert "stablehlo.while" in text


REFUSED: dict[str, tuple[str, Callable[..., Any], Any, str]] = {
    "float32": ("gfx950", flash_attn_func, [S((1, 300, 4, 128), F32)] * 3, "need bfloat16, not float32"),
    "a window": ("gfx942", lambda q, k, v: flash_attn_func(q, k, v, window_size=(3, 0)), QKV,
                 "assembly kernels do not support windows"),
    "no key": ("gfx942", lambda q, k, v: flash_attn_func(k, k[:, :99], v[:, :99], causal=True), QKV, "sees a key"),
    "lengths": ("gfx950", lambda q, k, v, cu: flash_attn_func(q, k, v, cu_seqlens_q=cu, cu_seqlens_kv=cu),
                (*QKV, S((3,), jnp.int32)), "do not support sequence lengths in a batch"),
    "dropout and bias": ("gfx950", lambda q, k, v, b: flash_attn_func(q, k, v, 0.5, bias=b, dropout_seed=1), (
        *FEW, S((7, 9), BF16)), "with dropout, Composable Kernel supports neither bias"),
    "gradient in order": ("gfx950", jax.grad(total(lambda q, k, v: flash_attn_func(q, k, v, deterministic=True))), FEW,
                          "which deterministic=True forbids"),
    "gradient of a bias": ("gfx950", lambda *a: jax.grad(
        lambda q, k, v, b: total(lambda: flash_attn_func(q, k, v, bias=b, deterministic=False))(), 3)(*a),
        (*FEW, S((7, 9), BF16)), "compute no gradient of a bias"),
    "gradient of lse": ("gfx950", jax.grad(total(
        lambda q, k, v: flash_attn_func(q, k, v, return_lse=True, deterministic=False))), FEW,
        "does not support a cotangent of lse"),
}  # fmt: skip


@pytest.mark.releases
@pytest.mark.parametrize("name", REFUSED)
def check_attention_that_no_kernel_does_is_xlas_or_an_error_if_forced(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gfx, function, arguments, said = REFUSED[name]
    monkeypatch.setenv("JAX_AITER_TARGET", gfx)
    wanted = ["jax_aiter_mha_fwd"] if name.startswith("gradient") else []
    assert [call[0] for call in calls(lowered(function, *arguments))] == wanted
    monkeypatch.setenv("JAX_AITER_BACKEND", "aiter")
    jax.clear_caches()
    with pytest.raises(BackendError, match=said):
        lowered(function, *arguments)


@pytest.mark.releases
@pytest.mark.usefixtures("on_cpu")
def check_handlers_are_called_with_what_they_expect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_AITER_BACKEND_GEMM", "aiter")
    x, residual, gamma = made(1, (600, 40)), made(2, (600, 40)), made(3, (40,))
    a, b, bias = made(4, (64, 128), BF16), made(5, (64, 128), BF16), made(6, (64,))
    batch, factors = made(7, (3, 5, 40)), made(8, (3, 40))
    programs: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (jax.grad(lambda *p: (rms_norm(*p) ** 2).sum(), (0, 1)), (x, gamma)),
        (jax.grad(lambda *p: sum((q**2).sum() for q in rms_norm_with_add(*p)), (0, 1, 2)), (x, residual, gamma)),
        (jax.vmap(rms_norm), (batch, factors)),
        (lambda a, b, c: gemm(a, b, bias=c), (a, b, bias)),
        (lambda a, b: gemm(a, b, out_dtype=F32), (a, b)),
        (jax.vmap(gemm, (None, 0)), (a, jnp.stack([b, b + 1]))),
    ]
    for function, arguments in programs:
        assert "custom_call @jax_aiter" in lowered(function, *arguments, platform="cpu")
        found = jax.jit(function)(*arguments)
        with monkeypatch.context() as patch:
            patch.setenv("JAX_AITER_BACKEND", "xla")
            patch.setenv("JAX_AITER_BACKEND_GEMM", "xla")
            jax.clear_caches()
            wanted = jax.jit(function)(*arguments)
        jax.clear_caches()
        compare(found, wanted, 1e-5 if jax.tree.leaves(found)[0].dtype == F32 else None)


def numbers(seed: int, part: Any) -> Any:
    """Return values of any shape and dtype; scales are positive, and nothing is NaN."""
    rng = np.random.default_rng(seed)
    if part.dtype == U8:
        # Packed e2m1, all of whose values are numbers, or powers of two near one.
        low, high = (120, 135) if part.shape[1] <= 8 else (0, 256)
        return jnp.asarray(rng.integers(low, high, part.shape, np.uint8))
    if part.dtype == I8:
        return jnp.asarray(rng.integers(-128, 128, part.shape, np.int8))
    # numpy's, since jax would compile each of these steps.
    values = rng.standard_normal(part.shape).astype(np.float32)
    return jnp.asarray(np.abs(values) + np.float32(0.1) if part.dtype == F32 else values, part.dtype)


@pytest.mark.releases
@pytest.mark.parametrize("name", ["gemm_i8", "gemm_fp8_mi350", "flatmm_fp8", "gemm_fp4"])
def check_what_is_quantised_reaches_handlers_in_aiters_layout(
    name: str, on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gfx, function, shapes, _ = CASES[name]
    arguments = [numbers(seed, part) for seed, part in enumerate(shapes)]
    monkeypatch.setenv("JAX_AITER_TARGET", gfx)
    assert "custom_call @jax_aiter" in lowered(function, *arguments, platform="cpu")
    found = jax.jit(function)(*arguments)
    monkeypatch.setenv("JAX_AITER_BACKEND", "xla")
    jax.clear_caches()
    compare(found, jax.jit(function)(*arguments), 4e-3 if found.dtype == BF16 else 5e-4)


@pytest.mark.releases
@pytest.mark.usefixtures("on_cpu")
def check_an_error_of_a_handler_is_an_exception() -> None:
    shapes = (S((13, 128), I8), INT8[1], S((13, 1), F32), *INT8[3:])
    with pytest.raises(Exception, match="thirteen rows are too many"):
        jax.block_until_ready(jax.jit(gemm_i8)(*(jnp.ones(part.shape, part.dtype) for part in shapes)))


CU = jnp.array([0, 2, 6], jnp.int32)


ATTENTION: dict[str, tuple[str, Callable[..., Any]]] = {
    "assembly": ("gfx942", lambda q, k, v: flash_attn_func(q, k, v, causal=True)),
    "window": ("gfx950", lambda q, k, v: flash_attn_func(q, k, v, window_size=(4, 1), deterministic=False)),
    "some see nothing": (
        "gfx950", lambda q, k, v: flash_attn_func(q, k[:, :4], v[:, :4], causal=True, deterministic=False)),
    "alibi": ("gfx950", lambda q, k, v: flash_attn_func(
        q, k, v, causal=True, alibi_slopes=jnp.arange(1.0, 5) / 8, deterministic=False)),
    "bias": ("gfx950", lambda q, k, v: flash_attn_func(q, k, v, bias=made(3, (7, 9), BF16), deterministic=False)),
    "packed": ("gfx950", lambda q, k, v: flash_attn_varlen(
        q[0], k[0], v[0], jnp.array([0, 3, 3, 6], jnp.int32), jnp.array([0, 5, 6, 8], jnp.int32), causal=True)),
    "assembly in a window": ("gfx942", lambda q, k, v: flash_attn_func(q, k, v, window_size=(4, 1))),
    "assembly, packed, some see nothing": ("gfx942", lambda q, k, v: flash_attn_varlen(
        q[0], k[0], v[0], jnp.array([0, 3, 3, 6], jnp.int32), jnp.array([0, 2, 6, 8], jnp.int32), causal=True)),
    "assembly with lse": ("gfx942", lambda q, k, v: flash_attn_func(q, k, v, causal=True, return_lse=True)),
}  # fmt: skip


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.releases] if name == "bias" else []) for name in ATTENTION]
)
def check_kernels_of_attention_give_what_xla_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gfx, function = ATTENTION[name]
    assembly, depth = gfx == "gfx942", 128 if gfx == "gfx942" else 16
    # AITER's assembly kernels of the gradient need more than 16 queries in a batch.
    sizes = [(20, 4), (22, 2), (22, 2)] if assembly else [(7, 4), (9, 2), (9, 2)]
    q, k, v = (made(i, (2, rows, heads, depth), BF16) for i, (rows, heads) in enumerate(sizes))
    monkeypatch.setenv("JAX_AITER_TARGET", gfx)
    both = with_gradients(function)
    names = [call[0] for call in calls(lowered(both, q, k, v, platform="cpu"))]
    suffix = "_asm" if assembly else ""
    forward = [] if name == "assembly in a window" else [f"jax_aiter_mha_fwd{suffix}"]
    assert names == [*forward, f"jax_aiter_mha_bwd{suffix}"]
    found = jax.jit(both)(q, k, v)
    monkeypatch.setenv("JAX_AITER_BACKEND", "xla")
    jax.clear_caches()
    compare(found, jax.jit(both)(q, k, v), 3e-2)


TWO_CU = (S((9, 4, 128), BF16), *[S((11, 2, 128), BF16)] * 2, *[S((4,), jnp.int32)] * 2)


@pytest.mark.releases
def check_packed_attention_keeps_its_kernel_with_two_traced_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx942")
    monkeypatch.setenv("JAX_AITER_BACKEND", "aiter")

    def packed(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any = None) -> Any:
        return flash_attn_varlen(q, k, v, cu_q, cu_k, causal=True)

    # The program chooses between the kernel and XLA's code; a promise or concrete arrays decide before.
    text = lowered(packed, *TWO_CU)
    assert [call[0] for call in calls(text)] == ["jax_aiter_mha_fwd_asm"]
    assert "stablehlo.exponential" in text
    promised = lowered(packed, *TWO_CU[:4])
    cu = jnp.array([0, 3, 9], jnp.int32), jnp.array([0, 3, 11], jnp.int32)
    concrete = lowered(lambda q, k, v: packed(q, k, v, *cu), *TWO_CU[:3])
    for text in (promised, concrete):
        assert [call[0] for call in calls(text)] == ["jax_aiter_mha_fwd_asm"]
        assert "stablehlo.exponential" not in text
    with pytest.raises(BackendError, match="module mha_fwd has no code"):
        lowered(lambda q, k, v: flash_attn_func(q, k, v, causal=True), *[S((1, 9, 4, 128), BF16)], *[
            S((1, 8, 4, 128), BF16)] * 2)  # fmt: skip


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("cu_k", "causal", "kernel"),
    [
        ([0, 4, 4, 11], True, 1),
        ([0, 5, 11, 11], False, 0),
    ],
)
def check_the_program_decides_whether_each_query_sees_a_key(
    cu_k: list[int], causal: bool, kernel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler refuses calls with a query that sees no key, so a right result proves the decision."""
    arrays = [made(seed, part.shape, BF16) for seed, part in enumerate(TWO_CU[:3])]
    arrays += [jnp.array([0, 4, 4, 9], jnp.int32), jnp.array(cu_k, jnp.int32)]

    def packed(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any) -> Any:
        return flash_attn_varlen(q, k, v, cu_q, cu_k, causal=causal, return_lse=True)

    count = 0
    plain = _kernels.forward

    def counted(*arguments: Any) -> Any:
        def count_one() -> None:
            nonlocal count
            count += 1

        jax.debug.callback(count_one)
        return plain(*arguments)

    monkeypatch.setattr(_kernels, "forward", counted)
    out, lse = jax.jit(packed)(*arrays)
    jax.effects_barrier()
    assert count == kernel
    monkeypatch.setenv("JAX_AITER_BACKEND", "xla")
    jax.clear_caches()
    wanted, of_lse = jax.jit(packed)(*arrays)
    compare(out, wanted, 3e-2)
    np.testing.assert_allclose(lse, of_lse, 1e-3, 1e-2)


def check_kernels_that_write_bfloat16_are_asked_for_it(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code objects of later AITER sources are named so; with a bias, the sum stays in float32."""
    later = Kernels(tmp_path)
    objects = {f"gfx942/gemm_bf16/bf16gemm_fp32bf16_tn_{tile}.co": "0" * 64 for tile in ("32x64", "64x64")}
    later.add("gemm_bf16", objects={"gfx942": objects})
    monkeypatch.setenv("JAX_AITER_BACKEND", "aiter")
    results = {}
    for name, loader in (("pinned", _loader.loader()), ("later", Loader(later.write()))):
        monkeypatch.setattr(Loader, "ensure", lambda *_: None)
        monkeypatch.setattr(_choice, "loader", lambda loader=loader: loader)
        monkeypatch.setattr(gemm_module, "loader", lambda loader=loader: loader)
        for gfx in ("gfx942", "gfx942,gfx950"):
            monkeypatch.setenv("JAX_AITER_TARGET", gfx)
            for out in (None, F32):
                jax.clear_caches()
                (call,) = calls(lowered(partial(gemm, out_dtype=out), A, B))
                results[name, gfx, out] = call[2][0]
        bias = calls(lowered(lambda a, b, c: gemm(a, b, bias=c), A, B, S((256,), F32)))
        assert bias[0][2][0] == "16x256xf32"
    narrow = {key for key, result in results.items() if result == "16x256xbf16"}
    assert narrow == {("later", "gfx942", None)}
