"""Programs of jax.ops, jax.tree and jax.dtypes."""

import jax
import jax.numpy as jnp

from .declaration import program


@program("f32[1024,8]", "s32[1024]", corpus="small")
def segments(x, owners):
    """Compute sums and maxima of segments by scattering with atomics."""
    return jax.ops.segment_sum(x, owners, 32), jax.ops.segment_max(x, owners, 32)


@program("f32[128]", "f32[16,16]")
def tree(x, y):
    """Map and reduce a tree of arrays, with promoted types."""
    parameters = {"x": x.astype(jnp.bfloat16), "y": [y, y * 2]}
    return jax.tree.reduce(
        jnp.add,
        jax.tree.map(lambda leaf: jnp.sum(leaf.astype(jnp.float32)), parameters),
    )
