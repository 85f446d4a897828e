"""Random numbers: the same bits from the same key everywhere, and the right distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

parametrize = pytest.mark.parametrize

COUNT = 20_000
MOMENTS = {
    "uniform": (0.5, 1 / 12),
    "normal": (0.0, 1.0),
    "exponential": (1.0, 1.0),
    "gumbel": (0.5772, np.pi**2 / 6),
    "laplace": (0.0, 2.0),
    "logistic": (0.0, np.pi**2 / 3),
}
MEANS = {
    "gamma": ((3.0,), 3.0),
    "beta": ((2.0, 2.0), 0.5),
    "poisson": ((4.0,), 4.0),
    "bernoulli": ((0.3,), 0.3),
    "truncated_normal": ((-1.0, 1.0), 0.0),
}
"""Distribution -> its parameters and its mean."""


@parametrize("impl", ["threefry2x32", "rbg"])
@parametrize("name", MOMENTS)
def test_moments(name, impl):
    mean, variance = MOMENTS[name]
    draw = getattr(jax.random, name)
    key = jax.random.key(7, impl=impl)
    x = np.asarray(jax.jit(lambda key: draw(key, (COUNT,)))(key), np.float64)
    assert np.all(np.isfinite(x))
    assert x.mean() == pytest.approx(mean, abs=6 * np.sqrt(variance / COUNT))
    assert x.var() == pytest.approx(variance, rel=0.15)


@parametrize("name", MEANS)
def test_means(name):
    parameters, mean = MEANS[name]
    draw = getattr(jax.random, name)
    x = np.asarray(draw(jax.random.key(11), *parameters, shape=(COUNT,)))
    assert x.mean() == pytest.approx(mean, rel=0.05, abs=0.02)


def bits():
    """Return bits of a threefry key, which are the same on each device."""
    with jax.threefry_partitionable(True):
        return np.asarray(jax.random.bits(jax.random.key(42), (4,), jnp.uint32))


def test_threefry_gives_the_bits_that_it_gives_everywhere():
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.default_device(cpu):
        expected = bits()
    assert_array_equal(bits(), expected)


@parametrize(("low", "high"), [(0, 2), (-5, 5), (0, 1000)])
def test_randint(low, high):
    x = np.asarray(jax.random.randint(jax.random.key(1), (COUNT,), low, high))
    assert_array_equal(np.unique(x), np.arange(low, high))


def test_permutation_and_choice():
    x = np.asarray(jax.random.permutation(jax.random.key(2), 1000))
    assert_array_equal(np.sort(x), np.arange(1000))
    chosen = jax.random.choice(jax.random.key(3), 50, (50,), replace=False)
    assert len(np.unique(np.asarray(chosen))) == 50
