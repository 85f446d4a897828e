"""Random numbers: the same bits from the same key everywhere, and the right distribution."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

COUNT = 20_000
MOMENTS = {
    "uniform": (0.5, 1 / 12),
    "normal": (0.0, 1.0),
    "exponential": (1.0, 1.0),
    "gumbel": (0.5772, np.pi**2 / 6),
    "laplace": (0.0, 2.0),
    "logistic": (0.0, np.pi**2 / 3),
}


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("name", MOMENTS)
def test_moments(name: str, impl: str) -> None:
    mean, variance = MOMENTS[name]
    x = np.asarray(
        jax.jit(lambda k: getattr(jax.random, name)(k, (COUNT,)))(
            jax.random.key(7, impl=impl)
        ),
        np.float64,
    )
    assert np.all(np.isfinite(x))
    assert x.mean() == pytest.approx(mean, abs=6 * np.sqrt(variance / COUNT))
    assert x.var() == pytest.approx(variance, rel=0.15)


def test_threefry_gives_the_bits_that_it_gives_everywhere() -> None:
    with jax.threefry_partitionable(True):
        bits = jax.random.bits(jax.random.key(42), (4,), jnp.uint32)
        again = jax.random.bits(jax.random.key(42), (4,), jnp.uint32)
    np.testing.assert_array_equal(bits, again)
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.default_device(cpu), jax.threefry_partitionable(True):
        np.testing.assert_array_equal(
            jax.random.bits(jax.random.key(42), (4,), jnp.uint32), np.asarray(bits)
        )


def test_split_keys_differ_and_fold_in_is_steady() -> None:
    keys = jax.random.split(jax.random.key(0), 16)
    drawn = np.asarray(jax.vmap(lambda key: jax.random.normal(key, (8,)))(keys))
    assert len({row.tobytes() for row in drawn}) == 16
    folded = [
        float(jax.random.uniform(jax.random.fold_in(jax.random.key(0), 3)))
        for _ in range(2)
    ]
    assert folded[0] == folded[1]


@pytest.mark.parametrize("low_high", [(0, 2), (-5, 5), (0, 1000)])
def test_randint(low_high: tuple[int, int]) -> None:
    low, high = low_high
    x = np.asarray(jax.random.randint(jax.random.key(1), (COUNT,), low, high))
    assert x.min() >= low
    assert x.max() < high
    assert len(np.unique(x)) == high - low


def test_permutation_and_choice() -> None:
    x = np.asarray(jax.random.permutation(jax.random.key(2), 1000))
    np.testing.assert_array_equal(np.sort(x), np.arange(1000))
    chosen = np.asarray(jax.random.choice(jax.random.key(3), 50, (50,), replace=False))
    assert len(np.unique(chosen)) == 50


@pytest.mark.parametrize(
    "name",
    [
        "gamma",
        "beta",
        "poisson",
        "bernoulli",
        "categorical",
        "dirichlet",
        "truncated_normal",
    ],
)
def test_more_distributions(name: str) -> None:
    key = jax.random.key(11)
    match name:
        case "gamma":
            assert float(jax.random.gamma(key, 3.0, (COUNT,)).mean()) == pytest.approx(
                3.0, rel=0.05
            )
        case "beta":
            assert float(
                jax.random.beta(key, 2.0, 2.0, (COUNT,)).mean()
            ) == pytest.approx(0.5, rel=0.05)
        case "poisson":
            assert float(
                jax.random.poisson(key, 4.0, (COUNT,)).mean()
            ) == pytest.approx(4.0, rel=0.05)
        case "bernoulli":
            assert float(
                jax.random.bernoulli(key, 0.3, (COUNT,)).mean()
            ) == pytest.approx(0.3, rel=0.1)
        case "categorical":
            drawn = np.asarray(
                jax.random.categorical(
                    key, jnp.log(jnp.array([0.1, 0.9])), shape=(COUNT,)
                )
            )
            assert drawn.mean() == pytest.approx(0.9, rel=0.05)
        case "dirichlet":
            np.testing.assert_allclose(
                jax.random.dirichlet(key, jnp.ones(4), (100,)).sum(-1), 1.0, rtol=1e-4
            )
        case _:
            assert (
                float(
                    jnp.abs(jax.random.truncated_normal(key, -1.0, 1.0, (COUNT,))).max()
                )
                <= 1.0
            )
