"""Programs of jax.scipy."""

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import jax.scipy.interpolate
import jax.scipy.optimize
import jax.scipy.spatial.transform

from .declaration import program


@program("f32[256]", "f32[256]", corpus="small")
def special(x, y):
    """Compute special functions: inverse error, gamma, Bessel, logsumexp, digamma."""
    positive = jnp.abs(x) + 0.5
    return (
        jsp.special.erfinv(jnp.tanh(x)),
        jsp.special.gammaln(positive),
        jsp.special.i0e(y),
        jsp.special.logsumexp(jnp.stack([x, y]), 0),
        jsp.special.digamma(positive),
    )


@program("f32[256]")
def statistics(x):
    """Compute densities and cumulative distributions."""
    return (
        jsp.stats.norm.logcdf(x),
        jsp.stats.t.logpdf(x, 3.0),
        jsp.stats.gamma.cdf(jnp.abs(x), 2.0),
    )


@program("f32[32,32]", "f32[32,4]")
def linalg(a, b):
    """Compute LU with pivots, a triangular solve and a matrix exponential."""
    factors = jsp.linalg.lu_factor(a)
    return (
        jsp.linalg.lu_solve(factors, b),
        jsp.linalg.solve_triangular(a, b, lower=True),
        jsp.linalg.expm(a),
    )


@program("f32[2,1024]", "f32[31]")
def signal(x, taps):
    """Convolve by Fourier transform, and estimate a spectrum (Welch)."""
    return jsp.signal.fftconvolve(x, taps[None]), jsp.signal.welch(x, nperseg=128)[1]


@program("f32[24,24]", "f32[2,64]")
def ndimage(image, where):
    """Interpolate an image at given coordinates."""
    return jsp.ndimage.map_coordinates(image, list(where), order=1)


@program("f32[32,32]", "f32[32]")
def sparse_solvers(a, b):
    """Solve with CG and BiCGSTAB, given a function that applies the matrix."""
    symmetric = a @ a.T + jnp.eye(32)
    return (
        jsp.sparse.linalg.cg(lambda v: symmetric @ v, b, maxiter=20)[0],
        jsp.sparse.linalg.bicgstab(lambda v: symmetric @ v, b, maxiter=20)[0],
    )


@program("f32[8]")
def optimize(start):
    """Minimise the Rosenbrock function with BFGS: nested loops with line searches."""

    def cost(x):
        return jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    return jsp.optimize.minimize(cost, start, method="BFGS", options={"maxiter": 5}).x


@program("f32[16,4]", "f32[129]", "f32[64,2]", "f32[8,2]")
def geometry(rotations, curve, points, centres):
    """Compute rotations, a trapezoidal integral, interpolation on a grid and nearest centres."""
    turned = jsp.spatial.transform.Rotation.from_quat(rotations).as_matrix()
    grid = jsp.interpolate.RegularGridInterpolator(
        (jnp.arange(16.0), jnp.arange(4.0)), rotations
    )
    codes = jax.vmap(lambda p: jnp.argmin(jnp.sum((centres - p) ** 2, 1)))(points)
    return turned, jsp.integrate.trapezoid(curve), grid(points), codes
