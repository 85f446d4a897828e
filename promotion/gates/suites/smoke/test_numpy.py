"""jax.numpy against numpy: elementwise, reductions, contractions, indexing, sorting, shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

UNARY = [
    "abs",
    "ceil",
    "cos",
    "cosh",
    "exp",
    "expm1",
    "floor",
    "log1p",
    "negative",
    "round",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
]
BINARY = [
    "add",
    "arctan2",
    "divide",
    "fmod",
    "hypot",
    "logaddexp",
    "maximum",
    "minimum",
    "multiply",
    "power",
    "subtract",
]
REDUCTIONS = [
    "all",
    "any",
    "argmax",
    "argmin",
    "max",
    "mean",
    "min",
    "prod",
    "std",
    "sum",
    "var",
]
SCANS = ["cumprod", "cumsum"]
FLOATS = [np.float32, np.float16, jnp.bfloat16]


def sample(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> Any:
    """Return reproducible random values between 0.25 and 2."""
    return (np.random.default_rng(seed).uniform(0.25, 2.0, shape)).astype(dtype)


def close(actual: Any, expected: Any, dtype: Any = np.float32) -> None:
    """Assert equality within the precision of a dtype."""
    rtol = {np.float16: 4e-3, jnp.bfloat16: 4e-2}.get(dtype, 2e-5)
    np.testing.assert_allclose(
        np.asarray(actual).astype(np.float64),
        np.asarray(expected).astype(np.float64),
        rtol=rtol,
        atol=rtol,
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: Any) -> None:
    x = sample((7, 33), dtype)
    close(
        jax.jit(getattr(jnp, name))(x), getattr(np, name)(x.astype(np.float64)), dtype
    )


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    x = sample((5, 1, 17))
    y = sample((9, 17), seed=1)
    close(jax.jit(getattr(jnp, name))(x, y), getattr(np, name)(x, y))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name: str, axis: int | None) -> None:
    x = sample((6, 31))
    close(
        jax.jit(lambda x: getattr(jnp, name)(x, axis=axis))(x),
        getattr(np, name)(x, axis=axis),
    )


@pytest.mark.parametrize("name", SCANS)
def test_scan(name: str) -> None:
    x = sample((4, 300))
    np.testing.assert_allclose(
        jax.jit(lambda x: getattr(jnp, name)(x, axis=1))(x),
        getattr(np, name)(x, axis=1),
        rtol=1e-3,
    )


@pytest.mark.parametrize(
    "spec",
    [
        "ij,jk->ik",
        "bij,bjk->bik",
        "ij,ij->",
        "ij->ji",
        "bhqd,bhkd->bhqk",
        "i,j->ij",
        "ijk,kl,lj->il",
    ],
)
def test_einsum(spec: str) -> None:
    sizes = dict(zip("bhijklqd", (2, 3, 8, 9, 10, 11, 12, 13), strict=True))
    operands = []
    for seed, term in enumerate(spec.split("->")[0].split(",")):
        shape = tuple(sizes[name] for name in term)
        operands.append(sample(shape, seed=seed))
    with jax.default_matmul_precision("highest"):
        np.testing.assert_allclose(
            jax.jit(lambda *a: jnp.einsum(spec, *a))(*operands),
            np.einsum(spec, *operands),
            rtol=1e-4,
        )


@pytest.mark.parametrize(
    "dtype",
    [np.float32, np.float16, jnp.bfloat16, np.int32, np.int8],
    ids=lambda d: np.dtype(d).name,
)
@pytest.mark.parametrize(
    "shape", [(16, 16, 16), (1, 64, 32), (33, 65, 17), (128, 128, 128)]
)
def test_matmul(shape: tuple[int, int, int], dtype: Any) -> None:
    m, k, n = shape
    rng = np.random.default_rng(3)
    x, y = (rng.integers(-3, 4, size).astype(dtype) for size in ((m, k), (k, n)))
    expected = x.astype(np.int64) @ y.astype(np.int64)
    actual = jax.jit(
        lambda x, y: jnp.matmul(
            x,
            y,
            preferred_element_type=jnp.float32 if x.dtype.kind != "i" else jnp.int32,
        )
    )(x, y)
    np.testing.assert_array_equal(np.asarray(actual).astype(np.int64), expected)


INDEXING: list[Callable[[Any], Any]] = [
    lambda x: x[2],
    lambda x: x[1:5:2, ::-1],
    lambda x: x[..., None, 3],
    lambda x: x[np.array([3, 0, 3])],
    lambda x: x[np.array([0, 1]), np.array([2, 2])],
]


@pytest.mark.parametrize("number", range(len(INDEXING)))
def test_indexing(number: int) -> None:
    x = sample((8, 9))
    close(jax.jit(INDEXING[number])(x), INDEXING[number](x))


SCATTER: dict[str, Callable[[Any, float], Any]] = {
    "set": np.full_like,
    "add": np.add,
    "multiply": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


@pytest.mark.parametrize("how", SCATTER)
def test_scatter(how: str) -> None:
    x = sample((10, 4))
    at = np.array([1, 3, 8])
    expected = x.copy()
    expected[at] = SCATTER[how](expected[at], 2.0)
    close(jax.jit(lambda x: getattr(x.at[at], how)(2.0))(x), expected)


@pytest.mark.parametrize("length", [1, 7, 1000, 4097])
def test_sort(length: int) -> None:
    x = sample((3, length))
    np.testing.assert_array_equal(jax.jit(jnp.sort)(x), np.sort(x))
    np.testing.assert_array_equal(jax.jit(jnp.argsort)(x), np.argsort(x, kind="stable"))


def test_sort_of_several() -> None:
    keys = np.array([3, 1, 3, 2])
    values = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    order = np.asarray(jnp.lexsort((values, keys)))
    np.testing.assert_array_equal(order, np.lexsort((values, keys)))


@pytest.mark.parametrize("name", ["unique", "nonzero", "bincount"])
def test_shapes_that_depend_on_values(name: str) -> None:
    x = np.array([3, 0, 1, 3, 0, 2])
    for actual, expected in zip(
        np.atleast_1d(getattr(jnp, name)(x)),
        np.atleast_1d(getattr(np, name)(x)),
        strict=True,
    ):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", ["concatenate", "stack", "hstack", "vstack"])
def test_joining(name: str) -> None:
    x = sample((3, 4))
    y = sample((3, 4), seed=1)
    close(
        jax.jit(lambda x, y: getattr(jnp, name)([x, y]))(x, y),
        getattr(np, name)([x, y]),
    )


@pytest.mark.parametrize(
    "call",
    [
        "pad",
        "roll",
        "tile",
        "flip",
        "transpose",
        "broadcast_to",
        "where",
        "interp",
        "histogram",
    ],
)
def test_shapes_and_choices(call: str) -> None:
    x = sample((4, 6))
    arguments: dict[str, tuple[Any, ...]] = {
        "pad": (x, ((1, 2), (0, 3))),
        "roll": (x, 2),
        "tile": (x, (2, 1)),
        "flip": (x,),
        "transpose": (x,),
        "broadcast_to": (x, (3, 4, 6)),
        "where": (x > 1, x, -x),
        "interp": (x, np.arange(4.0), np.arange(4.0) ** 2),
        "histogram": (x, 5, (0.0, 2.0)),
    }
    actual = getattr(jnp, call)(*arguments[call])
    expected = getattr(np, call)(*arguments[call])
    if call == "histogram":
        actual = actual[0]
        expected = expected[0]
    close(actual, expected)


def test_nan_and_infinity() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, 1.0], np.float32)
    np.testing.assert_array_equal(jax.jit(jnp.isnan)(x), np.isnan(x))
    np.testing.assert_array_equal(jax.jit(jnp.nan_to_num)(x), np.nan_to_num(x))
    assert float(jnp.nansum(x[[0, 3, 4]])) == 1.0
