"""Kernels that people write themselves: compiled on a GPU, interpreted elsewhere."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl


def interpreted() -> bool:
    """Report whether this device lacks a kernel compiler."""
    return bool(jax.default_backend() == "cpu")


@pytest.mark.parametrize("size", [16, 128])
def test_elementwise(size: int) -> None:
    def kernel(x: Any, y: Any, out: Any) -> None:
        out[...] = x[...] * 2 + y[...]

    x = np.arange(size, dtype=np.float32)
    call = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=interpreted())
    np.testing.assert_allclose(jax.jit(call)(x, x), 3 * x)


def test_grid_and_blocks() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] + pl.program_id(0).astype(jnp.float32)

    x = np.zeros((4, 32), np.float32)
    spec = pl.BlockSpec((1, 32), lambda i: (i, 0))
    call = pl.pallas_call(
        kernel,
        grid=(4,),
        in_specs=[spec],
        out_specs=spec,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        interpret=interpreted(),
    )
    np.testing.assert_allclose(jax.jit(call)(x), np.repeat(np.arange(4.0)[:, None], 32, 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
def test_matmul(dtype: Any) -> None:
    def kernel(x: Any, y: Any, out: Any) -> None:
        out[...] = jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)

    x = (np.arange(32 * 32).reshape(32, 32) % 5).astype(dtype)
    call = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((32, 32), np.float32), interpret=interpreted())
    np.testing.assert_allclose(jax.jit(call)(x, x), x.astype(np.float32) @ x.astype(np.float32))


def test_softmax_by_rows() -> None:
    def kernel(x: Any, out: Any) -> None:
        row = x[...]
        e = jnp.exp(row - jnp.max(row, axis=-1, keepdims=True))
        out[...] = e / jnp.sum(e, axis=-1, keepdims=True)

    x = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    spec = pl.BlockSpec((1, 64), lambda i: (i, 0))
    call = pl.pallas_call(
        kernel,
        grid=(8,),
        in_specs=[spec],
        out_specs=spec,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        interpret=interpreted(),
    )
    np.testing.assert_allclose(jax.jit(call)(x), jax.nn.softmax(x), rtol=1e-5)
