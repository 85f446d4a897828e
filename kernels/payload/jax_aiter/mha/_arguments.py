"""Argument checks for batches and packed sequences."""

from __future__ import annotations

import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_aiter import _check
from jax_aiter.mha._blocks import Config
from jax_aiter.mha._dropout import seed_words

DTYPES = (jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64)


def heads_fit(
    operation: str,
    q: Array,
    k: Array,
    v: Array,
) -> None:
    """Check the last two dimensions of q, k and v, and their dtypes.

    Raises:
        ValueError: heads or head dimensions do not fit.
        TypeError: dtypes do not fit.
    """
    (heads, depth), (key_heads, key_depth) = q.shape[-2:], k.shape[-2:]
    if depth != key_depth or depth == 0:
        raise ValueError(
            f"{operation}: q has head dimension {depth} and k has {key_depth}; they"
            " have to be equal and not 0."
        )
    if v.shape[-2] != key_heads:
        raise ValueError(
            f"{operation}: k has {key_heads} heads and v has {v.shape[-2]}; they have"
            " to be equal."
        )
    if key_heads == 0 or heads % key_heads:
        text = f"{operation}: q has {heads} heads and k has {key_heads}"
        raise ValueError(f"{text}; q has to have a multiple of the heads of k.")
    _check.dtype(operation, "q", q, DTYPES)
    for name, array in (("k", k), ("v", v)):
        _check.dtype(operation, name, array, (q.dtype,))


def config(
    operation: str, depth: int, dropout_p: float, softmax_scale: float | None, seed: Any
) -> tuple[Config, Array]:
    """Return the checked scale and dropout, and the seed as two words.

    Raises:
        ValueError: a number is out of range, or a seed is given without dropout.
        TypeError: softmax_scale or dropout_p is an array.
    """
    _check.static(operation, dropout_p=dropout_p, softmax_scale=softmax_scale)
    if not 0 <= dropout_p < 1:
        raise ValueError(
            f"{operation}: dropout_p is {dropout_p}; it has to be from 0 to less"
            " than 1."
        )
    if seed is not None and dropout_p == 0:
        raise ValueError(
            f"{operation}: dropout_p is 0 and dropout_seed is given; a seed needs"
            " dropout."
        )
    scale = depth**-0.5 if softmax_scale is None else float(softmax_scale)
    if not math.isfinite(scale):
        raise ValueError(
            f"{operation}: softmax_scale is {softmax_scale}; it has to be finite."
        )
    return Config(scale, float(dropout_p)), seed_words(0 if seed is None else seed)


def window(
    operation: str, window_size: tuple[int, int], causal: bool
) -> tuple[int, int]:
    """Return the numbers of keys that a query sees before and after its diagonal, -1 for all.

    Causal: none after.

    Raises:
        ValueError: window_size is not a pair of integers of -1 or more.
    """
    try:
        left, right = map(operator.index, window_size)
    except (TypeError, ValueError) as problem:
        raise ValueError(
            f"{operation}: window_size is {window_size!r}; it has to be (left, right)."
        ) from problem
    if min(left, right) < -1:
        raise ValueError(
            f"{operation}: window_size is {window_size!r}; its numbers have to be 0 or"
            " more, or -1 for no limit."
        )
    return left, 0 if causal else right


def slopes(
    operation: str,
    alibi_slopes: Any,
    batch: int,
    heads: int,
) -> Array | None:
    """Return ALiBi's slopes, [heads] or [batch, heads], or None.

    Raises:
        ValueError: the shape does not fit.
        TypeError: the dtype is neither float32 nor float64.
    """
    if alibi_slopes is None:
        return None
    if getattr(alibi_slopes, "ndim", 1) == 1:
        _check.shape(operation, "alibi_slopes", alibi_slopes, "[heads]", (heads,))
    else:
        sizes = (batch, heads)
        _check.shape(operation, "alibi_slopes", alibi_slopes, "[batch, heads]", sizes)
    _check.dtype(operation, "alibi_slopes", alibi_slopes, (jnp.float32, jnp.float64))
    return jnp.asarray(alibi_slopes)


def cumulative(
    operation: str,
    name: str,
    array: Any,
    count: int | None,
    places: int,
    longest: int = 0,
) -> Array:
    """Return the checked starts of sequences; traced values are checked by shape and dtype only.

    Args:
        operation: name of the operation, for errors.
        name: name of the argument.
        array: [sequences + 1], int32.
        count: number of sequences, or None for any number.
        places: maximum total length of the sequences, which may be symbolic.
        longest: value of max_seqlen; 0 if unset.

    Raises:
        ValueError: the shape or a value does not fit.
        TypeError: the dtype is not int32.
    """
    _check.rank(operation, name, array, "[sequences + 1]")
    starts = array.shape[0]
    enough = _check.proven(lambda: starts >= 2)
    if not enough or (count is not None and starts != count + 1):
        length = "2 or more" if count is None else count + 1
        raise ValueError(
            f"{operation}: {name} has {starts} numbers; it has to have {length}."
        )
    _check.dtype(operation, name, array, (jnp.int32,))
    if not isinstance(array, jax.core.Tracer):
        numbers = np.asarray(array)
        lengths = np.diff(numbers)
        beyond = _check.proven(lambda: int(numbers[-1]) > places)
        if numbers[0] != 0 or (lengths < 0).any() or beyond:
            raise ValueError(
                f"{operation}: {name} is {numbers.tolist()}; it has to increase from 0"
                f" to at most {places}."
            )
        if longest and lengths.max() > longest:
            raise ValueError(
                f"{operation}: the longest sequence of {name} has the length"
                f" {lengths.max()}, but its max_seqlen is {longest}."
            )
    return jnp.asarray(array)
