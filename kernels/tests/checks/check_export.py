"""Export of every operation and gradient with symbolic sizes, for CPUs and AMD GPUs."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax_aiter import _loader, export_checks, load_kernels
from jax_aiter.gemm_fp4 import gemm_fp4
from jax_aiter.mha import flash_attn_func

from kernels.tests.checks.common import compare
from kernels.tests.checks.programs import (
    BF16,
    FP4,
    PROGRAMS,
    U8,
    Program,
    S,
    names,
)

BATCH = ("b, s, 8, 128", *["b, s, 4, 128"] * 2)
ROWS = ("2, s, 8, 128", *["2, s, 4, 128"] * 2)
FEW = ("b, u, 8, 16", *["b, t, 4, 16"] * 2)
FP8 = ("r, 512", "1024, 512", "4, r", "4, 8")
SYMBOLIC = {
    "rms_norm": ("b, u, 64", "64"),
    "rms_norm_with_add": ("b, u, 64", "b, u, 64", "64"),
    "rms_norm of vmap": ("b, u, 64", "b, 64"),
    "gemm": ("m, 256", "256, 256", "256"),
    "gemm by k": ("m, 256", "192, 256"),
    "gemm_i8": ("m, 128", "512, 128", "m, 1", "1, 512", "512"),
    "gemm_fp8_mi350": FP8,
    "flatmm_fp8": FP8,
    "gemm_fp4": ("m, 128", "512, 128", "m, 8", "512, 8"),
    "assembly": BATCH,
    "assembly with lse": BATCH,
    "assembly in a window": BATCH,
    "packed assembly": ROWS,
    "packed assembly, some see nothing": ROWS,
    "attention": FEW,
    "attention with one head of keys": ("b, u, 8, 16", *["b, t, 1, 16"] * 2),
    "attention in a window": FEW,
    "attention, some see nothing": FEW,
    "attention with slopes": (*FEW, "8"),
    "attention with a bias": ("b, 7, 8, 16", *["b, 9, 4, 16"] * 2),
    "packed attention": ("2, u, 8, 16", *["2, t, 4, 16"] * 2),
}
"""Name of a program -> the shapes of its operands."""


def of_lengths(q: Any, k: Any, more: Any) -> Any:
    starts = jnp.cumsum(jnp.pad(abs(more) + 3, (1, 0)), dtype=jnp.int32)
    return flash_attn_func(
        q,
        k,
        k,
        0.25,
        cu_seqlens_q=starts,
        cu_seqlens_kv=starts,
        return_attn_probs=True,
    )


ROW = S((2, 8, 8, 16), BF16)
SHUFFLED = partial(gemm_fp4, preshuffled=True)
SCALES = (S((256, 8), U8), FP4[3])
CASES = {name: (PROGRAMS[name], shapes) for name, shapes in SYMBOLIC.items()}
CASES["lengths"] = (
    Program("gfx950", of_lengths, (ROW, ROW, S((2,), jnp.int32)), ()),
    ("b, u, 8, 16", "b, u, 8, 16", "b"),
)
CASES["shuffled scales"] = (
    Program("gfx950", SHUFFLED, (*FP4[:2], *SCALES), ("gemm_fp4",)),
    ("m, 128", "512, 128", "256*floordiv(m + 255, 256), 8", "512, 8"),
)
BOUNDS = [f"{name} <= 4096" for name in "stumr"]
# Kernels of gradients have less than 4 GiB of them; kernels need as many rows or queries.
BOUNDS += ["b <= 64", "r >= 16", "s >= 17"]
NO_LENGTHS = {
    "packed assembly, some see nothing": ("mha_fwd_asm",),
    "packed attention": (),
}
"""Calls of programs that would need max_seqlen_q and max_seqlen_k for all of their kernels."""
UNBOUNDED = {"rms_norm", "rms_norm_with_add", "rms_norm of vmap"}
"""Programs whose kernels have no limit."""


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param([], id="unbounded"),
        pytest.param(BOUNDS, id="bounded", marks=pytest.mark.releases),
    ],
)
@pytest.mark.parametrize("name", CASES)
def check_symbolic_sizes_export_for_both_platforms(
    name: str, bounds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, texts = CASES[name]
    monkeypatch.setenv("JAX_AITER_TARGET", program.gfx)
    # A forced backend has no code for CPUs, and no row of a table names symbolic sizes.
    forced = bool(bounds) and "gemm_bf16" in program.calls
    monkeypatch.setenv("JAX_AITER_BACKEND_GEMM", "aiter" if forced else "auto")
    used = " ".join(texts[:2])
    scope = export.SymbolicScope([text for text in bounds if text[0] in used])
    shapes = [export.symbolic_shape(text, scope=scope) for text in texts]
    operands = [
        S(shape, part.dtype)
        for shape, part in zip(shapes, program.operands, strict=True)
    ]
    exported = export.export(
        jax.jit(program.function),
        platforms=["rocm"] if forced else ["cpu", "rocm"],
        disabled_checks=export_checks(),
    )(*operands)
    wanted = NO_LENGTHS.get(name, program.calls)
    if not bounds and name not in UNBOUNDED:
        wanted = ()
    assert sorted(names(exported.mlir_module())) == sorted(wanted)
    values = program.values()
    if not forced:
        compare(exported.call(*values), jax.jit(program.function)(*values))


@pytest.mark.usefixtures("installed")
def check_load_kernels_loads_the_modules_of_the_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_loader.loader(), "_libraries", {})
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx90a")
    assert load_kernels() == ("rmsnorm_fwd", "rms_norm")
