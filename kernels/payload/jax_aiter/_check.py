"""Checks of arguments; each error contains the argument's name, its value and the requirement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def rank(operation: str, name: str, array: Any, shape: str) -> None:
    """Check the number of dimensions.

    Args:
        operation: name of the operation, for messages.
        name: name of the argument.
        array: value of the argument.
        shape: documented shape, such as "[M, K]".

    Raises:
        TypeError: the argument is not an array.
        ValueError: the array has another number of dimensions.
    """
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise TypeError(f"{operation}: {name} is a {type(array).__name__}; it has to be an array of shape {shape}.")
    if array.ndim != shape.count(",") + 1:
        raise ValueError(f"{operation}: {name} has the shape {list(array.shape)}; it has to be {shape}.")


def equal(operation: str, name: str, found: Sequence[int], wanted: Sequence[int], shape: str) -> None:
    """Check a shape.

    Raises:
        ValueError: the array has another shape.
    """
    if tuple(found) != tuple(wanted):
        text = f"{operation}: {name} has the shape {list(found)}; it has to be {shape} = {list(wanted)}."
        raise ValueError(text)


def dtype(operation: str, name: str, array: Any, allowed: Sequence[Any]) -> None:
    """Check a dtype.

    Raises:
        TypeError: the dtype is not allowed.
    """
    if not any(array.dtype == jnp.dtype(one) for one in allowed):
        names = ", ".join(jnp.dtype(one).name for one in allowed)
        raise TypeError(f"{operation}: {name} has the dtype {array.dtype}; it has to be {names}.")


def multiple(operation: str, name: str, value: int, factor: int) -> None:
    """Check that a size is a positive multiple of a factor.

    Raises:
        ValueError: the size is not positive or not a multiple.
    """
    if value % factor or value <= 0:
        raise ValueError(f"{operation}: {name} is {value}; it has to be a multiple of {factor}.")


def tables(operation: str, sequences: int, block_tables: Any, context_lens: Any, page: int) -> None:
    """Check the pages and lengths of sequences; traced lengths are checked by shape and dtype only.

    Raises:
        ValueError: a shape does not fit, or a length is not from 0 to the tokens of a row of pages.
        TypeError: a dtype is not int32.
    """
    rank(operation, "block_tables", block_tables, "[sequences, W]")
    equal(operation, "block_tables", block_tables.shape[:1], (sequences,), "[sequences, ...]")
    rank(operation, "context_lens", context_lens, "[sequences]")
    equal(operation, "context_lens", context_lens.shape, (sequences,), "[sequences]")
    for name, array in (("block_tables", block_tables), ("context_lens", context_lens)):
        dtype(operation, name, array, (jnp.int32,))
    if not isinstance(context_lens, jax.core.Tracer) and sequences:
        lengths, most = np.asarray(context_lens), block_tables.shape[1] * page
        if lengths.min() < 0 or lengths.max() > most:
            text = f"{operation}: context_lens has numbers from {lengths.min()} to {lengths.max()}"
            raise ValueError(f"{text}; they have to be from 0 to W * page = {most}.")


def first_failing(conditions: Sequence[tuple[bool, str]]) -> str:
    """Return the text of the first false condition, or an empty text."""
    return next((text for holds, text in conditions if not holds), "")
