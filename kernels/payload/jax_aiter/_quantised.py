"""Wrapper of quantised products, which have no derivative."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import Array

from jax_aiter._choice import Choice
from jax_aiter._errors import NotDifferentiableError
from jax_aiter._partition import Axes, Rule, partitioned
from jax_aiter._table import XLA


def quantised(
    operation: str, lowered: Callable[..., Array], rule: Rule
) -> Callable[..., Array]:
    """Return a jit-compiled function that raises an error when differentiated.

    Args:
        operation: name for the error.
        lowered: function whose first argument is the choice.
        rule: dimensions of the arrays and of the result. Parts have sizes that the
            kernels support.
    """

    def divided(choice: Choice, *operands: Array) -> Array:
        def local(_axes: Axes, *operands: Array) -> tuple[Array, ...]:
            return (lowered(choice, *operands),)

        return partitioned(rule, local, *operands, by_rule=choice.backend != XLA)[0]

    def refuse(_choice: Any, _primals: Any, _tangents: Any) -> Any:
        text = (
            f"{operation} has no derivative: its operands are quantised. Apply"
            " jax.lax.stop_gradient to its arguments"
        )
        raise NotDifferentiableError(
            f"{text}, or differentiate jax_aiter.gemm.gemm of the dequantised operands."
        )

    wrapped = partial(jax.custom_jvp, nondiff_argnums=(0,))(
        jax.jit(divided, static_argnums=0)
    )
    wrapped.defjvp(refuse)
    result: Callable[..., Array] = wrapped
    return result
