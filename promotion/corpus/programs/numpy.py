"""Programs of jax.numpy."""

import jax.numpy as jnp

from .declaration import program


@program("f32[64,128]", "f32[128]", corpus="small")
def elementwise(x, y):
    """Apply arithmetic and transcendental functions with broadcasting."""
    return jnp.where(
        x > 0,
        jnp.tanh(x) * jnp.exp(-y),
        jnp.log1p(jnp.abs(x)) + jnp.sin(y) ** 2 - jnp.cbrt(y),
    )


@program("s32[64,128]", "u32[64,128]")
def integers(x, y):
    """Compute with integers: division, remainders, shifts, population count."""
    return (
        x // (jnp.abs(x) + 3) + x % 7,
        jnp.bitwise_count(y) ^ (y >> 3),
        jnp.left_shift(x, 2) & 0xFF,
    )


@program("f32[256,1024]", corpus="small")
def reductions(x):
    """Compute sums, means, variances and extrema along rows and columns."""
    return (
        x.sum(0),
        x.mean(1),
        x.var(),
        x.max(1),
        x.argmin(0),
        jnp.prod(x, 1),
        jnp.any(x > 3, 1),
        jnp.median(x[0]),
    )


@program("f32[64,1024]")
def cumulative(x):
    """Compute prefix sums, products and maxima."""
    return jnp.cumsum(x, 1), jnp.cumprod(x, 0), jnp.maximum.accumulate(x, axis=1)


@program("f32[32,2048]", "s32[4096]")
def sorting(x, y):
    """Run sort, argsort and binary search."""
    return jnp.sort(x, axis=1), jnp.argsort(y), jnp.searchsorted(jnp.sort(y), y[:64])


@program("f32[16,64,32]", "s32[128]")
def indexing(x, index):
    """Gather, scatter, roll, pad and transpose arrays."""
    taken = jnp.take(x, index, axis=1, mode="clip")
    return (
        taken,
        x.at[:, index].add(1.0),
        jnp.roll(x, 3, 1),
        jnp.pad(x.T, 2),
        jnp.flip(x[::2], 0),
    )


@program("f32[128,64]", "f32[64,128]", corpus="small")
def matmul_f32(x, y):
    """Multiply matrices in single precision, with a fused epilogue."""
    return jnp.maximum(x @ y, 0)


@program("bf16[8,256,128]", "bf16[8,128,256]", "bf16[256]")
def einsum(x, y, bias):
    """Multiply batched bfloat16 matrices and add a bias."""
    return jnp.einsum("bij,bjk->bik", x, y) + bias


@program("f32[512]", "f32[512]", "f32[33]")
def signals(x, grid, taps):
    """Compute interpolation, histograms and polynomials."""
    return (
        jnp.interp(x, jnp.sort(grid), x),
        jnp.histogram(x, bins=16)[0],
        jnp.polyval(taps, x),
    )


@program("f32[512]", "f32[33]")
def convolve(x, taps):
    """Convolve arrays in one dimension."""
    return jnp.convolve(x, taps)


@program("f32[64,64]", "c64[64]")
def compositions(x, z):
    """Call functions of many primitives: unique, percentile, kron, complex arithmetic."""
    return (
        jnp.unique(x, size=32),
        jnp.percentile(x, 30.0),
        jnp.kron(x[:4, :4], x[:8, :8]),
        jnp.angle(z) + abs(z * z),
    )
