"""Programs for element types, in elementwise code and in matrix products."""

import jax.numpy as jnp
from jax import lax

from .declaration import program


def product(x, y):
    """Multiply matrices and accumulate in single precision."""
    return lax.dot(x, y, preferred_element_type=jnp.float32)


@program(
    "f8e4m3fnuz[256,256]",
    "f8e4m3fnuz[256,256]",
)
def gemm_f8e4m3fnuz(x, y):
    """Multiply matrices of fp8 e4m3 in the variant of CDNA 3 (fnuz)."""
    return product(x, y)


@program(
    "f8e4m3fn[256,256]",
    "f8e4m3fn[256,256]",
)
def gemm_f8e4m3fn(x, y):
    """Multiply matrices of fp8 e4m3 of the Open Compute Project."""
    return product(x, y)


@program(
    "f8e5m2[256,256]",
    "f8e4m3fn[256,256]",
)
def gemm_f8_mixed(x, y):
    """Multiply fp8 e5m2 by e4m3, like gradients by weights."""
    return product(x, y)


@program("f32[512]")
def fp8_conversions(x):
    """Convert single precision to each fp8 type and back."""
    kinds = (
        jnp.float8_e4m3fn,
        jnp.float8_e4m3fnuz,
        jnp.float8_e5m2,
        jnp.float8_e5m2fnuz,
    )
    return tuple(x.astype(kind).astype(jnp.float32) for kind in kinds)


@program("s8[256,256]", "s8[256,256]")
def gemm_s8(x, y):
    """Multiply 8-bit integers and accumulate in 32-bit integers."""
    return lax.dot(x, y, preferred_element_type=jnp.int32)


@program(
    "s4[128,256]",
    "bf16[256,128]",
    corpus="small",
)
def gemm_s4_weights(w, x):
    """Multiply 4-bit weights by bfloat16 activations."""
    return product(w.astype(jnp.bfloat16), x)


@program("s4[512]", "u4[512]")
def int4_arithmetic(x, y):
    """Unpack 4-bit integers, multiply and pack them."""
    wide = x.astype(jnp.int8) * y.astype(jnp.int8)
    return wide, wide.astype(jnp.int4)


@program("f64[128,128]", "f64[128,128]")
def gemm_f64(x, y):
    """Multiply matrices in double precision, with elementwise work."""
    return jnp.exp(-(x @ y))


@program("c64[64,64]", "c64[64,64]")
def gemm_c64(x, y):
    """Multiply complex matrices."""
    return x @ y.conj()


@program("bf16[512,512]", "f16[512,512]", "s64[512]")
def promotions(x, y, index):
    """Promote mixed half precisions, 64-bit integers and booleans."""
    return (
        x + y,
        index * 3 // 7,
        (x > 0) & (y < 1),
        lax.bitcast_convert_type(x, jnp.uint16),
    )
