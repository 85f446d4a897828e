"""Kernels that people write themselves: compiled on a GPU, interpreted elsewhere."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl


def compiled(kernel: Any, like: Any, *arrays: Any, **grid: Any) -> Any:
    """Apply a kernel whose result is like an array.

    It is interpreted where the device lacks a kernel compiler.
    """
    interpret = bool(jax.default_backend() == "cpu")
    shape = jax.ShapeDtypeStruct(like.shape, like.dtype)
    return jax.jit(
        pl.pallas_call(kernel, out_shape=shape, interpret=interpret, **grid)
    )(*arrays)


def by_rows(x: Any) -> dict[str, Any]:
    """Return a grid with a block for each row."""
    spec = pl.BlockSpec((1, x.shape[1]), lambda i: (i, 0))
    return {"grid": (x.shape[0],), "in_specs": [spec], "out_specs": spec}


@pytest.mark.parametrize("size", [16, 128])
def test_elementwise(size: int) -> None:
    def kernel(x: Any, y: Any, out: Any) -> None:
        out[...] = x[...] * 2 + y[...]

    x = np.arange(size, dtype=np.float32)
    np.testing.assert_allclose(compiled(kernel, x, x, x), 3 * x)


def test_grid_and_blocks() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] + pl.program_id(0).astype(jnp.float32)

    x = np.zeros((4, 32), np.float32)
    np.testing.assert_allclose(
        compiled(kernel, x, x, **by_rows(x)), np.repeat(np.arange(4.0)[:, None], 32, 1)
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
def test_matmul(dtype: Any) -> None:
    def kernel(x: Any, y: Any, out: Any) -> None:
        out[...] = jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)

    x = (np.arange(32 * 32).reshape(32, 32) % 5).astype(dtype)
    expected = x.astype(np.float32) @ x.astype(np.float32)
    np.testing.assert_allclose(compiled(kernel, expected, x, x), expected)


def test_softmax_by_rows() -> None:
    def kernel(x: Any, out: Any) -> None:
        row = x[...]
        e = jnp.exp(row - jnp.max(row, axis=-1, keepdims=True))
        out[...] = e / jnp.sum(e, axis=-1, keepdims=True)

    x = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    np.testing.assert_allclose(
        compiled(kernel, x, x, **by_rows(x)), jax.nn.softmax(x), rtol=1e-5
    )
