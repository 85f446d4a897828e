"""Programs of jax.random."""

import jax

from .declaration import program


@program("u32[]", corpus="small")
def uniform_normal(seed):
    """Create and split threefry keys, and draw uniform, normal and integer values."""
    keys = jax.random.split(jax.random.key(seed), 3)
    return (
        jax.random.uniform(keys[0], (256,)),
        jax.random.normal(keys[1], (256,)),
        jax.random.randint(keys[2], (64,), 0, 100),
    )


@program("u32[]")
def distributions(seed):
    """Draw gamma and poisson values, by rejection in loops, and categorical values."""
    keys = jax.random.split(jax.random.key(seed, impl="threefry2x32"), 3)
    logits = jax.numpy.zeros((16, 8))
    return (
        jax.random.gamma(keys[0], 2.0, (64,)),
        jax.random.poisson(keys[1], 3.0, (64,)),
        jax.random.categorical(keys[2], logits),
    )


@program("u32[]")
def generators(seed):
    """Draw bits from XLA's own generators, rbg and unsafe_rbg."""
    key = jax.random.key(seed, impl="rbg")
    other = jax.random.key(seed, impl="unsafe_rbg")
    return jax.random.bits(key, (512,)), jax.random.normal(other, (512,))


@program("u32[]", "f32[128]")
def permutations(seed, x):
    """Shuffle and choose without replacement, by sorting."""
    key = jax.random.key(seed)
    return jax.random.permutation(key, x), jax.random.choice(
        key, x, (16,), replace=False
    )
