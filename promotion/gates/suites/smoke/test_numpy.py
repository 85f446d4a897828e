"""jax.numpy against numpy: elementwise, reductions, contractions, indexing, sorting, shapes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

parametrize = pytest.mark.parametrize

UNARY = [
    "abs",
    "arcsinh",
    "arctan",
    "cbrt",
    "ceil",
    "cos",
    "cosh",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "log",
    "log10",
    "log1p",
    "log2",
    "negative",
    "reciprocal",
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
    "logaddexp2",
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
    "ptp",
    "std",
    "sum",
    "var",
]
SCANS = ["cumprod", "cumsum"]
FLOATS = [np.float32, np.float16, jnp.bfloat16]


def sample(shape, dtype=np.float32, seed=0):
    """Return reproducible random values between 0.25 and 2."""
    rng = np.random.default_rng(seed)
    return rng.uniform(0.25, 2.0, shape).astype(dtype)


def close(actual, expected, dtype=np.float32):
    """Assert equality within the precision of a dtype."""
    rtol = {np.float16: 4e-3, jnp.bfloat16: 4e-2}.get(dtype, 2e-5)
    wide = np.asarray(actual).astype(np.float64)
    assert_allclose(wide, expected, rtol=rtol, atol=rtol)


def compare(name, *arguments, dtype=np.float32, **more):
    """Assert that a function of jax.numpy gives what numpy gives."""
    call = getattr(jnp, name)
    actual = jax.jit(lambda *arrays: call(*arrays, **more))(*arguments)
    wide = [argument.astype(np.float64) for argument in arguments]
    close(actual, getattr(np, name)(*wide, **more), dtype)


@parametrize("dtype", FLOATS, ids=lambda dtype: np.dtype(dtype).name)
@parametrize("name", UNARY)
def test_unary(name, dtype):
    compare(name, sample((7, 33), dtype), dtype=dtype)


@parametrize("name", BINARY)
def test_binary(name):
    compare(name, sample((5, 1, 17)), sample((9, 17), seed=1))


@parametrize("axis", [None, 0, 1, -1])
@parametrize("name", REDUCTIONS)
def test_reduction(name, axis):
    compare(name, sample((6, 31)), axis=axis)


@parametrize("name", SCANS)
def test_scan(name):
    x = sample((4, 300))
    actual = jax.jit(lambda x: getattr(jnp, name)(x, axis=1))(x)
    expected = getattr(np, name)(x, axis=1)
    assert_allclose(actual, expected, rtol=1e-3)


@parametrize(
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
def test_einsum(spec):
    sizes = dict(zip("bhijklqd", (2, 3, 8, 9, 10, 11, 12, 13), strict=True))
    operands = []
    for seed, term in enumerate(spec.split("->")[0].split(",")):
        shape = tuple(sizes[name] for name in term)
        operands.append(sample(shape, seed=seed))
    with jax.default_matmul_precision("highest"):
        actual = jax.jit(lambda *a: jnp.einsum(spec, *a))(*operands)
    assert_allclose(actual, np.einsum(spec, *operands), rtol=1e-4)


@parametrize(
    "dtype",
    [np.float32, np.float16, jnp.bfloat16, np.int32, np.int8],
    ids=lambda d: np.dtype(d).name,
)
@parametrize("shape", [(16, 16, 16), (1, 64, 32), (33, 65, 17), (128, 128, 128)])
def test_matmul(shape, dtype):
    m, k, n = shape
    rng = np.random.default_rng(3)
    x = rng.integers(-3, 4, (m, k)).astype(dtype)
    y = rng.integers(-3, 4, (k, n)).astype(dtype)
    wide = jnp.int32 if x.dtype.kind == "i" else jnp.float32
    multiply = partial(jnp.matmul, preferred_element_type=wide)
    actual = np.asarray(jax.jit(multiply)(x, y))
    expected = x.astype(np.int64) @ y.astype(np.int64)
    assert_array_equal(actual.astype(np.int64), expected)


INDEXING = {
    "row": 2,
    "slices": np.s_[1:5:2, ::-1],
    "new axis": np.s_[..., None, 3],
    "rows": np.array([3, 0, 3]),
    "elements": (np.array([0, 1]), np.array([2, 2])),
}


@parametrize("how", INDEXING)
def test_indexing(how):
    x = sample((8, 9))
    place = INDEXING[how]
    close(jax.jit(lambda x: x[place])(x), x[place])


SCATTER = {
    "set": np.full_like,
    "add": np.add,
    "multiply": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


@parametrize("how", SCATTER)
def test_scatter(how):
    x = sample((10, 4))
    at = np.array([1, 3, 8])
    expected = x.copy()
    expected[at] = SCATTER[how](expected[at], 2.0)
    actual = jax.jit(lambda x: getattr(x.at[at], how)(2.0))(x)
    close(actual, expected)


@parametrize("length", [1, 7, 1000, 4097])
def test_sort(length):
    x = sample((3, length))
    order = np.argsort(x, kind="stable")
    assert_array_equal(jax.jit(jnp.sort)(x), np.sort(x))
    assert_array_equal(jax.jit(jnp.argsort)(x), order)


CALLS = {
    "pad": (((1, 2), (0, 3)),),
    "roll": (2,),
    "tile": ((2, 1),),
    "flip": (),
    "transpose": (),
    "broadcast_to": ((3, 4, 6),),
    "interp": (np.arange(4.0), np.arange(4.0) ** 2),
}
"""Function -> its arguments after the array."""


@parametrize("name", CALLS)
def test_shapes(name):
    x = sample((4, 6))
    actual = getattr(jnp, name)(x, *CALLS[name])
    close(actual, getattr(np, name)(x, *CALLS[name]))


def test_nan_and_infinity():
    x = np.array([np.nan, np.inf, -np.inf, 0.0, 1.0], np.float32)
    assert_array_equal(jax.jit(jnp.isnan)(x), np.isnan(x))
    finite = jax.jit(jnp.nan_to_num)(x)
    assert_array_equal(finite, np.nan_to_num(x))
