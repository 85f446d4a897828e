"""Programs that call the plugin's own FFI handlers: solver, prng, rnn, sparse, hybrid, linalg.

When jax lowers a call, it queries MIOpen or hipSPARSE for the size of the workspace,
which needs a device. The programs `handlers_…` call the same handlers without this
query; XLA rejects a program if a handler is not registered.
"""

import jax
import jax.numpy as jnp
from jax.experimental import rnn
from jax.lax import linalg

from .declaration import program


@program("u32[]", corpus="small", flags=("jax_threefry_gpu_kernel_lowering",))
def prng_threefry(seed):
    """Generate random bits with the plugin's kernel (_prng)."""
    return jax.random.bits(jax.random.key(seed, impl="threefry2x32"), (1024,))


@program("f32[4,16,32]", "f32[1,4,64]", "f32[1,4,64]", "f32[25088]", "s32[4]")
def rnn_lstm(x, h, c, weights, lengths):
    """Run an LSTM forward with MIOpen (_rnn)."""
    return rnn.lstm(x, h, c, weights, lengths, 32, 64, 1, 0.0, False)


@program("f32[4,16,32]", "f32[1,4,64]", "f32[1,4,64]", "f32[25088]", "s32[4]")
def rnn_lstm_gradient(x, h, c, weights, lengths):
    """Run an LSTM backward with MIOpen (_rnn)."""
    return jax.grad(
        lambda w: jnp.sum(rnn.lstm(x, h, c, w, lengths, 32, 64, 1, 0.0, False)[0])
    )(weights)


@program("f32[4,32,32]", "f32[4,32,32]")
def solver_decompositions(a, b):
    """Compute batched LU with pivots and Householder products (_solver, _linalg)."""
    lu, pivots, permutation = linalg.lu(a)
    reflectors, taus = jnp.linalg.qr(b, mode="raw")
    return lu, pivots, permutation, linalg.householder_product(reflectors, taus)


@program("f32[16,16]")
def solver_tridiagonal(a):
    """Reduce a symmetric matrix to tridiagonal form (_solver)."""
    return linalg.tridiagonal(a + a.T, lower=True)


@program("f32[32,32]")
def hybrid_eig(a):
    """Compute the eigenvalues of a general matrix on the host (_hybrid)."""
    return jnp.linalg.eig(a)


@program(
    "f32[32]",
    "f32[32]",
    "f32[32]",
    "f32[32,4]",
    "f32[32,32]",
    "f32[32]",
)
def tridiagonal_and_update(low, diagonal, up, b, factor, change):
    """Solve a tridiagonal system (_sparse) and update a Cholesky factor by rank one (_linalg)."""
    return linalg.tridiagonal_solve(low, diagonal, up, b), linalg.cholesky_update(
        factor, change
    )


def call_handlers(names, x):
    """Call each handler once, in order; the calls compile but would fail at run time."""
    for name in names:
        x = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct(x.shape, x.dtype))(
            x, opaque=name
        )
    return x


@program("f32[32]", corpus="small")
def handlers_sparse(x):
    """Call the handlers of _sparse."""
    kinds = ("todense", "fromdense", "matvec", "matmat")
    csr = tuple(f"hipsparse_csr_{kind}_ffi" for kind in kinds)
    coo = tuple(f"hipsparse_coo_{kind}_ffi" for kind in kinds)
    return call_handlers((*csr, *coo), x)


@program("f32[32]", corpus="small")
def handlers_rnn(x):
    """Call the handlers of _rnn."""
    return call_handlers(("hipdnn_rnn_ffi", "hipdnn_rnn_bwd_ffi"), x)


@program("f32[32]")
def handlers_rest(x):
    """Call the handlers of _solver that jax uses only for some shapes."""
    return call_handlers(
        tuple(f"hipsolver_{kind}_ffi" for kind in ("gesvd", "gesvdj", "ormqr", "syrk")),
        x,
    )


@program("f32[32]")
def python_callback(x):
    """Call back into Python on the host (rocm_plugin_extension)."""
    shape = jax.ShapeDtypeStruct((32,), jnp.float32)
    return jax.pure_callback(lambda value: value, shape, x)
