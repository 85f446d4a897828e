"""RoPE: XLA's results against float64, gradients, and JAX's transformations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from jax_aiter.rope import rope

from tests.jax_aiter.common import compare, compare_gradients, made, mesh, wide, with_gradients

DTYPES = [jnp.float32, jnp.float16, jnp.bfloat16]


def tables(count: int, pairs: int, dtype: Any = jnp.float32) -> tuple[Any, Any]:
    """Return cosines and sines of the usual frequencies."""
    angles = np.arange(count)[:, None] * 10000.0 ** (-np.arange(pairs) / pairs)
    return jnp.asarray(np.cos(angles), dtype), jnp.asarray(np.sin(angles), dtype)


def rotated(x: Any, cos: Any, sin: Any, positions: Any, interleaved: bool) -> Any:
    """Return the result as products of complex numbers."""
    x, pairs, out = wide(x), cos.shape[1], wide(x).copy()
    first = slice(0, 2 * pairs, 2) if interleaved else slice(0, pairs)
    second = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    turned = (x[..., first] + 1j * x[..., second]) * (wide(cos) + 1j * wide(sin))[np.asarray(positions)][..., None, :]
    out[..., first], out[..., second] = turned.real, turned.imag
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("shape", "pairs"), [((2, 5, 3, 16), 8), ((2, 5, 3, 16), 5), ((7, 2, 9), 4)])
def check_it_is_right_for_any_style(dtype: Any, interleaved: bool, shape: tuple[int, ...], pairs: int) -> None:
    x, (cos, sin) = made(1, shape, dtype), tables(11, pairs)
    places = jnp.asarray(np.random.default_rng(0).integers(0, 11, shape[:-2]), jnp.int32)
    out = rope(x, cos, sin, places, interleaved=interleaved)
    assert out.dtype == dtype
    compare(out, rotated(x, cos, sin, places, interleaved))
    row = np.arange(shape[-3])
    compare(
        rope(x, cos, sin, interleaved=interleaved), rotated(x, cos, sin, np.broadcast_to(row, shape[:-2]), interleaved)
    )
    compare(rope(x, cos, sin, jnp.asarray(row[::-1], jnp.int32)), rotated(x, cos, sin, np.broadcast_to(
        row[::-1], shape[:-2]), False))  # fmt: skip


def check_a_position_outside_of_the_tables_makes_nan() -> None:
    x, (cos, sin) = made(1, (4, 2, 6)), tables(3, 2)
    out = wide(rope(x, cos, sin, jnp.asarray([0, -1, 3, 2], jnp.int32)))
    assert np.isnan(out[1:3, :, :4]).all()
    assert np.isfinite(out[[0, 3]]).all()
    np.testing.assert_array_equal(out[:, :, 4:], wide(x)[:, :, 4:])


@pytest.mark.releases
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("interleaved", [False, True])
def check_gradients_are_those_of_finite_differences(interleaved: bool) -> None:
    x, cos, sin = made(1, (2, 3, 2, 7), jnp.float64), made(2, (4, 3), jnp.float64), made(3, (4, 3), jnp.float64)
    places = jnp.asarray([[0, 2, 2], [1, 0, 3]], jnp.int32)
    compare_gradients(lambda x, c, s: (rope(x, c, s, places, interleaved=interleaved), ()), x, cos, sin)


def check_gradient_of_x_keeps_only_the_tables() -> None:
    x, (cos, sin) = made(1, (4, 2, 6)), tables(4, 3)
    _, pull = jax.vjp(lambda x: rope(x, cos, sin), x)
    assert all(leaf.shape != x.shape for leaf in jax.tree.leaves(pull))


@pytest.mark.releases
def check_vmap_is_a_loop() -> None:
    x, (cos, sin) = made(1, (3, 4, 2, 6)), tables(9, 3)
    places = jnp.asarray([[0, 1, 2, 3], [4, 4, 5, 6], [8, 7, 0, 1]], jnp.int32)

    def both(x: Any, p: Any) -> Any:
        return with_gradients(lambda x: rope(x, cos, sin, p))(x)

    loop = [jax.jit(both)(x[i], places[i]) for i in range(3)]
    compare(jax.jit(jax.vmap(both))(x, places), jax.tree.map(lambda *p: jnp.stack(p), *loop))


@pytest.mark.releases
def check_shards_give_what_the_whole_gives() -> None:
    x, (cos, sin) = made(1, (16, 3, 2, 6)), tables(9, 3)
    places = jnp.asarray(np.random.default_rng(0).integers(0, 9, (16, 3)), jnp.int32)
    specs = (P("d"), P(), P(), P("d"))
    spread = jax.shard_map(lambda *arrays: rope(*arrays), mesh=mesh(), in_specs=specs, out_specs=P("d"))
    found, wanted = (
        jax.jit(with_gradients(lambda x, c, s, function=function: function(x, c, s, places)))(x, cos, sin)
        for function in (spread, rope)
    )
    compare(found, wanted)


X, COS = jnp.ones((2, 4, 2, 8)), jnp.ones((6, 3))


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((X[0, 0], COS, COS), ValueError, r"x has the shape \[2, 8\]; it has to be \[..., S, H, D\]"),
        ((X.astype(jnp.int32), COS, COS), TypeError, "x has the dtype int32"),
        ((X, COS[0], COS), ValueError, r"cos has the shape \[3\]; it has to be \[P, C\]"),
        ((X, COS, COS[:5]), ValueError, r"sin has the shape \[5, 3\]; it has to be the shape of cos = \[6, 3\]"),
        ((X, jnp.ones((6, 5)), jnp.ones((6, 5))), ValueError, r"cos has the shape \[6, 5\]; .* C from 1 to 4"),
        ((X, COS.astype(jnp.int32), COS), TypeError, "cos has the dtype int32"),
        ((X, COS[:3], COS[:3]), ValueError, "x has 4 tokens, but cos has 3 positions"),
        ((X, COS, COS, jnp.zeros(3, jnp.int32)), ValueError, r"positions has the shape \[3\]; .* \[2, 4\] or \[S\]"),
        ((X, COS, COS, jnp.zeros((2, 4))), TypeError, "positions has the dtype float32; it has to be int32"),
        ((3.0, COS, COS), TypeError, "x is a float"),
    ],
)
def check_what_does_not_fit_is_named(arguments: tuple[Any, ...], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=f"rope: {said}"):
        rope(*arguments)
