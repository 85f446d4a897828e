"""Programs that call kernels: their GPU, operands and custom calls.

And the custom calls of lowered programs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_aiter.flatmm_fp8 import flatmm_fp8
from jax_aiter.gemm import gemm
from jax_aiter.gemm_fp4 import gemm_fp4
from jax_aiter.gemm_fp8 import gemm_fp8_mi350
from jax_aiter.gemm_i8 import gemm_i8
from jax_aiter.mha import flash_attn_func, flash_attn_varlen
from jax_aiter.rmsnorm import rms_norm, rms_norm_with_add

from kernels.tests.checks.common import made, with_gradients

S = jax.ShapeDtypeStruct
F32 = jnp.float32
BF16 = jnp.bfloat16
E4M3 = jnp.float8_e4m3fn
U8 = jnp.uint8
I8 = jnp.int8
X = S((4, 8, 64), F32)
GAMMA = S((64,), F32)
A = S((128, 256), BF16)
B = S((256, 256), BF16)
INT8 = (
    S((8, 128), I8),
    S((512, 128), I8),
    S((8, 1), F32),
    S((1, 512), F32),
    S((512,), F32),
)
FP8 = (
    S((64, 512), E4M3),
    S((1024, 512), E4M3),
    S((4, 64), F32),
    S((4, 8), F32),
)
FP4 = (
    S((64, 128), U8),
    S((512, 128), U8),
    S((64, 8), U8),
    S((512, 8), U8),
)
QKV = (S((2, 20, 8, 128), BF16), *[S((2, 20, 4, 128), BF16)] * 2)
FEW = (S((2, 7, 8, 16), BF16), *[S((2, 9, 4, 16), BF16)] * 2)
ONE = (FEW[0], *[S((2, 9, 1, 16), BF16)] * 2)
CU = jnp.array([0, 7, 16], jnp.int32)
# Their last rows belong to no sequence, and in the second pair some queries see no key.
CU_Q = jnp.array([0, 3, 3, 6], jnp.int32)
CU_K = jnp.array([0, 5, 6, 8], jnp.int32)
FEW_CU_K = jnp.array([0, 2, 6, 8], jnp.int32)
ASSEMBLY = ("mha_fwd_asm", "mha_bwd_asm")
OF_CK = ("mha_fwd", "mha_bwd")


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
    return jnp.asarray(
        np.abs(values) + np.float32(0.1) if part.dtype == F32 else values, part.dtype
    )


@dataclass(frozen=True)
class Program:
    """A program of one operation.

    Attributes:
        gfx: GPU to lower for.
        operands: shapes and dtypes.
        calls: its custom calls for the GPU, without the prefix `jax_aiter_`, if gemm is
            forced to be AITER's.
    """

    gfx: str
    function: Callable[..., Any]
    operands: tuple[Any, ...]
    calls: tuple[str, ...]

    def values(self) -> list[Any]:
        """Return operands, the same ones at each call."""
        return [numbers(seed, part) for seed, part in enumerate(self.operands)]


def attention(**options: Any) -> Callable[..., Any]:
    """Return attention and its gradients with fixed options."""
    return with_gradients(partial(flash_attn_func, **options))


def attention_of_ck(**options: Any) -> Callable[..., Any]:
    """Return attention that Composable Kernel computes in both directions."""
    return attention(deterministic=False, **options)


def attention_with_slopes(
    q: Any,
    k: Any,
    v: Any,
    slopes: Any,
) -> Any:
    """Return attention and the gradients of q, k and v."""
    return attention_of_ck(causal=True, alibi_slopes=slopes)(q, k, v)


def packed_attention(
    cu_q: Any,
    cu_k: Any,
    **options: Any,
) -> Callable[..., Any]:
    """Return attention of the first batch's rows as sequences, and its gradients."""
    return with_gradients(
        lambda q, k, v: flash_attn_varlen(
            q[0],
            k[0],
            v[0],
            cu_q,
            cu_k,
            **options,
        )
    )


