"""Programs of jax.nn, and common layers of models."""

import jax
import jax.numpy as jnp

from .declaration import program


@program("bf16[128,1024]", corpus="small")
def activations(x):
    """Apply several activations and sum them in one kernel."""
    return (
        jax.nn.gelu(x)
        + jax.nn.silu(x) * jax.nn.softplus(x)
        - jax.nn.relu6(x)
        + jax.nn.mish(x)
    )


@program("f32[64,2048]", "s32[64]")
def softmax_loss(logits, labels):
    """Compute softmax cross entropy with one-hot labels."""
    return -jnp.mean(
        jnp.sum(jax.nn.one_hot(labels, 2048) * jax.nn.log_softmax(logits), axis=-1)
    )


@program("bf16[512,1024]", "bf16[1024]", "bf16[1024]")
def layer_norm(x, scale, bias):
    """Normalise a layer in bfloat16 with statistics in single precision."""
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    return (
        centred * jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-6)
    ).astype(x.dtype) * scale + bias


@program(
    "bf16[2,256,8,64]",
    "bf16[2,256,8,64]",
    "bf16[2,256,8,64]",
    corpus="small",
)
def attention(q, k, v):
    """Compute scaled dot-product attention with a causal mask."""
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


@program(
    "f16[2,128,8,64]",
    "f16[2,128,2,64]",
    "f16[2,128,2,64]",
)
def grouped_query_attention(q, k, v):
    """Compute attention in half precision with fewer heads for keys than for queries."""
    return jax.nn.dot_product_attention(q, k, v)


@program(
    "bf16[2,128,256]",
    "bf16[256,768]",
    "bf16[256,256]",
    "bf16[256,1024]",
    "bf16[1024,256]",
)
def transformer_block(x, qkv, out, up, down):
    """Apply attention and a feed-forward network with residuals."""
    q, k, v = jnp.split((x @ qkv).reshape(2, 128, 4, 192), 3, axis=-1)
    x = (
        x
        + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(2, 128, 256)
        @ out
    )
    return x + jax.nn.gelu(x @ up) @ down


@program("f32[4,32,32,8]", "f32[3,3,8,16]", "f32[16]")
def convnet_block(x, w, scale):
    """Apply convolution, batch normalisation, rectifier and pooling."""
    y = jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    y = jax.nn.relu(jax.nn.standardize(y, axis=(0, 1, 2)) * scale)
    return jax.lax.reduce_window(
        y, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
    )
