"""Programs of jax.numpy.linalg, which use hipSOLVER, rocSOLVER and hipBLAS."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from .declaration import program


@program("f32[64,64]", "f32[64,8]", corpus="small")
def solve(a: Array, b: Array) -> Array:
    """Solve a linear system by LU decomposition."""
    return jnp.linalg.solve(a, b)


@program("f32[4,32,32]")
def cholesky(a: Array) -> Array:
    """Compute batched Cholesky decompositions of symmetric matrices."""
    return jnp.linalg.cholesky(a @ a.mT + jnp.eye(32))


@program("f32[64,32]")
def qr(a: Array) -> tuple[Array, Array]:
    """Compute a QR decomposition."""
    q, r = jnp.linalg.qr(a)
    return q, r


@program("f32[48,32]")
def svd(a: Array) -> tuple[Array, Array, Array]:
    """Compute singular values and vectors."""
    u, s, vh = jnp.linalg.svd(a, full_matrices=False)
    return u, s, vh


@program("f32[32,32]")
def eigh(a: Array) -> tuple[Array, Array]:
    """Compute the eigenvalues and eigenvectors of a symmetric matrix."""
    w, v = jnp.linalg.eigh(a + a.T)
    return w, v


@program("f64[32,32]")
def determinant_f64(a: Array) -> tuple[Array, Array, Array]:
    """Compute determinant, inverse and rank in double precision."""
    return jnp.linalg.det(a), jnp.linalg.inv(a), jnp.linalg.matrix_rank(a)


@program("f32[64,64]", "f32[64,64]")
def norms(a: Array, b: Array) -> tuple[Array, ...]:
    """Compute norms, powers and chained products, which need no solver."""
    return (
        jnp.linalg.norm(a),
        jnp.linalg.matrix_power(a, 5),
        jnp.linalg.multi_dot([a, b, a]),
        jnp.trace(b),
    )
