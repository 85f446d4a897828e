"""Derivatives against finite differences and closed forms, and custom rules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from numpy.testing import assert_allclose, assert_array_equal

parametrize = pytest.mark.parametrize

X = np.array([0.7, -0.4, 1.3, 0.2, -1.1], np.float32)


def polynomial(x):
    return x**3 - 2 * x


def outer_product(x):
    square = x[:, None] * x
    return square @ x


def branch(x):
    return jnp.where(x > 0, x**2, -x)


def gather(x):
    rows = jnp.array([0, 2, 2])
    return x[rows]


def recurrence(x):
    def step(carry, value):
        return carry * 0.5 + value, carry

    last, _ = jax.lax.scan(step, 0.0, x)
    return last


def conditional(x):
    return jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)


FUNCTIONS = {
    "polynomial": polynomial,
    "tanh": jnp.tanh,
    "softmax": jax.nn.softmax,
    "logsumexp": jax.scipy.special.logsumexp,
    "matmul": outer_product,
    "sort": jnp.sort,
    "cumsum": jnp.cumsum,
    "where": branch,
    "gather": gather,
    "scan": recurrence,
    "cond": conditional,
    "norm": jnp.linalg.norm,
    "gelu": jax.nn.gelu,
}


def loss_of(name):
    """Return a scalar function: the sum of the squares of a function's results."""
    function = FUNCTIONS[name]

    def loss(x):
        return jnp.sum(function(x) ** 2)

    return loss


@parametrize("mode", ["fwd", "rev"])
@parametrize("name", FUNCTIONS)
def test_gradient(name, mode):
    loss = jax.jit(loss_of(name))
    check_grads(loss, (X,), order=1, modes=[mode], atol=2e-2, rtol=2e-2)


@parametrize("name", ["polynomial", "tanh", "softmax", "scan"])
def test_hessian(name):
    loss = loss_of(name)
    hessian = jax.jit(jax.hessian(loss))(X)
    other = jax.jit(jax.jacrev(jax.jacfwd(loss)))(X)
    assert_allclose(hessian, other, rtol=1e-4, atol=1e-5)


@parametrize("name", ["polynomial", "softmax", "logsumexp"])
def test_gradients_are_mapped(name):
    gradient = jax.grad(loss_of(name))
    batch = np.stack([X, -X, X + 1])
    mapped = jax.jit(jax.vmap(gradient))(batch)
    expected = np.stack([gradient(row) for row in batch])
    assert_allclose(mapped, expected, rtol=1e-4, atol=1e-6)


def test_custom_rules():
    clipped = jax.custom_vjp(lambda x: x)
    clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1, 1),))
    gradient = jax.grad(lambda x: jnp.sum(clipped(x) * 5.0))(X)
    assert_array_equal(gradient, np.ones_like(X))

    doubled = jax.custom_jvp(lambda x: 2 * x)
    doubled.defjvp(lambda p, t: (doubled(*p), 7 * t[0]))
    assert float(jax.grad(doubled)(1.0)) == 7.0
