"""Programs that were written for jax-aiter: its results, defaults and attributes."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax_aiter import BackendError
from jax_aiter.gemm_i8 import LAYOUT, gemm_i8
from jax_aiter.layouts import shuffle_weight
from jax_aiter.mha import flash_attn_func, flash_attn_varlen

from kernels.tests.checks.common import made

Q = made(0, (2, 16, 4, 32))
ROWS = Q.reshape(32, 4, 32)
BATCH = partial(
    flash_attn_func,
    Q,
    Q,
    Q,
)
PACKED = partial(
    flash_attn_varlen,
    ROWS,
    ROWS,
    ROWS,
    jnp.array([0, 12, 32], jnp.int32),
)


@pytest.mark.releases
@pytest.mark.parametrize("call", [BATCH, PACKED], ids=["batch", "packed"])
def check_attention_returns_a_tuple(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = call()
    assert isinstance(plain, jax.Array)
    monkeypatch.setenv("JAX_AITER_COMPAT", "1")
    (again,) = call()
    assert (again == plain).all()
    assert len(call(return_lse=True)) == 2


def check_dropout_without_a_seed_has_the_seed_zero() -> None:
    plain = BATCH(dropout_p=0.5)
    assert (plain == BATCH(dropout_p=0.5, dropout_seed=0)).all()
    assert (plain != BATCH(dropout_p=0.5, dropout_seed=1)).any()


def check_gemm_i8_takes_the_order_of_the_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = (made(seed, (64, 128), jnp.int8) for seed in (1, 2))
    shuffled = shuffle_weight(b, LAYOUT)
    scales = (jnp.full((64, 1), 0.01), jnp.full((1, 64), 0.01), jnp.zeros((1, 64)))
    wanted = gemm_i8(a, b, *scales)
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
        BATCH()
