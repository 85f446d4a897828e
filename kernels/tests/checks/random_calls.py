"""Random shapes of each operation and the custom calls that they are lowered to, written as JSON.

`python -m kernels.tests.checks.random_calls OUT SEED COUNT OPERATION…`. Shapes lie around the limits of the handlers.
Where a limit refuses a shape, the call that the limit prevents is written too.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax_aiter import BackendError, _choice, _limits
from jax_aiter._loader import Loader
from jax_aiter.flatmm_fp8 import flatmm_fp8
from jax_aiter.gemm import gemm
from jax_aiter.gemm_fp4 import gemm_fp4
from jax_aiter.gemm_fp8 import gemm_fp8_mi350
from jax_aiter.gemm_i8 import gemm_i8
from jax_aiter.mha import flash_attn_func, flash_attn_varlen
from jax_aiter.rmsnorm import rms_norm, rms_norm_with_add

from kernels.tests.checks.check_lowering import calls, lowered, total
from kernels.tests.checks.kernels import all_modules

S = jax.ShapeDtypeStruct
BF16, F16, F32, I8, U8, E4M3 = jnp.bfloat16, jnp.float16, jnp.float32, jnp.int8, jnp.uint8, jnp.float8_e4m3fn
Program = tuple[str, Callable[..., Any], list[Any]]
"""Target, function, arguments."""


def size(rng: random.Random, step: int, most: int) -> int:
    """Return a size, often a multiple of a step, of any magnitude."""
    value = int(2 ** rng.uniform(0, most.bit_length() - 1))
    step = rng.choice([step, step, step, max(1, step // 2)])
    return max(1, value if rng.random() < 0.1 else value // step * step or step)


def product(rng: random.Random, step: int, element: float, out: int) -> tuple[int, int, int]:
    """Return M, N, K; every other time an operand or the result has 4 GiB, a few bytes more or less."""
    m, n, k = size(rng, 1, 1 << 16), size(rng, step, 1 << 16), size(rng, step, 1 << 16)
    if rng.random() < 0.5:
        limit = 1 << 32
        m = rng.choice([int(limit / (k * element)), limit // (n * out)]) + rng.randint(-1, 1)
    return min(max(1, m), (1 << 31) - 1), n, k


def of_gemm(rng: random.Random) -> Program:
    m, n, k = product(rng, 64, 2, 4)
    # vmap makes rows, and too many rows stay several calls.
    times = rng.choice([0, 0, 2, 64])
    if times:
        return rng.choice(["gfx942", "gfx950"]), jax.vmap(gemm, (0, None)), [S((times, m, k), BF16), S((n, k), BF16)]
    return rng.choice(["gfx942", "gfx950"]), gemm, [S((m, k), BF16), S((n, k), BF16)]


def of_gemm_i8(rng: random.Random) -> Program:
    m, n, k = product(rng, 128, 1, 2)
    n, k = -(-n // 32) * 32, -(-k // 32) * 32
    scales = [S((m, 1), F32), S((1, n), F32), S((n,), F32)]
    return "gfx942", gemm_i8, [S((m, k), I8), S((n, k), I8), *scales]


def of_gemm_fp4(rng: random.Random) -> Program:
    m, n, k = product(rng, 256, 0.5, 2)
    n, k = -(-n // 64) * 64, -(-k // 64) * 64
    return "gfx950", gemm_fp4, [S((m, k // 2), U8), S((n, k // 2), U8), S((m, k // 32), U8), S((n, k // 32), U8)]


def of_blocks(function: Any, gfx: str) -> Callable[[random.Random], Program]:
    def one(rng: random.Random) -> Program:
        m, n, k = product(rng, 512, 1, 2)
        m = rng.choice([m, m, rng.randint(1, 40)])
        n, k = -(-n // 128) * 128, -(-k // 128) * 128
        scales = [S((k // 128, m), F32), S((k // 128, n // 128), F32)]
        return gfx, function, [S((m, k), E4M3), S((n, k), E4M3), *scales]

    return one


def heads(rng: random.Random, dtype: Any, depths: list[tuple[int, int]]) -> tuple[Any, Any, Any]:
    """Return q, k and v of a sequence; every other time near 2 GiB or 2**31 elements of one of them."""
    depth, value = rng.choice(depths)
    group, key_heads = 2 ** rng.randint(0, 4), 2 ** rng.randint(0, 12 if rng.random() < 0.2 else 6)
    queries, keys = size(rng, 1, 1 << 14), size(rng, 1, 1 << 14)
    if rng.random() < 0.6:
        limit = (1 << 31) // rng.choice([1, 2]) // rng.choice([depth, value, 1])
        long = max(1, limit // (key_heads * group) // rng.choice([1, 2]) + rng.randint(-1, 1))
        queries, keys = rng.choice([(long, keys), (queries, long), (long, long)])
    return (queries, key_heads * group, depth), (keys, key_heads, depth), (keys, key_heads, value)


def of_attention(rng: random.Random) -> Program:
    shapes = heads(rng, BF16, [(128, 128)] * 4 + [(192, 128), (192, 192)])
    causal, gfx = rng.random() < 0.5, rng.choice(["gfx942", "gfx950"])
    if rng.random() < 0.3:
        cu = [S((rng.randint(2, 9),), jnp.int32)] * 2
        packed = partial(flash_attn_varlen, causal=causal)
        return gfx, packed, [*(S(shape, BF16) for shape in shapes), *cu]
    batch = rng.choice([1, 2, 300])
    return gfx, partial(flash_attn_func, causal=causal), [S((batch, *shape), BF16) for shape in shapes]


def of_ck_attention(rng: random.Random) -> Program:
    dtype = rng.choice([BF16, F16])
    q, k, v = heads(rng, dtype, [(64, 64), (128, 64), (80, 96), (256, 256), (20, 64)])
    arrays = [S((2, *shape), dtype) for shape in (q, k, v)]
    added = rng.choice(["", "", "bias", "slopes"])
    bias = [S((q[0], k[0]), dtype)] if added == "bias" else []
    slopes = [S((q[1],), F32)] if added == "slopes" else []
    drops: dict[str, Any] = {"dropout_p": 0.5, "dropout_seed": 1} if rng.random() < 0.2 else {}

    def forward(q: Any, k: Any, v: Any, *more: Any) -> Any:
        named = dict(zip(["bias"] * len(bias) + ["alibi_slopes"] * len(slopes), more, strict=True))
        return flash_attn_func(q, k, v, window_size=(3, 2), deterministic=False, **named, **drops)

    function: Callable[..., Any] = jax.grad(total(forward), (0, 1, 2)) if rng.random() < 0.6 else forward
    return "gfx950", function, [*arrays, *bias, *slopes]


def of_attention_gradient(rng: random.Random) -> Program:
    depths = [(64, 64), (72, 72), *[(128, 128)] * 6, (136, 136), (192, 192), (192, 128), (56, 56), (128, 64)]
    dtype, gfx = rng.choice([BF16, F16]), rng.choice(["gfx942", "gfx942", "gfx950"])
    (queries, *rest), k, v = heads(rng, dtype, depths)
    q = (max(17, queries), *rest)  # AITER does not use the kernels for fewer, which is no limit of theirs
    left, right = rng.choice([*[(-1, -1), (-1, 0)] * 4, (3, 2), (0, 0), (-1, 5)])
    if rng.random() < 0.3:
        cu = [S((rng.randint(2, 9),), jnp.int32)] * 2
        packed = total(partial(flash_attn_varlen, window_size=(left, right)))
        return gfx, jax.grad(packed, (0, 1, 2)), [*(S(shape, dtype) for shape in (q, k, v)), *cu]
    function = jax.grad(total(partial(flash_attn_func, window_size=(left, right))), (0, 1, 2))
    batch, times = rng.choice([1, 2, 300]), rng.choice([0, 0, 2, 64])
    arrays = [S((*[times] * bool(times), batch, *shape), dtype) for shape in (q, k, v)]
    return gfx, jax.vmap(function) if times else function, arrays


def of_norm(rng: random.Random) -> Program:
    dtype, rows, n = rng.choice([F32, F16, BF16]), size(rng, 1, 1 << 20), size(rng, 1, 1 << 20)
    x, gamma = S((rows, n), dtype), S((n,), dtype)
    norms: list[tuple[Callable[..., Any], list[Any]]] = [(rms_norm, [x, gamma]), (rms_norm_with_add, [x, x, gamma])]
    one, arguments = rng.choice(norms)
    return "gfx942", rng.choice([one, jax.grad(total(one), tuple(range(len(arguments))))]), arguments


PROGRAMS: dict[str, Callable[[random.Random], Program]] = {
    "gemm": of_gemm,
    "gemm_i8": of_gemm_i8,
    "gemm_fp4": of_gemm_fp4,
    "gemm_fp8_mi350": of_blocks(gemm_fp8_mi350, "gfx950"),
    "flatmm_fp8": of_blocks(flatmm_fp8, "gfx942"),
    "attention": of_attention,
    "attention_gradient": of_attention_gradient,
    "ck_attention": of_ck_attention,
    "rms_norm": of_norm,
}


def found(program: Program, environment: pytest.MonkeyPatch, *, ck: bool = False) -> dict[str, Any]:
    """Return the calls of a program, and the reason of the limit that refuses them.

    Args:
        ck: ask the handlers of Composable Kernel instead of those of AITER's assembly kernels, which come first.
    """
    gfx, function, arguments = program
    environment.setenv("JAX_AITER_TARGET", gfx)
    refused = ""
    try:
        text = lowered(function, *arguments)
    except BackendError as error:
        refused = str(error)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                _limits, "obstacle", lambda target, **_: "not asked" if ck and target.name.endswith("_asm") else ""
            )
            jax.clear_caches()
            text = lowered(function, *arguments)
        jax.clear_caches()
    shapes = [[str(one.dtype), list(one.shape)] for one in arguments]
    return {"gfx": gfx, "arguments": shapes, "refused": refused, "calls": calls(text)}


def main(out: Path, seed: int, count: int, names: list[str]) -> None:
    """Write the calls of `count` random programs of each operation."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as environment:
        kernels = Loader(all_modules(Path(folder)))
        environment.setattr(_choice, "loader", lambda: kernels)
        environment.setattr(Loader, "ensure", lambda *_: None)
        rows: list[dict[str, Any]] = []
        for name in names:
            portable = "portable" if name in ("rms_norm", "rope", "swiglu") else "aiter"
            environment.setenv("JAX_AITER_BACKEND", portable)
            # The forward direction has other limits.
            environment.setenv("JAX_AITER_BACKEND_FLASH_ATTN", "xla" if name == "attention_gradient" else portable)
            ck = name == "ck_attention"
            rows += ({"operation": name, **found(PROGRAMS[name](rng), environment, ck=ck)} for _ in range(count))
    out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
