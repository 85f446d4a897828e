"""Kernels that people write themselves: compiled on a GPU, interpreted elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from numpy.testing import assert_allclose

parametrize = pytest.mark.parametrize


def compiled(kernel, like, *arrays, **grid):
    """Apply a kernel whose result is like an array.

    It is interpreted where the device lacks a kernel compiler.
    """
    interpret = bool(jax.default_backend() == "cpu")
    shape = jax.ShapeDtypeStruct(like.shape, like.dtype)
    call = pl.pallas_call(kernel, out_shape=shape, interpret=interpret, **grid)
    return jax.jit(call)(*arrays)


def by_rows(x):
    """Return a grid with a block for each row."""
    spec = pl.BlockSpec((1, x.shape[1]), lambda i: (i, 0))
    return {"grid": (x.shape[0],), "in_specs": [spec], "out_specs": spec}


@parametrize("size", [16, 128])
def test_elementwise(size):
    def kernel(x, y, out):
        out[...] = x[...] * 2 + y[...]

    x = np.arange(size, dtype=np.float32)
    result = compiled(kernel, x, x, x)
    assert_allclose(result, 3 * x)


def test_grid_and_blocks():
    def kernel(x, out):
        number = pl.program_id(0)
        out[...] = x[...] + number.astype(jnp.float32)

    x = np.zeros((4, 32), np.float32)
    result = compiled(kernel, x, x, **by_rows(x))
    assert_allclose(result, np.repeat(np.arange(4.0)[:, None], 32, 1))


@parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
def test_matmul(dtype):
    def kernel(x, y, out):
        left = x[...]
        right = y[...]
        out[...] = jnp.dot(left, right, preferred_element_type=jnp.float32)

    whole = np.arange(32 * 32).reshape(32, 32) % 5
    x = whole.astype(dtype)
    expected = (whole @ whole).astype(np.float32)
    result = compiled(kernel, expected, x, x)
    assert_allclose(result, expected)


def test_softmax_by_rows():
    def kernel(x, out):
        row = x[...]
        most = jnp.max(row, axis=-1, keepdims=True)
        weights = jnp.exp(row - most)
        out[...] = weights / jnp.sum(weights, axis=-1, keepdims=True)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 64)).astype(np.float32)
    result = compiled(kernel, x, x, **by_rows(x))
    assert_allclose(result, jax.nn.softmax(x), rtol=1e-5)