PROGRAMS = {
    "rms_norm": Program(
        "gfx942",
        with_gradients(lambda x, g: rms_norm(x, g, 0.5)),
        (X, GAMMA),
        ("rms_norm", "rms_norm_bwd"),
    ),
    "rms_norm_with_add": Program(
        "gfx950",
        with_gradients(rms_norm_with_add),
        (X, X, GAMMA),
        ("rms_norm_with_add", "rms_norm_bwd"),
    ),
    "rms_norm of vmap": Program(
        "gfx90a", jax.vmap(rms_norm), (X, S((4, 64), F32)), ("rms_norm",)
    ),
    "gemm": Program(
        "gfx942",
        with_gradients(lambda a, b, c: gemm(a, b, bias=c)),
        (A, B, S((256,), F32)),
        ("gemm_bf16",),
    ),
    "gemm by k": Program(
        "gfx942", with_gradients(gemm), (A, S((192, 256), BF16)), ("gemm_bf16",)
    ),
    "gemm_i8": Program("gfx942", gemm_i8, INT8, ("gemm_i8",)),
    "gemm_fp8_mi350": Program("gfx950", gemm_fp8_mi350, FP8, ("gemm_fp8_mi350",)),
    "flatmm_fp8": Program("gfx942", flatmm_fp8, FP8, ("flatmm_fp8",)),
    "gemm_fp4": Program("gfx950", gemm_fp4, FP4, ("gemm_fp4",)),
    "assembly": Program("gfx942", attention(causal=True), QKV, ASSEMBLY),
    "assembly with lse": Program(
        "gfx942", attention(causal=True, return_lse=True), QKV, ASSEMBLY
    ),
    "assembly in a window": Program(
        "gfx942", attention(window_size=(4, 1)), QKV, ("mha_bwd_asm",)
    ),
    "packed assembly": Program(
        "gfx942",
        packed_attention(
            CU,
            CU,
            max_seqlen_q=9,
            max_seqlen_k=9,
        ),
        QKV,
        ASSEMBLY,
    ),
    "packed assembly, some see nothing": Program(
        "gfx942",
        packed_attention(
            CU_Q,
            FEW_CU_K,
            causal=True,
        ),
        QKV,
        ASSEMBLY,
    ),
    "attention": Program("gfx950", attention_of_ck(), FEW, OF_CK),
    "attention with one head of keys": Program("gfx950", attention_of_ck(), ONE, OF_CK),
    "attention in a window": Program(
        "gfx950", attention_of_ck(window_size=(4, 1)), FEW, OF_CK
    ),
    "attention, some see nothing": Program(
        "gfx950",
        attention_of_ck(causal=True),
        (FEW[0], *[S((2, 4, 4, 16), BF16)] * 2),
        OF_CK,
    ),
    "attention with slopes": Program(
        "gfx950", attention_with_slopes, (*FEW, S((8,), F32)), OF_CK
    ),
    "attention with a bias": Program(
        "gfx950", attention_of_ck(bias=made(3, (7, 9), BF16)), FEW, OF_CK
    ),
    "packed attention": Program(
        "gfx950",
        packed_attention(
            CU_Q,
            CU_K,
            causal=True,
        ),
        FEW,
        OF_CK,
    ),
}


def total(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the sum of all results."""
    return lambda *a: sum(
        part.astype(F32).sum() for part in jax.tree.leaves(function(*a))
    )


def lowered(
    function: Callable[..., Any],
    *arguments: Any,
    platform: str = "rocm",
) -> str:
    """Return the program for a platform that this machine need not have."""
    text: str = (
        jax.jit(function)
        .trace(*arguments)
        .lower(lowering_platforms=(platform,))
        .as_text()
    )
    return text


def calls(text: str) -> list[tuple[str, list[str], list[str], dict[str, str]]]:
    """Return each custom call.

    Its target, the types of its operands and of its results, its attributes.
    """
    found = []
    for line in text.splitlines():
        if match := re.search(
            r"custom_call @(jax_aiter_\w+)\(.*mhlo\.backend_config = \{(.*?)\}.* :"
            r" \((.*)\) -> (.*)$",
            line,
        ):
            types = [
                re.findall(r"tensor<([^>]*)>", part) for part in match.groups()[2:]
            ]
            attrs = dict(part.split(" = ", 1) for part in match[2].split(", ") if part)
            found.append((match[1], types[0], types[1], attrs))
    assert len(found) == text.count("custom_call @jax_aiter_")
    return found


def names(text: str) -> tuple[str, ...]:
    """Return the names of the custom calls, without the prefix `jax_aiter_`."""
    return tuple(call[0].removeprefix("jax_aiter_") for call in calls(text))
