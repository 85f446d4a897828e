"""Programs of jax.numpy.fft, which use hipFFT."""

import jax.numpy as jnp

from .declaration import program


@program("c64[4,256]", corpus="small")
def fft(x):
    """Compute a complex transform and its inverse."""
    return jnp.fft.fft(x), jnp.fft.ifft(x)


@program("f32[2,64,128]")
def rfft2(x):
    """Compute a real 2D transform, filter it and transform back."""
    spectrum = jnp.fft.rfft2(x)
    return jnp.fft.irfft2(spectrum * jnp.exp(-jnp.abs(spectrum)), s=(64, 128))


@program("c128[8,8,16]")
def fftn_c128(x):
    """Compute a 3D transform in double precision, with shifts."""
    return jnp.fft.fftshift(jnp.fft.fftn(jnp.fft.ifftshift(x)))
