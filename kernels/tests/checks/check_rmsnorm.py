"""RMSNorm: XLA's results against float64, gradients, and JAX's transformations."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax_aiter.rmsnorm import rms_norm, rms_norm_with_add

from kernels.tests.checks.common import (
    compare,
    compare_gradients,
    made,
    wide,
)

DTYPES = [jnp.float32, jnp.float16, jnp.bfloat16]
SHAPES = st.tuples(st.lists(st.integers(0, 5), max_size=3), st.integers(1, 70))


def reference(
    x: Any,
    gamma: Any,
    epsilon: float,
) -> Any:
    x = wide(x)
    gamma = wide(gamma)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * gamma


@given(SHAPES, st.sampled_from(DTYPES), st.sampled_from([1e-6, 1e-2]))
def check_it_is_right_for_any_shape(
    shape: tuple[list[int], int],
    dtype: Any,
    epsilon: float,
) -> None:
    shape_x = (*shape[0], shape[1])
    x = made(1, shape_x, dtype) * 3
    residual = made(2, shape_x, dtype)
    gamma = made(3, (shape[1],), dtype)
    alone = rms_norm(x, gamma, epsilon)
    y, total = rms_norm_with_add(x, residual, gamma, epsilon)
    assert alone.dtype == y.dtype == total.dtype == dtype
    compare(alone, reference(x, gamma, epsilon))
    np.testing.assert_array_equal(wide(total), wide(x + residual))
    compare(y, reference(total, gamma, epsilon))


@pytest.mark.parametrize("scale", [1e-18, 1e18])
def check_sums_neither_vanish_nor_overflow_in_half_precision(scale: float) -> None:
    x = made(1, (3, 40), jnp.bfloat16) * jnp.bfloat16(scale)
    gamma = jnp.ones(40, jnp.bfloat16)
    compare(rms_norm(x, gamma, 1e-38), reference(x, gamma, 1e-38))


@pytest.mark.releases
@pytest.mark.usefixtures("x64")
def check_gradients_are_those_of_finite_differences() -> None:
    x, residual, gamma = (
        made(i, s, jnp.float64)
        for i, s in enumerate(
            [
                (2, 3, 9),
                (2, 3, 9),
                (9,),
            ]
        )
    )
    compare_gradients(lambda x, g: (rms_norm(x, g, 1e-3), ()), x, gamma)
    compare_gradients(
        lambda x, r, g: (rms_norm_with_add(x, r, g, 1e-3), ()), x, residual, gamma
    )
