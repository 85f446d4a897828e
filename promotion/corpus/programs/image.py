"""Programs of jax.image."""

import jax

from .declaration import program


@program("f32[32,32,3]", corpus="small")
def upsample(x):
    """Enlarge an image with a linear kernel."""
    return jax.image.resize(x, (64, 64, 3), "linear")


@program("f32[2,32,32,3]")
def resize(x):
    """Enlarge an image with a cubic kernel."""
    return jax.image.resize(x, (2, 64, 64, 3), "bicubic")


@program("f32[32,32,3]", "f32[2]", "f32[2]")
def scale_and_translate(x, scale, translation):
    """Scale and move an image by amounts that are known only at run time."""
    return jax.image.scale_and_translate(
        x, (48, 48, 3), (0, 1), scale, translation, "lanczos3"
    )
