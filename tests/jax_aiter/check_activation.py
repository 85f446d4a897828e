"""SwiGLU: XLA's results against float64, gradients, and JAX's transformations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P
from jax_aiter.activation import silu_and_mul, swiglu

from tests.jax_aiter.common import compare, compare_gradients, made, mesh, wide, with_gradients

DTYPES = [jnp.float32, jnp.float16, jnp.bfloat16]
SHAPES = st.tuples(st.lists(st.integers(0, 5), max_size=3), st.integers(1, 30))


def product(gate: Any, up: Any) -> Any:
    gate = wide(gate)
    return gate / (1 + np.exp(-gate)) * wide(up)


@settings(max_examples=5)
@given(SHAPES, st.sampled_from(DTYPES))
def check_both_are_right_for_any_shape(shape: tuple[list[int], int], dtype: Any) -> None:
    gate, up = (made(seed, (*shape[0], shape[1]), dtype) * 3 for seed in (1, 2))
    for out in (swiglu(gate, up), silu_and_mul(jnp.concatenate([gate, up], axis=-1))):
        assert out.dtype == dtype
        compare(out, product(gate, up))


def check_large_and_small_numbers_have_finite_gradients() -> None:
    gate = jnp.asarray([2.0**100, -(2.0**100), 200.0, -200.0, 0.0])
    out, pull = jax.vjp(swiglu, gate, jnp.ones(5))
    np.testing.assert_array_equal(out, [2.0**100, 0, 200, 0, 0])
    dgate, _ = pull(jnp.ones(5))
    np.testing.assert_array_equal(dgate, [1, 0, 1, 0, 0.5])


@pytest.mark.releases
@pytest.mark.usefixtures("x64")
def check_gradients_are_those_of_finite_differences() -> None:
    gate, up = made(1, (2, 3, 8), jnp.float64), made(2, (2, 3, 8), jnp.float64)
    compare_gradients(lambda a, b: (swiglu(a, b), ()), gate, up)
    compare_gradients(lambda x: (silu_and_mul(x), ()), gate)


@pytest.mark.releases
def check_vmap_is_a_loop() -> None:
    gate, up = made(1, (3, 4, 6)), made(2, (4, 6))
    both = with_gradients(swiglu)
    loop = [jax.jit(both)(one, up) for one in gate]
    compare(jax.jit(jax.vmap(both, (0, None)))(gate, up), jax.tree.map(lambda *p: jnp.stack(p), *loop))
    both = with_gradients(silu_and_mul)
    loop = [jax.jit(both)(one) for one in gate]
    compare(jax.jit(jax.vmap(both))(gate), jax.tree.map(lambda *p: jnp.stack(p), *loop))


@pytest.mark.releases
def check_shards_give_what_the_whole_gives() -> None:
    gate, up = made(1, (16, 6)), made(2, (16, 6))
    for function, operands in ((swiglu, (gate, up)), (silu_and_mul, (gate,))):
        spread = jax.shard_map(function, mesh=mesh(), in_specs=(P("d"),) * len(operands), out_specs=P("d"))
        compare(jax.jit(with_gradients(spread))(*operands), jax.jit(with_gradients(function))(*operands))


X = jnp.ones((4, 8))


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: silu_and_mul(X[:, :7]), ValueError, "silu_and_mul: the last dimension of x is 7; .* multiple of 2"),
        (lambda: silu_and_mul(X[:, :0]), ValueError, r"silu_and_mul: x has the shape \[4, 0\]; rows must not be empty"),
        (lambda: silu_and_mul(jnp.float32(1)), ValueError, "silu_and_mul: x is a scalar"),
        (lambda: silu_and_mul(X.astype(jnp.int8)), TypeError, "silu_and_mul: x has the dtype int8"),
        (lambda: swiglu(X, X[:3]), ValueError, r"swiglu: up has the shape \[3, 8\]; .* the shape of gate = \[4, 8\]"),
        (lambda: swiglu(X, X.astype(jnp.float16)), TypeError, "swiglu: up has the dtype float16; .* be float32"),
        (lambda: swiglu(3.0, X), TypeError, "swiglu: gate is a float"),
    ],
)
def check_what_does_not_fit_is_named(call: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()
