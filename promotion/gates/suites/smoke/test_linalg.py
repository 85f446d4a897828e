"""Linear algebra, transforms and sparse matrices, by ROCm's libraries on a GPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import pytest

SIZES = [1, 5, 32]
BATCHES: list[tuple[int, ...]] = [(), (3,)]


def matrix(size: int, batch: tuple[int, ...] = (), dtype: Any = np.float32) -> Any:
    """Well-conditioned, the same everywhere."""
    rng = np.random.default_rng(size)
    x = rng.normal(size=(*batch, size, size)) + (
        1j * rng.normal(size=(*batch, size, size)) if dtype == np.complex64 else 0
    )
    return (x + 2 * np.sqrt(size) * np.eye(size)).astype(dtype)


def positive(size: int, batch: tuple[int, ...] = ()) -> Any:
    """Symmetric and positive definite."""
    x = matrix(size, batch)
    return (x @ np.swapaxes(x, -1, -2) / size + np.eye(size)).astype(np.float32)


def close(actual: Any, expected: Any, tolerance: float = 3e-3) -> None:
    """Equal but for rounding."""
    np.testing.assert_allclose(
        np.asarray(actual), np.asarray(expected), rtol=tolerance, atol=tolerance
    )


@pytest.fixture(autouse=True)
def _precise() -> Any:
    with jax.default_matmul_precision("highest"):
        yield


@pytest.mark.parametrize("dtype", [np.float32, np.complex64], ids=["f32", "c64"])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_solve(size: int, batch: tuple[int, ...], dtype: Any) -> None:
    a = matrix(size, batch, dtype)
    b = np.ones((*batch, size, 2), dtype)
    close(a @ np.asarray(jax.jit(jnp.linalg.solve)(a, b)), b)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["cholesky", "qr", "svd", "eigh", "inv", "det", "lu"])
def test_decomposition(name: str, size: int, batch: tuple[int, ...]) -> None:
    a = positive(size, batch)
    match name:
        case "cholesky":
            low = np.asarray(jax.jit(jnp.linalg.cholesky)(a))
            close(low @ np.swapaxes(low, -1, -2), a)
        case "qr":
            q, r = jax.jit(jnp.linalg.qr)(a)
            close(np.asarray(q) @ np.asarray(r), a)
        case "svd":
            u, s, v = (
                np.asarray(part)
                for part in jax.jit(lambda a: jnp.linalg.svd(a, full_matrices=False))(a)
            )
            close((u * s[..., None, :]) @ v, a)
        case "eigh":
            values, vectors = (np.asarray(part) for part in jax.jit(jnp.linalg.eigh)(a))
            close((vectors * values[..., None, :]) @ np.swapaxes(vectors, -1, -2), a)
        case "inv":
            close(
                np.asarray(jax.jit(jnp.linalg.inv)(a)) @ a,
                np.broadcast_to(np.eye(size), a.shape),
            )
        case "det":
            close(jax.jit(jnp.linalg.slogdet)(a)[1], np.linalg.slogdet(a)[1])
        case _:
            p, low, up = jax.vmap(jsp.linalg.lu)(a) if batch else jsp.linalg.lu(a)
            close(np.asarray(p) @ np.asarray(low) @ np.asarray(up), a)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_triangular_solve(size: int, lower: bool) -> None:
    a = (np.tril if lower else np.triu)(positive(size) + np.eye(size, dtype=np.float32))
    b = np.ones((size, 3), np.float32)
    close(a @ np.asarray(jsp.linalg.solve_triangular(a, b, lower=lower)), b)


@pytest.mark.parametrize(
    "name", ["expm", "sqrtm", "lstsq", "pinv", "matrix_rank", "norm"]
)
def test_more(name: str) -> None:
    a = positive(6)
    match name:
        case "expm":
            close(
                jsp.linalg.expm(jnp.diag(jnp.arange(3.0))),
                np.diag(np.exp(np.arange(3.0))),
            )
        case "sqrtm":
            root = np.asarray(jnp.linalg.cholesky(a))
            close(root @ root.T, a)
        case "lstsq":
            close(
                jnp.linalg.lstsq(a, np.ones(6, np.float32))[0],
                np.linalg.solve(a, np.ones(6)),
            )
        case "pinv":
            close(np.asarray(jnp.linalg.pinv(a)) @ a, np.eye(6))
        case "matrix_rank":
            assert (
                int(
                    jnp.linalg.matrix_rank(
                        np.outer(np.ones(4), np.arange(4.0)).astype(np.float32)
                    )
                )
                == 1
            )
        case _:
            close(jnp.linalg.norm(a), np.linalg.norm(a))


@pytest.mark.parametrize("length", [8, 15, 1024])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "hfft"])
def test_fft(name: str, length: int) -> None:
    rng = np.random.default_rng(length)
    x = rng.normal(size=(3, length)).astype(np.float32)
    x = x if name == "rfft" else (x + 1j * x[:, ::-1]).astype(np.complex64)
    close(jax.jit(getattr(jnp.fft, name))(x), getattr(np.fft, name)(x), 2e-2)


@pytest.mark.parametrize("axes", [(0, 1), (1, 2), (0, 1, 2)], ids=str)
def test_fft_of_several_axes(axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(5).normal(size=(4, 6, 8)).astype(np.complex64)
    close(jnp.fft.ifftn(jnp.fft.fftn(x, axes=axes), axes=axes), x)
    close(jnp.fft.fftn(x, axes=axes), np.fft.fftn(x, axes=axes), 2e-2)


def test_sparse_matrices() -> None:
    from jax.experimental import sparse  # A jax without it fails only this test.

    dense = np.where(np.random.default_rng(0).random((16, 12)) < 0.2, 1.5, 0.0).astype(
        np.float32
    )
    vector = np.arange(12, dtype=np.float32)
    for kind in (sparse.BCOO, sparse.BCSR):
        m = kind.fromdense(dense)
        product, back = jax.jit(lambda m, v: (m @ v, m.todense()))(m, vector)
        close(product, dense @ vector)
        close(back, dense)


def test_iterative_solvers() -> None:
    a = positive(12)
    b = np.ones(12, np.float32)
    for solve in (
        jsp.sparse.linalg.cg,
        jsp.sparse.linalg.bicgstab,
        jsp.sparse.linalg.gmres,
    ):
        x = jax.jit(lambda b, solve=solve: solve(lambda v: a @ v, b, tol=1e-6)[0])(b)
        close(a @ np.asarray(x), b, 1e-2)
