"""What the quantised products share: no derivative, the choice, the lowering."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import Array

from jax_aiter._choice import Choice
from jax_aiter._errors import NotDifferentiableError


def quantised(operation: str, lowered: Callable[..., Array]) -> Callable[..., Array]:
    """A function of a choice and arrays that jax.jit compiles and that refuses to be differentiated.

    Args:
        operation: for the error.
        lowered: takes the choice first.
    """

    def refuse(_choice: Choice, _primals: Any, _tangents: Any) -> Any:
        raise NotDifferentiableError(
            f"{operation} has no derivative: its operands are quantised. Keep it out of what is differentiated, by"
            " jax.lax.stop_gradient on its arguments, or differentiate jax_aiter.gemm.gemm of the dequantised operands."
        )

    function = partial(jax.custom_jvp, nondiff_argnums=(0,))(jax.jit(lowered, static_argnums=0))
    function.defjvp(refuse)
    result: Callable[..., Array] = function
    return result
