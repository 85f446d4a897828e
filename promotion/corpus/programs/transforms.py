"""Programs of jax's transformations: grad, vmap, scan, remat and others."""

import jax
import jax.numpy as jnp
from jax import lax

from .declaration import program


def network(weights, x):
    """Apply two dense layers."""
    return jnp.tanh(x @ weights[0]) @ weights[1]


@program(
    "bf16[128,256]",
    "bf16[256,128]",
    "bf16[64,128]",
    corpus="small",
)
def grad(up, down, x):
    """Differentiate two dense layers in reverse mode."""
    return jax.grad(lambda w: jnp.sum(network(w, x) ** 2))((up, down))


@program("f32[8,32,64]", "f32[8,64,32]")
def vmap(x, y):
    """Map a function with a loop over a batch."""
    return jax.vmap(
        lambda a, b: lax.fori_loop(0, 3, lambda _, v: jnp.tanh(v @ b @ a), a)
    )(x, y)


@program("f32[32,16,64]", "f32[64,64]", "f32[16,64]")
def scan(xs, w, h):
    """Run a recurrent network over time and return its state at each step."""

    def step(state, x):
        state = jnp.tanh(state @ w + x)
        return state, state.sum(-1)

    return lax.scan(step, h, xs)


@program("f32[16,64]", "f32[6,64,64]")
def remat(x, weights):
    """Differentiate a scan over layers whose activations are recomputed."""

    def layer(state, w):
        return jax.nn.gelu(state @ w), None

    return jax.grad(lambda w: jnp.sum(lax.scan(jax.checkpoint(layer), x, w)[0]))(
        weights
    )


@program("f32[16]", "f32[16]")
def jacobians(x, v):
    """Compute a Jacobian (forward mode), a Hessian and a directional derivative."""

    def function(value):
        return jnp.sin(value) * jnp.cumsum(value**2)

    return (
        jax.jacfwd(function)(x),
        jax.hessian(lambda y: function(y).sum())(x),
        jax.jvp(function, (x,), (v,))[1],
    )


@program("f32[64]")
def custom_rules(x):
    """Differentiate a function with a custom gradient."""
    clipped = jax.custom_vjp(lambda value: jnp.clip(value, -1, 1))
    clipped.defvjp(
        lambda value: (clipped(value), value),
        lambda value, g: (g * jnp.exp(-(value**2)),),
    )
    return jax.grad(lambda value: jnp.sum(clipped(value) ** 3))(x)


@program(
    "bf16[64,256]",
    "bf16[256,512]",
    "bf16[512,64]",
    "f32[256,512]",
    "f32[512,64]",
)
def training_step(x, up, down, slow_up, slow_down):
    """Run a training step with momentum in mixed precision."""

    def loss(weights):
        return jnp.mean(network(weights, x).astype(jnp.float32) ** 2)

    value, (d_up, d_down) = jax.value_and_grad(loss)((up, down))
    slow_up = 0.9 * slow_up + d_up
    slow_down = 0.9 * slow_down + d_down
    return (
        value,
        (up - 0.1 * slow_up).astype(up.dtype),
        (down - 0.1 * slow_down).astype(down.dtype),
        slow_up,
        slow_down,
    )
