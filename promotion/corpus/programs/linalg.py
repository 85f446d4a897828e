"""Programs of jax.numpy.linalg, which use hipSOLVER, rocSOLVER and hipBLAS."""

import jax.numpy as jnp

from .declaration import program


@program("f32[64,64]", "f32[64,8]", corpus="small")
def solve(a, b):
    """Solve a linear system by LU decomposition."""
    return jnp.linalg.solve(a, b)


@program("f32[4,32,32]")
def cholesky(a):
    """Compute batched Cholesky decompositions of symmetric matrices."""
    return jnp.linalg.cholesky(a @ a.mT + jnp.eye(32))


@program("f32[64,32]")
def qr(a):
    """Compute a QR decomposition."""
    return jnp.linalg.qr(a)


@program("f32[48,32]")
def svd(a):
    """Compute singular values and vectors."""
    return jnp.linalg.svd(a, full_matrices=False)


@program("f32[32,32]")
def eigh(a):
    """Compute the eigenvalues and eigenvectors of a symmetric matrix."""
    return jnp.linalg.eigh(a + a.T)


@program("f64[32,32]")
def determinant_f64(a):
    """Compute determinant, inverse and rank in double precision."""
    return jnp.linalg.det(a), jnp.linalg.inv(a), jnp.linalg.matrix_rank(a)


@program("f32[64,64]", "f32[64,64]")
def norms(a, b):
    """Compute norms, powers and chained products, which need no solver."""
    return (
        jnp.linalg.norm(a),
        jnp.linalg.matrix_power(a, 5),
        jnp.linalg.multi_dot([a, b, a]),
        jnp.trace(b),
    )
