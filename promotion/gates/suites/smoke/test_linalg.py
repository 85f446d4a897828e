"""Linear algebra, transforms and sparse matrices, by ROCm's libraries on a GPU."""

from itertools import product

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import pytest
from numpy.testing import assert_allclose

parametrize = pytest.mark.parametrize

SIZES = [1, 5, 32]
BATCHES = [(), (3,)]
COMPLEX = np.complex64


def matrix(size, batch=(), dtype=np.float32):
    """Return a well-conditioned matrix, the same everywhere."""
    rng = np.random.default_rng(size)
    shape = (*batch, size, size)
    x = rng.normal(size=shape)
    if dtype == COMPLEX:
        x = x + 1j * rng.normal(size=shape)
    diagonal = 2 * np.sqrt(size) * np.eye(size)
    return (x + diagonal).astype(dtype)


def transposed(x):
    return np.swapaxes(x, -1, -2)


def positive(size, batch=()):
    """Return a symmetric and positive definite matrix."""
    x = matrix(size, batch)
    square = x @ transposed(x) / size
    return (square + np.eye(size)).astype(np.float32)


def close(actual, expected, tolerance=3e-3):
    """Assert equality but for rounding."""
    assert_allclose(
        np.asarray(actual), np.asarray(expected), rtol=tolerance, atol=tolerance
    )


def parts(function, a):
    """Return the results of a compiled decomposition."""
    return [np.asarray(part) for part in jax.jit(function)(a)]


@pytest.fixture(autouse=True)
def _precise():
    with jax.default_matmul_precision("highest"):
        yield


@parametrize("dtype", [np.float32, COMPLEX], ids=["f32", "c64"])
@parametrize("batch", BATCHES, ids=str)
@parametrize("size", SIZES)
def test_solve(size, batch, dtype):
    a = matrix(size, batch, dtype)
    b = np.ones((*batch, size, 2), dtype)
    x = jax.jit(jnp.linalg.solve)(a, b)
    close(a @ np.asarray(x), b)


@pytest.fixture(params=product(SIZES, BATCHES), ids=str)
def a(request):
    """Return a positive definite matrix or a batch of such matrices."""
    size, batch = request.param
    return positive(size, batch)


def test_cholesky(a):
    low = np.asarray(jax.jit(jnp.linalg.cholesky)(a))
    close(low @ transposed(low), a)


def test_qr(a):
    q, r = parts(jnp.linalg.qr, a)
    close(q @ r, a)


def test_svd(a):
    u, s, v = parts(jnp.linalg.svd, a)
    scaled = u * s[..., None, :]
    close(scaled @ v, a)


def test_eigh(a):
    values, vectors = parts(jnp.linalg.eigh, a)
    scaled = vectors * values[..., None, :]
    close(scaled @ transposed(vectors), a)


def test_inverse(a):
    inverse = np.asarray(jax.jit(jnp.linalg.inv)(a))
    eye = np.eye(a.shape[-1])
    close(inverse @ a, np.broadcast_to(eye, a.shape))


def test_determinant(a):
    _, log = parts(jnp.linalg.slogdet, a)
    close(log, np.linalg.slogdet(a)[1])


def test_lu(a):
    lu = jsp.linalg.lu if a.ndim == 2 else jax.vmap(jsp.linalg.lu)
    p, low, up = parts(lu, a)
    close(p @ low @ up, a)


@parametrize("lower", [True, False])
@parametrize("size", SIZES)
def test_triangular_solve(size, lower):
    half = np.tril if lower else np.triu
    a = half(positive(size) + np.eye(size, dtype=np.float32))
    b = np.ones((size, 3), np.float32)
    x = jsp.linalg.solve_triangular(a, b, lower=lower)
    close(a @ np.asarray(x), b)


def test_matrix_functions():
    a = positive(6)
    b = np.ones(6, np.float32)
    least = jnp.linalg.lstsq(a, b)[0]
    close(least, np.linalg.solve(a, b))
    pseudo = np.asarray(jnp.linalg.pinv(a))
    close(pseudo @ a, np.eye(6))
    values = np.arange(3.0)
    exponential = jsp.linalg.expm(jnp.diag(values))
    close(exponential, np.diag(np.exp(values)))


@parametrize("length", [8, 15, 1024])
@parametrize("name", ["fft", "ifft", "rfft", "hfft"])
def test_fft(name, length):
    rng = np.random.default_rng(length)
    x = rng.normal(size=(3, length)).astype(np.float32)
    if name != "rfft":
        x = (x + 1j * x[:, ::-1]).astype(COMPLEX)
    transform = jax.jit(getattr(jnp.fft, name))
    expected = getattr(np.fft, name)(x)
    close(transform(x), expected, 2e-2)


@parametrize("axes", [(0, 1), (1, 2), (0, 1, 2)], ids=str)
def test_fft_of_several_axes(axes):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(4, 6, 8)).astype(COMPLEX)
    spectrum = jnp.fft.fftn(x, axes=axes)
    close(jnp.fft.ifftn(spectrum, axes=axes), x)
    close(spectrum, np.fft.fftn(x, axes=axes), 2e-2)


@parametrize("kind", ["BCOO", "BCSR"])
def test_sparse_matrices(kind):
    from jax.experimental import sparse  # A jax without it fails only this test.

    rng = np.random.default_rng(0)
    chosen = rng.random((16, 12)) < 0.2
    dense = np.where(chosen, 1.5, 0.0).astype(np.float32)
    vector = np.arange(12, dtype=np.float32)
    packed = getattr(sparse, kind).fromdense(dense)
    product = jax.jit(lambda matrix, vector: matrix @ vector)(packed, vector)
    close(product, dense @ vector)
    close(packed.todense(), dense)


@parametrize("name", ["cg", "bicgstab", "gmres"])
def test_iterative_solver(name):
    solve = getattr(jsp.sparse.linalg, name)
    a = positive(12)
    b = np.ones(12, np.float32)
    x = jax.jit(lambda b: solve(lambda v: a @ v, b, tol=1e-6)[0])(b)
    close(a @ np.asarray(x), b, 1e-2)
