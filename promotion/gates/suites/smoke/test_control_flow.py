"""Loops, branches and their transformations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.mark.parametrize("unroll", [1, 4])
@pytest.mark.parametrize("length", [1, 10, 257])
def test_scan(length: int, unroll: int) -> None:
    xs = np.arange(length, dtype=np.float32)
    last, sums = jax.jit(
        lambda xs: jax.lax.scan(lambda c, x: (c + x, c + x), 0.0, xs, unroll=unroll)
    )(xs)
    np.testing.assert_allclose(sums, np.cumsum(xs))
    assert float(last) == float(np.sum(xs))


def test_scan_backwards() -> None:
    xs = np.arange(5, dtype=np.float32)
    _, sums = jax.lax.scan(lambda c, x: (c + x, c + x), 0.0, xs, reverse=True)
    np.testing.assert_allclose(sums, np.cumsum(xs[::-1])[::-1])


@pytest.mark.parametrize("stop", [0, 1, 100])
def test_while_loop(stop: int) -> None:
    assert (
        int(
            jax.jit(lambda n: jax.lax.while_loop(lambda c: c < n, lambda c: c + 1, 0))(
                stop
            )
        )
        == stop
    )


def test_fori_loop_over_arrays() -> None:
    x = jax.jit(lambda x: jax.lax.fori_loop(0, 4, lambda i, x: x.at[i].set(i * i), x))(
        jnp.zeros(6, jnp.int32)
    )
    np.testing.assert_array_equal(x, [0, 1, 4, 9, 0, 0])


@pytest.mark.parametrize("flag", [True, False])
def test_cond(flag: bool) -> None:
    assert float(
        jax.jit(lambda f, x: jax.lax.cond(f, jnp.sin, jnp.cos, x))(flag, 0.5)
    ) == pytest.approx(np.sin(0.5) if flag else np.cos(0.5), rel=1e-5)


@pytest.mark.parametrize("which", [-3, 0, 1, 2, 9])
def test_switch_stays_inside(which: int) -> None:
    branches = [lambda x: x, lambda x: x + 10, lambda x: x + 20]
    assert int(
        jax.jit(lambda n: jax.lax.switch(n, branches, 1))(which)
    ) == 1 + 10 * min(max(which, 0), 2)


def test_branches_are_mapped() -> None:
    flags = np.array([True, False, True])
    x = np.array([1.0, 2.0, 3.0], np.float32)
    mapped = jax.vmap(lambda f, x: jax.lax.cond(f, lambda x: x * 10, lambda x: -x, x))(
        flags, x
    )
    np.testing.assert_allclose(mapped, [10.0, -2.0, 30.0])


def test_associative_scan() -> None:
    x = np.arange(1, 9, dtype=np.float32)
    np.testing.assert_allclose(
        jax.jit(lambda x: jax.lax.associative_scan(jnp.multiply, x))(x), np.cumprod(x)
    )


def test_map_in_batches() -> None:
    x = np.arange(10.0, dtype=np.float32)
    np.testing.assert_allclose(jax.lax.map(lambda v: v * 2, x, batch_size=4), x * 2)


@pytest.mark.parametrize("axis", [0, 1])
def test_vmap_axes(axis: int) -> None:
    x = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    np.testing.assert_allclose(jax.vmap(jnp.sum, in_axes=axis)(x), x.sum(axis=1 - axis))


def test_static_and_donated_arguments() -> None:
    power = jax.jit(lambda x, n: x**n, static_argnums=1, donate_argnums=0)
    assert float(power(jnp.asarray(3.0), 4)) == 81.0


def test_callbacks_see_values() -> None:
    seen: list[float] = []
    jax.jit(lambda x: jax.debug.callback(lambda v: seen.append(float(v)), x))(2.5)
    jax.effects_barrier()
    assert seen == [2.5]
    shape = jax.ShapeDtypeStruct((3,), np.float32)
    doubled = jax.jit(
        lambda x: jax.pure_callback(lambda v: np.asarray(v) * 2, shape, x)
    )(np.ones(3, np.float32))
    np.testing.assert_array_equal(doubled, 2 * np.ones(3))


def test_errors_of_the_program_are_told() -> None:
    from jax.experimental import checkify  # A jax without it fails only this test.

    def program(x: Any) -> Any:
        checkify.check(x > 0, "must be positive")
        return jnp.log(x)

    error, _ = checkify.checkify(jax.jit(program))(-1.0)
    with pytest.raises(checkify.JaxRuntimeError, match="must be positive"):
        error.throw()


def test_stages() -> None:
    lowered = jax.jit(lambda x: x @ x).lower(jax.ShapeDtypeStruct((8, 8), np.float32))
    assert "dot" in lowered.as_text()
    compiled = lowered.compile()
    assert compiled.cost_analysis()
    np.testing.assert_allclose(compiled(np.eye(8, dtype=np.float32)), np.eye(8))
