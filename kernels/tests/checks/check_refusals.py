"""Arguments that operations refuse: each error names the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax_aiter.gemm import gemm
from jax_aiter.gemm_fp4 import gemm_fp4
from jax_aiter.gemm_fp8 import gemm_fp8_mi350
from jax_aiter.gemm_i8 import gemm_i8
from jax_aiter.layouts import shuffle_weight
from jax_aiter.mha import flash_attn_func, flash_attn_varlen
from jax_aiter.rmsnorm import rms_norm, rms_norm_with_add

pytestmark = pytest.mark.releases
X = jnp.ones((4, 8))
GAMMA = jnp.ones(8)
A = jnp.ones((4, 128))
B = jnp.ones((128, 128))
Q = jnp.ones((2, 4, 4, 8))
K = jnp.ones((2, 6, 2, 8))
V = jnp.ones((2, 6, 2, 6))
CU = jnp.array([0, 4, 8], jnp.int32)


def batch(**changes: Any) -> Callable[[], Any]:
    return lambda: flash_attn_func(**{"q": Q, "k": K, "v": V, **changes})


def packed(**changes: Any) -> Callable[[], Any]:
    plain = {
        "q": Q.reshape(8, 4, 8),
        "k": K.reshape(12, 2, 8),
        "v": V.reshape(12, 2, 6),
    }
    return lambda: flash_attn_varlen(
        **{
            **plain,
            "cu_seqlens_q": CU,
            "cu_seqlens_k": CU,
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (
            lambda: rms_norm(X, jnp.ones(7)),
            ValueError,
            r"gamma has the shape \[7\]; it has to be \[n\] = \[8\]",
        ),
        (
            lambda: rms_norm(X, GAMMA.astype(jnp.bfloat16)),
            TypeError,
            "gamma has the dtype bfloat16",
        ),
        (lambda: rms_norm(X, GAMMA, 0.0), ValueError, "epsilon is 0.0"),
        (lambda: rms_norm(X, GAMMA, jnp.float32(1)), TypeError, "epsilon is an array"),
        (lambda: rms_norm(X, GAMMA, float("nan")), ValueError, "epsilon is nan"),
        (lambda: rms_norm(jnp.float32(3), GAMMA), ValueError, "x is a scalar"),
        (
            lambda: rms_norm(jnp.ones((4, 0)), jnp.ones(0)),
            ValueError,
            "rows must not be empty",
        ),
        (lambda: rms_norm(3.0, GAMMA), TypeError, "x is a float"),
        (
            lambda: rms_norm_with_add(X, X.T, GAMMA),
            ValueError,
            r"residual has the shape \[8, 4\]",
        ),
        (
            lambda: gemm(
                A,
                B,
                out_dtype=jnp.float16,
            ),
            TypeError,
            "gemm: out_dtype is float16",
        ),
        (
            lambda: gemm_i8(A, B, A, B, A),
            ValueError,
            r"gemm_i8: a_scale has the shape \[4, 128\]; .* \[4, 1\]",
        ),
        (
            lambda: gemm_fp8_mi350(A[:, :64], B[:, :64], A, B),
            ValueError,
            "K is 64; it has to be a multiple of 128",
        ),
        (
            lambda: gemm_fp4(A, B, A[:, :8], B[:, :8]),
            TypeError,
            "a has the dtype float32; it has to be uint8",
        ),
        (
            lambda: shuffle_weight(B[:8].astype(jnp.int8)),
            ValueError,
            "N is 8; it has to be a multiple of 16",
        ),
        (lambda: shuffle_weight(B), TypeError, "weight has the dtype float32"),
        (
            batch(q=Q[0]),
            ValueError,
            r"q has the shape \[4, 4, 8\]; it has to be \(batch, sequence, heads",
        ),
        (batch(q=Q[..., :7]), ValueError, "q has head dimension 7 and k has 8"),
        (batch(v=V[:, :, :1]), ValueError, "k has 2 heads and v has 1"),
        (batch(q=Q[:, :, :3]), ValueError, "q has 3 heads and k has 2"),
        (
            batch(k=K.astype(jnp.bfloat16)),
            TypeError,
            "k has the dtype bfloat16; it has to be float32",
        ),
        (batch(dropout_p=1.0, dropout_seed=1), ValueError, "dropout_p is 1.0"),
        (batch(dropout_seed=1), ValueError, "a seed needs dropout"),
        (batch(dropout_p=0.5, dropout_seed=-1), ValueError, "dropout_seed is -1"),
        (
            batch(dropout_p=0.5, dropout_seed=1.5),
            TypeError,
            "dropout_seed has to be an integer",
        ),
        (batch(dropout_p=0.5, dropout_seed=CU), TypeError, "dropout_seed has to be"),
        (batch(softmax_scale=jnp.float32(1)), TypeError, "softmax_scale is an array"),
        (batch(window_size=(-2, 0)), ValueError, "window_size is"),
        (batch(window_size=(1.5, 0)), ValueError, r"window_size is \(1\.5, 0\)"),
        (batch(softmax_scale=float("nan")), ValueError, "softmax_scale is nan"),
        (batch(dropout_p=float("nan")), ValueError, "dropout_p is nan"),
        (
            batch(bias=jnp.ones((4, 6)), alibi_slopes=jnp.ones(4)),
            ValueError,
            "alibi_slopes cannot be combined",
        ),
        (batch(cu_seqlens_q=CU), ValueError, "have to be given together"),
        (
            batch(cu_seqlens_q=CU[:2], cu_seqlens_kv=CU),
            ValueError,
            "has 2 numbers; it has to have 3",
        ),
        (
            batch(cu_seqlens_q=CU, cu_seqlens_kv=CU.at[1].set(7)),
            ValueError,
            "cu_seqlens_kv has the length 7",
        ),
        (
            batch(cu_seqlens_q=CU, cu_seqlens_kv=CU.at[1].set(9)),
            ValueError,
            "increase from 0",
        ),
        (
            batch(cu_seqlens_q=CU, cu_seqlens_kv=CU * 2),
            ValueError,
            "from 0 to at most 12",
        ),
        (
            packed(cu_seqlens_q=CU[:1]),
            ValueError,
            "has 1 numbers; it has to have 2 or more",
        ),
        (
            packed(q=Q),
            ValueError,
            r"q has the shape \[2, 4, 4, 8\]; it has to be \(total, heads",
        ),
        (
            packed(alibi_slopes=jnp.ones((2, 4))),
            ValueError,
            "alibi_slopes has the shape",
        ),
        (packed(max_seqlen_q=-1), ValueError, "max_seqlen_q is -1"),
        (packed(max_seqlen_k=3), ValueError, "the length 4, but its max_seqlen is 3"),
    ],
)
def check_arguments_that_do_not_fit_are_named(
    call: Any,
    error: type[Exception],
    said: str,
) -> None:
    with pytest.raises(error, match=said):
        call()


TRACED = {
    "epsilon": lambda value: rms_norm(X, GAMMA, value),
    "softmax_scale": lambda value: batch(softmax_scale=value)(),
    "dropout_p": lambda value: packed(dropout_p=value)(),
    "window_size": lambda value: batch(window_size=(value, 0))(),
    "causal": lambda value: batch(causal=value)(),
    "deterministic": lambda value: packed(deterministic=value)(),
    "return_attn_probs": lambda value: batch(return_attn_probs=value)(),
    "max_seqlen_k": lambda value: packed(max_seqlen_k=value)(),
    "preshuffled": lambda value: gemm_fp4(A, B, A, B, preshuffled=value),
}
"""Static argument -> a call with it."""


@pytest.mark.parametrize("name", TRACED)
def check_traced_static_arguments_are_named(name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f": {name} is .*; ") as caught:
        jax.jit(TRACED[name])(1)
    assert not isinstance(caught.value, jax.errors.JAXTypeError)
