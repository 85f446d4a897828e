"""Portable RMSNorm by its handlers with interpreted kernels, against float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from kernels.tests.support.fake.interpreted import NUMPY, call, from_bf16, to_bf16
from kernels.tests.support.fake.trees import KernelTree

pytestmark = pytest.mark.network

Array = Any
Run = Callable[..., list[Array]]
BACKWARD = "JaxAiterRmsNormBwd"
GPUS = {"gfx942": 304, "gfx1100": 48}
"""Wavefronts of 64 lanes (CDNA3) and of 32 (RDNA3): processor -> compute units."""
DTYPES = {
    "f32": (24, -149),
    "f16": (11, -24),
    "bf16": (8, -133),
}
"""Significant bits, and the exponent of the smallest number."""
IN_PACK = {"f32": 4, "f16": 8, "bf16": 8}
SIZES = [
    ("f32", 1),
    ("f16", 64),
    ("f32", 1001),
    ("bf16", 1001),
    ("f16", 1024),
    ("bf16", 4160),
    ("f32", 4160),
]
# Rows of more packs of 16 bytes than 512 threads hold: the form `wide` of the kernels.
SIZES += [(dtype, 2049 * count) for dtype, count in IN_PACK.items()]


def encode(dtype: str, values: Array) -> Array:
    return to_bf16(values) if dtype == "bf16" else np.asarray(values, NUMPY[dtype])


def decode(dtype: str, numbers: Array) -> Array:
    return from_bf16(numbers) if dtype == "bf16" else numbers.astype(np.float64)


def random_numbers(
    dtype: str,
    seed: int,
    *shapes: tuple[int, ...],
    scale: float = 1.0,
) -> list[Array]:
    random = np.random.default_rng(seed)
    return [encode(dtype, random.standard_normal(shape) * scale) for shape in shapes]


def close(
    dtype: str,
    found: Array,
    exact: Array,
    magnitude: Array,
) -> bool:
    """Return whether errors are at most half a unit, and 16 float32 roundings of the summands."""
    bits, lowest = DTYPES[dtype]
    allowed = np.abs(exact) * 2.0**-bits + magnitude * 2.0**-20 + 2.0 ** (lowest - 1)
    return bool((np.abs(found - exact) <= allowed).all())


@pytest.fixture(params=GPUS)
def run(kernel_tree: KernelTree, request: pytest.FixtureRequest) -> Run:
    """Return a function that calls a handler of RMSNorm and interprets its kernel."""
    gpu = (request.param, GPUS[request.param])
    return partial(
        call,
        kernel_tree,
        "rms_norm",
        gpu=gpu,
    )


def check_forward(
    run: Run,
    dtype: str,
    x: Array,
    gamma: Array,
    residual: Array | None,
    epsilon: float,
) -> None:
    """Compare y, rstd and the sum with those of float64."""
    rows, n = x.shape
    y_of = (dtype, (rows, n))
    rstd_of = ("f32", (rows,))
    attributes = {"epsilon": epsilon}
    total = decode(dtype, x)
    if residual is None:
        args = [
            (dtype, x),
            (dtype, gamma),
        ]
        y, rstd = run(args, [y_of, rstd_of], attributes)
    else:
        args = [
            (dtype, x),
            (dtype, residual),
            (dtype, gamma),
        ]
        y, added, rstd = run(
            args,
            [y_of, y_of, rstd_of],
            attributes,
            symbol="JaxAiterRmsNormWithAdd",
            seed=n,
        )
        exact_sum = (total + decode(dtype, residual)).astype(np.float32)
        total = decode(dtype, encode(dtype, exact_sum))
        assert (decode(dtype, added) == total).all()
    wanted = 1 / np.sqrt((total * total).mean(axis=1) + np.float32(epsilon))
    exact = total * wanted[:, None] * decode(dtype, gamma)
    assert close("f32", rstd.astype(np.float64), wanted, wanted)
    assert close(dtype, decode(dtype, y), exact, np.abs(exact))


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(("dtype", "n"), SIZES)
def test_forward_matches_float64(
    run: Run,
    dtype: str,
    n: int,
    added: bool,
) -> None:
    x, residual, gamma = random_numbers(dtype, n, (3, n), (3, n), (n,))
    check_forward(
        run,
        dtype,
        x,
        gamma,
        residual if added else None,
        1e-6,
    )


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        ("f32", 1e12),
        ("f32", 1e-25),
        ("f16", 1e4),
        ("f16", 1e-6),
        ("bf16", 1e12),
    ],
)
def test_large_and_small_numbers(
    run: Run,
    dtype: str,
    scale: float,
) -> None:
    (x,) = random_numbers(
        dtype,
        0,
        (2, 250),
        scale=scale,
    )
    (gamma,) = random_numbers(dtype, 1, (250,))
    check_forward(
        run,
        dtype,
        x,
        gamma,
        None,
        1e-12,
    )


@pytest.mark.parametrize(("dtype", "n"), SIZES)
def test_backward_matches_float64(
    run: Run,
    dtype: str,
    n: int,
) -> None:
    rows = 3
    partials = 2
    dy, x, gamma = random_numbers(dtype, n, (rows, n), (rows, n), (n,))
    rstd = (1 / np.sqrt((decode(dtype, x) ** 2).mean(axis=1) + 1e-6)).astype(np.float32)
    args = [
        (dtype, dy),
        (dtype, x),
        (dtype, gamma),
        ("f32", rstd),
    ]
    results = [
        (dtype, (rows, n)),
        ("f32", (partials, n)),
    ]
    dx, dgamma = run(
        args,
        results,
        symbol=BACKWARD,
        seed=n,
    )
    slopes = decode(dtype, dy) * decode(dtype, gamma)
    normed = decode(dtype, x) * rstd[:, None]
    terms = slopes * normed
    exact = (slopes - normed * terms.mean(axis=1, keepdims=True)) * rstd[:, None]
    along = np.abs(terms).mean(axis=1, keepdims=True)
    size = (np.abs(slopes) + np.abs(normed) * along) * rstd[:, None]
    assert close(dtype, decode(dtype, dx), exact, size)
    parts = decode(dtype, dy) * normed
    for first in range(partials):
        own = parts[first::partials]
        found = dgamma[first].astype(np.float64)
        assert close(
            "f32",
            found,
            own.sum(axis=0),
            2 * np.abs(own).sum(axis=0),
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_propagate(run: Run, dtype: str) -> None:
    x = encode(dtype, np.array([[np.nan, 1, 2, 3], [np.inf, 1, 2, 3]]))
    args = [
        (dtype, x),
        (dtype, encode(dtype, np.ones(4))),
    ]
    y, rstd = run(
        args,
        [
            (dtype, (2, 4)),
            ("f32", (2,)),
        ],
        {"epsilon": 1e-6},
    )
    y = decode(dtype, y)
    assert np.isnan([*y[0], y[1, 0], rstd[0]]).all()
    assert (y[1, 1:] == 0).all()
    assert rstd[1] == 0


@pytest.mark.parametrize("n", [7, 8, 2049 * 4])
def test_gradient_of_no_rows_is_zero(run: Run, n: int) -> None:
    none = np.zeros((0, n), np.float32)
    gamma = np.zeros(n, np.float32)
    args = [
        ("f32", none),
        ("f32", none),
        ("f32", gamma),
        ("f32", np.zeros(0, np.float32)),
    ]
    results = [
        ("f32", (0, n)),
        ("f32", (2, n)),
    ]
    _, dgamma = run(
        args,
        results,
        symbol=BACKWARD,
    )
    assert (dgamma == 0).all()
