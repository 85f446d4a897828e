"""Programs of jax.lax, whose primitives all other programs use."""

import jax.numpy as jnp
from jax import lax

from .declaration import program


@program("f32[256,256]", "f32[256,256]", "f32[256,256]", corpus="small")
def fused_chain(x, y, z):
    """Run a long chain of elementwise primitives that ends in a reduction."""
    value = lax.fma(x, y, z) if hasattr(lax, "fma") else x * y + z
    return lax.reduce_max(
        lax.rsqrt(lax.abs(value) + 1.0) * lax.logistic(value) - lax.erf(z), (1,)
    )


@program("bf16[256,512]", "bf16[512,256]", corpus="small")
def dot_bf16(x, y):
    """Multiply bfloat16 matrices and accumulate in single precision."""
    return lax.dot(x, y, preferred_element_type=jnp.float32)


@program("f16[4,128,256]", "f16[4,256,128]")
def dot_general_f16(x, y):
    """Contract batched half-precision arrays."""
    return lax.dot_general(
        x, y, (((2,), (1,)), ((0,), (0,))), preferred_element_type=jnp.float32
    )


@program("f32[8,32,32,16]", "f32[3,3,16,32]", corpus="small")
def convolution(x, w):
    """Compute a 2D convolution, NHWC, with an epilogue that adds a bias."""
    return (
        lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        + 1.0
    )


@program("f16[4,16,28,28]", "f16[32,4,3,3]")
def convolution_grouped(x, w):
    """Compute a strided 2D convolution in groups, NCHW, half precision."""
    return lax.conv_general_dilated(x, w, (2, 2), "SAME", feature_group_count=4)


@program("f32[16,4096]")
def top_k(x):
    """Select the largest elements of each row."""
    return lax.top_k(x, 8)


@program("f32[2,32,32,8]")
def pooling(x):
    """Compute windowed reductions: max pooling and a windowed sum."""
    window = (1, 3, 3, 1)
    biggest = lax.reduce_window(x, -jnp.inf, lax.max, window, (1, 2, 2, 1), "SAME")
    return biggest, lax.reduce_window(x, 0.0, lax.add, window, (1, 1, 1, 1), "VALID")


@program("f32[128,64]", "s32[32,1]", "f32[32,64]")
def gather_scatter(x, rows, updates):
    """Scatter with max and gather slices, with explicit dimension numbers."""
    scatter = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    gather = lax.GatherDimensionNumbers((1,), (0,), (0,))
    return lax.scatter_max(x, rows, updates, scatter), lax.gather(
        x, rows, gather, (1, 64)
    )


@program("f32[64]", "s32[]")
def control_flow(x, branch):
    """Run a while_loop around a switch with three branches."""

    def body(state):
        step, value = state
        steps = (jnp.sin, jnp.cos, lambda v: v * 0.5)
        return step + 1, lax.switch((branch + step) % 3, steps, value)

    return lax.while_loop(lambda state: state[0] < 10, body, (jnp.int32(0), x))[1]


@program("f32[1024,16]")
def associative_scan(x):
    """Compute a parallel prefix of affine maps, as in state-space models."""

    def combine(a, b):
        return a[0] * b[0], a[1] * b[0] + b[1]

    return lax.associative_scan(combine, (x, jnp.ones_like(x)))[1]


@program("f32[128,128]")
def dynamic_slices(x):
    """Run a fori_loop with dynamic slices and updates in place."""

    def body(step, value):
        row = lax.dynamic_slice(value, (step, 0), (1, 128))
        return lax.dynamic_update_slice(value, row * 2.0, (step + 1, 0))

    return lax.fori_loop(0, 100, body, x)


@program("bf16[256,64]", "bf16[8,64,32]", "s32[8]")
def ragged_dot(x, experts, sizes):
    """Multiply grouped matrices, as in a mixture of experts; CDNA 3 uses hipBLASLt."""
    return lax.ragged_dot(x, experts, sizes)
