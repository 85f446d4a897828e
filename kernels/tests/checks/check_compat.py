"""Programs that were written for jax-aiter: its results, defaults and attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax_aiter import BackendError, compat
from jax_aiter.gemm_i8 import LAYOUT, gemm_i8
from jax_aiter.layouts import shuffle_weight
from jax_aiter.mha import flash_attn_func, flash_attn_varlen

Q = jax.random.normal(
    jax.random.key(0),
    (2, 16, 4, 32),
    jnp.float32,
)
STARTS = jnp.array([0, 12, 32], jnp.int32)
PACKED = Q.reshape(32, 4, 32)
Attention = Callable[..., Any]


def batch(function: Attention, **options: Any) -> Any:
    return function(
        Q,
        Q,
        Q,
        **options,
    )


def packed(function: Attention, **options: Any) -> Any:
    return function(
        PACKED,
        PACKED,
        PACKED,
        STARTS,
        STARTS,
        20,
        20,
        **options,
    )


@pytest.mark.releases
@pytest.mark.parametrize(
    ("call", "function", "same"),
    [
        (batch, flash_attn_func, compat.flash_attn_func),
        (packed, flash_attn_varlen, compat.flash_attn_varlen),
    ],
    ids=["batch", "packed"],
)
def check_attention_returns_a_tuple(
    call: Any,
    function: Attention,
    same: Attention,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = call(function)
    assert isinstance(plain, jax.Array)
    (out,) = call(same)
    assert (out == plain).all()
    assert len(call(same, return_lse=True)) == 2
    monkeypatch.setenv("JAX_AITER_COMPAT", "1")
    (again,) = call(function)
    assert (again == plain).all()


def check_dropout_without_a_seed_has_the_seed_zero() -> None:
    plain = batch(flash_attn_func, dropout_p=0.5)
    seeds = [
        batch(flash_attn_func, dropout_p=0.5, dropout_seed=seed) for seed in (0, 1)
    ]
    assert (plain == seeds[0]).all()
    assert (plain != seeds[1]).any()


def check_gemm_i8_takes_the_order_of_the_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = jax.random.split(jax.random.key(1))
    a, b = (jax.random.randint(key, (64, 128), -128, 128, jnp.int8) for key in keys)
    shuffled = shuffle_weight(b, LAYOUT)
    scales = (
        jnp.full((64, 1), 0.01),
        jnp.full((1, 64), 0.01),
        jnp.zeros((1, 64)),
    )
    wanted = gemm_i8(a, b, *scales)
    assert (compat.gemm_i8(a, shuffled, *scales) == wanted).all()
    monkeypatch.setenv("JAX_AITER_COMPAT", "1")
    assert (gemm_i8(a, shuffled, *scales) == wanted).all()
    assert (
        gemm_i8(
            a,
            b,
            *scales,
            preshuffled=False,
        )
        == wanted
    ).all()


def check_an_invalid_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_AITER_COMPAT", "yes")
    with pytest.raises(BackendError, match="JAX_AITER_COMPAT=yes is invalid"):
        flash_attn_func(Q, Q, Q)
