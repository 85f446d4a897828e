"""Shared parts of the checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, settings
from jax.sharding import AxisType, Mesh

# No deadline, since the machine may be busy; few examples, since XLA compiles for every
# shape.
settings.register_profile(
    "jax",
    deadline=None,
    max_examples=12,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("jax")

TOLERANCE = {
    "float64": 1e-12,
    "float32": 2e-6,
    "float16": 2e-3,
    "bfloat16": 1.6e-2,
}
"""What a result may differ by, relative to its largest: a few roundings of the dtype."""


def made(
    seed: int,
    shape: Sequence[int],
    dtype: Any = jnp.float32,
) -> Any:
    """Return an array of normally distributed numbers."""
    return jnp.asarray(np.random.default_rng(seed).standard_normal(tuple(shape)), dtype)


def wide(array: Any) -> np.ndarray[Any, Any]:
    """Return the same numbers as float64."""
    return np.asarray(array, np.float64)


def compare(
    found: Any,
    wanted: Any,
    tolerance: float | None = None,
) -> None:
    """Compare two trees of arrays; the default tolerance is that of the dtype of the result."""
    leaves = jax.tree.leaves(found)
    others = jax.tree.leaves(wanted)
    assert len(leaves) == len(others)
    for one, other in zip(
        leaves,
        others,
        strict=True,
    ):
        assert one.shape == other.shape
        allowed = TOLERANCE[str(one.dtype)] if tolerance is None else tolerance
        one = wide(one)
        other = wide(other)
        assert np.isfinite(one).all()
        assert np.abs(one - other).max(initial=0) <= allowed * max(
            np.abs(other).max(initial=0), 1e-3
        )


def compare_gradients(
    function: Callable[..., Any],
    *arrays: Any,
    step: float = 1e-6,
) -> Any:
    """Compare gradients with finite differences along random directions, in float64.

    Args:
        function: function that returns an array or a tree of arrays, and values that
            are not differentiated.
        arrays: arguments in float64.
        step: step of the differences.

    Returns:
        Results of the function.
    """
    assert all(array.dtype == jnp.float64 for array in arrays)

    def at(*moved: Any) -> tuple[Any, Any, Any]:
        out, pull, more = jax.vjp(
            function,
            *moved,
            has_aux=True,
        )
        weights = jax.tree.map(lambda part: made(91, part.shape, part.dtype), out)
        total = sum(
            jax.tree.leaves(jax.tree.map(lambda a, b: (a * b).sum(), out, weights))
        )
        return total, pull(weights), (out, more)

    both = jax.jit(at)
    _, gradients, found = both(*arrays)
    for place, (array, gradient) in enumerate(
        zip(
            arrays,
            gradients,
            strict=True,
        )
    ):
        for seed in (7, 8):
            direction = made(seed, array.shape, array.dtype)
            moved = [
                (*arrays[:place], array + sign * step * direction, *arrays[place + 1 :])
                for sign in (1, -1)
            ]
            slope = float(both(*moved[0])[0] - both(*moved[1])[0]) / (2 * step)
            assert abs(slope - float((gradient * direction).sum())) <= 1e-6 * max(
                abs(slope), 1.0
            )
    return found


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with the gradients of the sum of its result's squares, as one program."""

    def both(*arrays: Any) -> tuple[Any, Any]:
        out, pull = jax.vjp(function, *arrays)
        return out, pull(jax.tree.map(lambda part: 2 * part, out))

    return both


def mesh() -> Mesh:
    """Return a mesh of all 8 virtual devices along the axis `d`."""
    assert len(jax.devices()) == 8
    return jax.make_mesh(
        (8,),
        ("d",),
        axis_types=(AxisType.Auto,),
    )
