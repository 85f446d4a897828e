"""Programs of jax.experimental.sparse, which use hipSPARSE through the plugin."""

import jax
from jax.experimental import sparse

from .declaration import program


@program("f32[64]", "s32[64]", "s32[33]", "f32[64]")
def csr_matvec(data, columns, starts, x):
    """Multiply a CSR matrix by a vector."""
    return sparse.CSR((data, columns, starts), shape=(32, 64)) @ x


@program("f32[64]", "s32[64]", "s32[64]", "f32[64,8]")
def coo_matmat(data, rows, columns, x):
    """Multiply a COO matrix by a dense matrix."""
    return sparse.COO((data, rows, columns), shape=(32, 64), rows_sorted=True) @ x


@program("f32[32,64]")
def conversions(x):
    """Convert dense to sparse and back, in both formats."""
    return sparse.CSR.fromdense(x, nse=64).todense(), sparse.COO.fromdense(
        x, nse=64
    ).todense()


@program(
    "f32[64]",
    "s32[64,2]",
    "f32[64,16]",
    flags=("jax_bcoo_cusparse_lowering",),
)
def bcoo_library(data, indices, x):
    """Multiply a BCOO matrix by a dense matrix with hipSPARSE."""
    matrix = sparse.BCOO(
        (data, indices), shape=(32, 64), indices_sorted=True, unique_indices=True
    )
    return matrix @ x


@program("f32[32,64]", "f32[64]", corpus="small")
def sparsify(x, y):
    """Differentiate through a BCOO matrix, without a library."""

    def cost(vector):
        matrix = sparse.BCOO.fromdense(x, nse=64)
        return jax.numpy.sum(sparse.sparsify(lambda m, v: m @ v)(matrix, vector) ** 2)

    return jax.grad(cost)(y)
