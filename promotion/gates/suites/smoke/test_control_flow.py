"""Loops, branches and their transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

parametrize = pytest.mark.parametrize


def add(carry, x):
    """Add to the carry, which is the result of each step too."""
    total = carry + x
    return total, total


@parametrize("reverse", [False, True])
@parametrize("unroll", [1, 4])
@parametrize("length", [1, 10, 257])
def test_scan(length, unroll, reverse):
    def program(xs):
        return jax.lax.scan(add, 0.0, xs, unroll=unroll, reverse=reverse)

    xs = np.arange(length, dtype=np.float32)
    last, sums = jax.jit(program)(xs)
    order = slice(None, None, -1 if reverse else 1)
    assert_allclose(sums, np.cumsum(xs[order])[order])
    assert float(last) == float(np.sum(xs))


@parametrize("stop", [0, 1, 100])
def test_while_loop(stop):
    def count(stop):
        return jax.lax.while_loop(lambda n: n < stop, lambda n: n + 1, 0)

    assert int(jax.jit(count)(stop)) == stop


@parametrize("which", [-3, 0, 1, 2, 9])
def test_switch_stays_inside(which):
    branches = [lambda x: x, lambda x: x + 10, lambda x: x + 20]
    result = jax.jit(lambda n: jax.lax.switch(n, branches, 1))(which)
    inside = min(max(which, 0), 2)
    assert int(result) == 1 + 10 * inside


def test_branches_are_mapped():
    def program(flag, x):
        return jax.lax.cond(flag, lambda x: x * 10, lambda x: -x, x)

    flags = np.array([True, False, True])
    x = np.array([1.0, 2.0, 3.0], np.float32)
    mapped = jax.vmap(program)(flags, x)
    assert_allclose(mapped, [10.0, -2.0, 30.0])


def test_associative_scan():
    def products(x):
        return jax.lax.associative_scan(jnp.multiply, x)

    x = np.arange(1, 9, dtype=np.float32)
    assert_allclose(jax.jit(products)(x), np.cumprod(x))


def test_callbacks_see_values():
    seen = []
    jax.jit(lambda x: jax.debug.callback(seen.append, x))(2.5)
    jax.effects_barrier()
    assert [float(value) for value in seen] == [2.5]

    def doubled(x):
        shape = jax.ShapeDtypeStruct((3,), np.float32)
        return jax.pure_callback(lambda v: np.asarray(v) * 2, shape, x)

    ones = np.ones(3, np.float32)
    assert_array_equal(jax.jit(doubled)(ones), 2 * ones)


def test_stages():
    shape = jax.ShapeDtypeStruct((8, 8), np.float32)
    lowered = jax.jit(lambda x: x @ x).lower(shape)
    assert "dot" in lowered.as_text()
    compiled = lowered.compile()
    assert compiled.cost_analysis()
    eye = np.eye(8, dtype=np.float32)
    assert_allclose(compiled(eye), eye)
