"""Checks of arguments; each error contains the argument's name, its value and the requirement.

All take the name of the operation, and the name and the value of the argument; `shape` and
`text` are the documented shape, such as "[M, K]". A wrong type is a TypeError, a wrong size a
ValueError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

try:
    from jax.errors import InconclusiveDimensionOperation
except ImportError:  # jax 0.8
    from jax.core import InconclusiveDimensionOperation


def proven(condition: Callable[[], Any]) -> bool | None:
    """Return whether a condition holds; None if it depends on the value of a symbolic size."""
    try:
        return bool(condition())
    except InconclusiveDimensionOperation:
        return None


def static(operation: str, **values: Any) -> None:
    """Check that arguments are Python values; jax.jit makes arrays of numbers."""
    for name, value in values.items():
        if isinstance(value, jax.Array):
            raise TypeError(
                f"{operation}: {name} is an array; it has to be a Python value, one of"
                " the static_argnames of jax.jit."
            )


def rank(
    operation: str,
    name: str,
    array: Any,
    shape: str,
) -> None:
    """Check the number of dimensions."""
    if not hasattr(array, "dtype"):
        raise TypeError(
            f"{operation}: {name} is a {type(array).__name__}; it has to be an array of"
            f" shape {shape}."
        )
    if array.ndim != shape.count(",") + 1:
        raise ValueError(
            f"{operation}: {name} has the shape {list(array.shape)}; it has to be"
            f" {shape}."
        )


def shape(
    operation: str, name: str, array: Any, text: str, wanted: Sequence[int]
) -> None:
    """Check that a shape is `wanted`, which `text` stands for."""
    rank(operation, name, array, text)
    if array.shape != tuple(wanted):
        raise ValueError(
            f"{operation}: {name} has the shape {list(array.shape)}; it has to be"
            f" {text} = {list(wanted)}."
        )


def dtype(
    operation: str,
    name: str,
    array: Any,
    allowed: Sequence[Any],
) -> None:
    """Check a dtype."""
    if not any(array.dtype == jnp.dtype(one) for one in allowed):
        names = ", ".join(jnp.dtype(one).name for one in allowed)
        raise TypeError(
            f"{operation}: {name} has the dtype {array.dtype}; it has to be {names}."
        )


def multiple(
    operation: str,
    name: str,
    value: int,
    factor: int,
) -> None:
    """Check that a size is a positive multiple of a factor."""
    if value % factor or value <= 0:
        raise ValueError(
            f"{operation}: {name} is {value}; it has to be a multiple of {factor}."
        )
