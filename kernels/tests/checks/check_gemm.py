"""The products: XLA's results against float64, layouts, gradients, refusals."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax_aiter import (
    NotDifferentiableError,
    _blockscale,
    flatmm_fp8,
    gemm_fp4,
    gemm_fp8,
    gemm_i8,
    layouts,
)
from jax_aiter.gemm import gemm

from kernels.tests.checks.common import (
    compare,
    compare_gradients,
    made,
    wide,
)

SIZE = st.integers(1, 40)
E4M3 = jnp.float8_e4m3fn
FNUZ = jnp.float8_e4m3fnuz


@given(
    SIZE,
    SIZE,
    SIZE,
    st.sampled_from([jnp.float32, jnp.float16, jnp.bfloat16]),
    st.booleans(),
    st.booleans(),
)
def check_gemm_is_right_for_any_shape(
    m: int,
    n: int,
    k: int,
    dtype: Any,
    biased: bool,
    into_float32: bool,
) -> None:
    a = made(1, (m, k), dtype)
    b = made(2, (n, k), dtype)
    bias = made(3, (n,)) if biased else None
    out = gemm(
        a,
        b,
        bias=bias,
        out_dtype=jnp.float32 if into_float32 else None,
    )
    assert out.dtype == (jnp.float32 if into_float32 else dtype)
    wanted = wide(a) @ wide(b).T + (wide(bias) if bias is not None else 0)
    # Cancellation keeps the absolute error of the summands.
    scale = (np.abs(wide(a)) @ np.abs(wide(b)).T + 1).max()
    compare(out / out.dtype.type(scale), wanted / scale)


@pytest.mark.usefixtures("x64")
def check_gradients_are_those_of_finite_differences() -> None:
    a = made(1, (5, 7), jnp.float64)
    b = made(2, (3, 7), jnp.float64)
    compare_gradients(lambda a, b: (gemm(a, b), ()), a, b)
    bias = made(3, (3,))
    found = jax.grad(
        lambda bias: (
            gemm(
                a,
                b,
                bias=bias,
            )
            * made(4, (5, 3))
        ).sum()
    )(bias)
    compare(found, made(4, (5, 3)).sum(0))


def quantised_i8(
    m: int,
    n: int,
    k: int,
) -> tuple[Any, ...]:
    rng = np.random.default_rng(1)
    a, b = (
        jnp.asarray(rng.integers(-128, 128, shape, np.int8))
        for shape in ((m, k), (n, k))
    )
    return a, b, abs(made(2, (m, 1))), abs(made(3, (1, n))), made(4, (n,))


@settings(max_examples=6)
@given(
    st.integers(1, 20),
    st.integers(1, 3),
    st.integers(1, 3),
)
def check_int8_is_right_for_any_shape(
    m: int,
    n: int,
    k: int,
) -> None:
    a, b, a_scale, b_scale, bias = quantised_i8(m, 32 * n, 32 * k)
    wanted = (wide(a) @ wide(b).T) * wide(a_scale) * wide(b_scale) + wide(bias)
    shuffled = layouts.shuffle_weight(b, gemm_i8.LAYOUT)
    compare(
        gemm_i8.gemm_i8(
            a,
            shuffled,
            a_scale,
            b_scale,
            bias[None],
            preshuffled=True,
        ),
        wanted,
    )
    compare(gemm_i8.gemm_i8(a, b, a_scale, b_scale, bias), wanted)


def blocks(
    m: int,
    n: int,
    k: int,
    dtype: Any,
) -> tuple[Any, ...]:
    xq = made(1, (m, k), dtype)
    wq = made(2, (n, k), dtype)
    return xq, wq, abs(made(3, (k // 128, m))), abs(made(4, (k // 128, n // 128)))


def dequantised(
    xq: Any,
    wq: Any,
    x_scale: Any,
    w_scale: Any,
) -> Any:
    out = np.zeros((xq.shape[0], wq.shape[0]))
    for i in range(x_scale.shape[0]):
        part = slice(128 * i, 128 * (i + 1))
        for j in range(w_scale.shape[1]):
            columns = slice(128 * j, 128 * (j + 1))
            product = wide(xq)[:, part] @ wide(wq)[columns, part].T
            out[:, columns] += product * wide(x_scale)[i][:, None] * wide(w_scale)[i, j]
    return out


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 128, 128),
        (17, 256, 512),
        (33, 384, 256),
    ],
)
def check_fp8_has_a_scale_for_each_block(
    m: int,
    n: int,
    k: int,
) -> None:
    for function, layout, dtypes in (
        (gemm_fp8.gemm_fp8_mi350, gemm_fp8.LAYOUT, [E4M3]),
        (flatmm_fp8.flatmm_fp8, flatmm_fp8.LAYOUT, [E4M3, FNUZ]),
    ):
        for dtype in dtypes:
            xq, wq, *scales = blocks(m, n, k, dtype)
            wanted = dequantised(xq, wq, *scales)
            compare(function(xq, wq, *scales), wanted)
            shuffled = layouts.shuffle_weight(wq, layout)
            compare(
                function(
                    xq,
                    shuffled,
                    *scales,
                    preshuffled=True,
                ),
                wanted,
            )


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 1, 32),
        (5, 16, 64),
        (7, 48, 320),
        (300, 32, 256),
    ],
)
def check_fp4_is_e2m1_with_e8m0(
    m: int,
    n: int,
    k: int,
) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(0, 256, (rows, k // 2), np.uint8) for rows in (m, n))
    a_scale, b_scale = (
        rng.integers(120, 135, (rows, k // 32), np.uint8) for rows in (m, n)
    )

    def numbers(packed: Any, scale: Any) -> Any:
        halves = np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1)
        powers = scale.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
        return halves.view(ml_dtypes.float4_e2m1fn).astype(np.float64) * np.repeat(
            powers, 32, 1
        )

    wanted = numbers(a, a_scale) @ numbers(b, b_scale).T
    operands = [jnp.asarray(array) for array in (a, b, a_scale, b_scale)]
    compare(gemm_fp4.gemm_fp4(*operands), wanted)
    if n % 16 == 0 and k % 64 == 0:
        shuffled = [operands[0], layouts.shuffle_weight(operands[1], gemm_fp4.LAYOUT)]
        shuffled += [layouts.shuffle_scale(part) for part in operands[2:]]
        compare(gemm_fp4.gemm_fp4(*shuffled, preshuffled=True), wanted)


@pytest.mark.parametrize(
    ("m", "n", "k", "sums"),
    [
        (5, 128, 1024, 1 << 24),
        (5, 256, 768, 2 * 5 * 256),
    ],
)
def check_few_sums_of_blocks_are_kept_at_a_time(
    m: int,
    n: int,
    k: int,
    sums: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_blockscale, "_SUMS", sums)
    operands = blocks(m, n, k, E4M3)
    text = (
        jax.jit(lambda *a: _blockscale.product(*a)).trace(*operands).lower().as_text()
    )
    assert ("stablehlo.while" in text) == (k // 128 * m * n > sums)
    compare(
        jax.jit(lambda *a: _blockscale.product(*a))(*operands),
        dequantised(*operands),
        1e-6,
    )


@pytest.mark.releases
def check_scaled_product_of_xla_equals_the_plain_one() -> None:
    rng = np.random.default_rng(1)
    a, b = (jnp.asarray(rng.integers(0, 256, (rows, 64), np.uint8)) for rows in (5, 7))
    scales = [
        jnp.asarray(rng.integers(100, 150, (rows, 4), np.uint8)) for rows in (5, 7)
    ]
    # 255 is NaN, and the smallest scale is no zero.
    assert np.isnan(
        wide(gemm_fp4.plain(a, b, scales[0].at[:].set(255), scales[1]))
    ).all()
    if hasattr(jax.lax, "scaled_dot"):  # jax 0.8 has no such product
        compare(
            jax.jit(gemm_fp4.scaled)(a, b, *scales),
            jax.jit(gemm_fp4.plain)(a, b, *scales),
            1e-6,
        )
        assert np.isnan(
            wide(gemm_fp4.scaled(a, b, scales[0].at[:].set(255), scales[1]))
        ).all()


@pytest.mark.releases
def check_what_is_quantised_refuses_to_be_differentiated() -> None:
    a, b, a_scale, b_scale, bias = quantised_i8(4, 32, 32)

    def function(scale: Any) -> Any:
        return gemm_i8.gemm_i8(a, b, scale, b_scale, bias).astype(jnp.float32).sum()

    for transformed in (
        jax.grad(function),
        jax.jit(jax.grad(function)),
        lambda scale: jax.jvp(function, (scale,), (scale,)),
    ):
        with pytest.raises(NotDifferentiableError, match="gemm_i8 has no derivative"):
            transformed(a_scale)
    # The operand is a constant of the differentiated function.
    assert jax.grad(lambda x: x * function(a_scale))(1.0) != 0
