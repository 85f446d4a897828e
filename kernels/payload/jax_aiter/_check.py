"""Checks of arguments; each error names the argument, its value and the requirement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp


def rank(operation: str, name: str, array: Any, shape: str) -> None:
    """Check the number of dimensions.

    Args:
        operation: whose argument it is.
        name: of the argument.
        array: that was passed.
        shape: as documented, such as "[M, K]".

    Raises:
        TypeError: it is no array.
        ValueError: it has another number of dimensions.
    """
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise TypeError(f"{operation}: {name} is a {type(array).__name__}; it has to be an array of shape {shape}.")
    if array.ndim != shape.count(",") + 1:
        raise ValueError(f"{operation}: {name} has the shape {list(array.shape)}; it has to be {shape}.")


def equal(operation: str, name: str, found: Sequence[int], wanted: Sequence[int], shape: str) -> None:
    """Check a shape.

    Raises:
        ValueError: it is another one.
    """
    if tuple(found) != tuple(wanted):
        text = f"{operation}: {name} has the shape {list(found)}; it has to be {shape} = {list(wanted)}."
        raise ValueError(text)


def dtype(operation: str, name: str, array: Any, allowed: Sequence[Any]) -> None:
    """Check a dtype.

    Raises:
        TypeError: it is none of those allowed.
    """
    if not any(array.dtype == jnp.dtype(one) for one in allowed):
        names = ", ".join(jnp.dtype(one).name for one in allowed)
        raise TypeError(f"{operation}: {name} is of {array.dtype}; it can be {names}.")


def multiple(operation: str, name: str, value: int, factor: int) -> None:
    """Check that a size is a multiple.

    Raises:
        ValueError: it is none, or zero.
    """
    if value % factor or value <= 0:
        raise ValueError(f"{operation}: {name} is {value}; it has to be a multiple of {factor}.")


def first_failing(conditions: Sequence[tuple[bool, str]]) -> str:
    """Return the text of the first condition that does not hold, or an empty text."""
    return next((text for holds, text in conditions if not holds), "")
