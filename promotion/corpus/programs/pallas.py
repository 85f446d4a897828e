"""Programs of jax.experimental.pallas: kernels that Triton compiles."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from .declaration import program


def call(kernel, shape, dtype, **options):
    """Call a Pallas kernel that is lowered to Triton."""
    out = jax.ShapeDtypeStruct(shape, dtype)
    return pl.pallas_call(
        kernel,
        out_shape=out,
        compiler_params=plgpu.CompilerParams(num_warps=4),
        **options,
    )


@program("f32[1024]", "f32[1024]", corpus="small")
def add(x, y):
    """Add arrays in blocks."""

    def kernel(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] + jnp.exp(y_ref[...])

    block = pl.BlockSpec((256,), lambda i: (i,))
    return call(
        kernel,
        (1024,),
        jnp.float32,
        grid=(4,),
        in_specs=[block, block],
        out_specs=block,
    )(x, y)


@program("bf16[256,256]", "bf16[256,256]")
def matmul(x, y):
    """Multiply matrices in tiles, with a loop over the contracted dimension."""

    def kernel(x_ref, y_ref, o_ref):
        def body(step, total):
            here = pl.ds(step * 32, 32)
            return total + jnp.dot(
                x_ref[:, here], y_ref[here, :], preferred_element_type=jnp.float32
            )

        o_ref[...] = jax.lax.fori_loop(0, 8, body, jnp.zeros((64, 64), jnp.float32))

    rows = pl.BlockSpec((64, 256), lambda i, _: (i, 0))
    columns = pl.BlockSpec((256, 64), lambda _, j: (0, j))
    tile = pl.BlockSpec((64, 64), lambda i, j: (i, j))
    return call(
        kernel,
        (256, 256),
        jnp.float32,
        grid=(4, 4),
        in_specs=[rows, columns],
        out_specs=tile,
    )(x, y)


@program("f32[64,512]")
def softmax(x):
    """Reduce each row inside a kernel."""

    def kernel(x_ref, o_ref):
        row = x_ref[...]
        weights = jnp.exp(row - jnp.max(row, axis=-1, keepdims=True))
        o_ref[...] = weights / jnp.sum(weights, axis=-1, keepdims=True)

    block = pl.BlockSpec((1, 512), lambda i: (i, 0))
    return call(
        kernel, (64, 512), jnp.float32, grid=(64,), in_specs=[block], out_specs=block
    )(x)


@program("f32[1024]")
def masked_load(x):
    """Load and store under a mask, with a value for masked elements."""

    def kernel(x_ref, o_ref):
        where = pl.program_id(0) * 128 + jnp.arange(128)
        value = plgpu.load(x_ref.at[where], mask=where < 1000, other=0.0)
        plgpu.store(o_ref.at[where], jnp.sqrt(jnp.abs(value)), mask=where < 1000)

    return call(kernel, (1024,), jnp.float32, grid=(8,))(x)


@program(
    "f16[1,128,2,64]",
    "f16[1,128,2,64]",
    "f16[1,128,2,64]",
)
def flash_attention(q, k, v):
    """Run the flash attention that jax contains."""
    # Imported late, so that an error fails only this program.
    from jax.experimental.pallas.ops.gpu import attention

    return attention.mha(q, k, v, segment_ids=None, causal=True)
