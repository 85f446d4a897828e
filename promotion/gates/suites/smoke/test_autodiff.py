"""Derivatives against finite differences and closed forms, and custom rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "polynomial": lambda x: jnp.sum(x**3 - 2 * x),
    "tanh": lambda x: jnp.sum(jnp.tanh(x)),
    "softmax": lambda x: jnp.sum(jax.nn.softmax(x) ** 2),
    "logsumexp": jax.scipy.special.logsumexp,
    "matmul": lambda x: jnp.sum((x[:, None] * x) @ x),
    "sort": lambda x: jnp.sum(jnp.sort(x) * jnp.arange(x.size)),
    "cumsum": lambda x: jnp.sum(jnp.cumsum(x) ** 2),
    "where": lambda x: jnp.sum(jnp.where(x > 0, x**2, -x)),
    "gather": lambda x: jnp.sum(x[jnp.array([0, 2, 2])] ** 2),
    "scan": lambda x: jax.lax.scan(lambda c, v: (c * 0.5 + v, c), 0.0, x)[0],
    "cond": lambda x: jax.lax.cond(x[0] > 0, jnp.sum, lambda x: jnp.sum(x**2), x),
    "norm": jnp.linalg.norm,
    "gelu": lambda x: jnp.sum(jax.nn.gelu(x)),
}
X = np.array([0.7, -0.4, 1.3, 0.2, -1.1], np.float32)


@pytest.mark.parametrize("mode", ["fwd", "rev"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient(name: str, mode: str) -> None:
    check_grads(
        jax.jit(FUNCTIONS[name]), (X,), order=1, modes=[mode], atol=2e-2, rtol=2e-2
    )


@pytest.mark.parametrize("name", ["polynomial", "tanh", "softmax", "scan"])
def test_hessian(name: str) -> None:
    hessian = jax.jit(jax.hessian(FUNCTIONS[name]))(X)
    other = jax.jit(jax.jacrev(jax.jacfwd(FUNCTIONS[name])))(X)
    np.testing.assert_allclose(hessian, other, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(hessian, np.asarray(hessian).T, atol=1e-5)


def test_jvp_and_vjp_agree() -> None:
    def function(x: Any) -> Any:
        return jnp.sin(x) * jnp.cumsum(x)

    tangent = np.ones_like(X)
    cotangent = np.arange(X.size, dtype=np.float32)
    _, forward = jax.jvp(function, (X,), (tangent,))
    _, pull = jax.vjp(function, X)
    np.testing.assert_allclose(
        np.vdot(cotangent, forward), np.vdot(pull(cotangent)[0], tangent), rtol=1e-5
    )


def test_custom_rules() -> None:
    clipped = jax.custom_vjp(lambda x: x)
    clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1, 1),))
    np.testing.assert_array_equal(
        jax.grad(lambda x: jnp.sum(clipped(x) * 5.0))(X), np.ones_like(X)
    )

    doubled = jax.custom_jvp(lambda x: 2 * x)
    doubled.defjvp(lambda p, t: (doubled(*p), 7 * t[0]))
    assert float(jax.grad(doubled)(1.0)) == 7.0


def test_checkpoint_changes_nothing() -> None:
    def layer(x: Any) -> Any:
        return jnp.sum(jnp.sin(jnp.sin(x)) ** 2)

    np.testing.assert_allclose(
        jax.grad(jax.checkpoint(layer))(X), jax.grad(layer)(X), rtol=1e-6
    )


def test_has_aux_and_value() -> None:
    (value, aux), gradient = jax.value_and_grad(
        lambda x: (jnp.sum(x**2), x[0]), has_aux=True
    )(X)
    np.testing.assert_allclose(value, np.sum(X**2), rtol=1e-6)
    np.testing.assert_allclose(gradient, 2 * X, rtol=1e-6)
    assert float(aux) == pytest.approx(X[0])


@pytest.mark.parametrize("name", ["polynomial", "softmax", "logsumexp"])
def test_gradients_are_mapped(name: str) -> None:
    batch = np.stack([X, -X, X + 1])
    mapped = jax.jit(jax.vmap(jax.grad(FUNCTIONS[name])))(batch)
    np.testing.assert_allclose(
        mapped,
        np.stack([jax.grad(FUNCTIONS[name])(row) for row in batch]),
        rtol=1e-4,
        atol=1e-6,
    )


def test_stop_gradient() -> None:
    assert float(jax.grad(lambda x: x * jax.lax.stop_gradient(x))(3.0)) == 3.0
