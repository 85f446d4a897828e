"""Quantised products: their kernels, XLA's code elsewhere, and the order of the weights.

They have no derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import Array

from jax_aiter import _check, _limits
from jax_aiter._choice import Choice, choose
from jax_aiter._errors import NotDifferentiableError
from jax_aiter._native import Arrays, dispatch, together
from jax_aiter._partition import Axes, Rule, partitioned
from jax_aiter._table import AITER, XLA, FfiTarget
from jax_aiter._tuned import Product
from jax_aiter.layouts import shuffle_weight, unshuffle_weight


@dataclass(frozen=True, slots=True)
class Order:
    """Order of the operands for the kernels.

    Attributes:
        shuffle: function of row-major operands; returns them in the kernels' order.
        unshuffle: its inverse.
    """

    shuffle: Callable[..., Arrays]
    unshuffle: Callable[..., Arrays]

    @staticmethod
    def of_weight(layout: tuple[int, int]) -> Order:
        """Return the order whose second operand is `shuffle_weight(weight, layout)`."""

        def shuffle(
            x: Array,
            weight: Array,
            *rest: Array,
        ) -> Arrays:
            return x, shuffle_weight(weight, layout), *rest

        def unshuffle(
            x: Array,
            weight: Array,
            *rest: Array,
        ) -> Arrays:
            return x, unshuffle_weight(weight, layout), *rest

        return Order(shuffle, unshuffle)


def quantised(
    target: FfiTarget,
    kernel: Callable[..., Array],
    reference: Callable[..., Array],
    order: Order,
    rule: Rule,
    shuffled_rule: Rule | None = None,
    group: int = 1,
) -> Callable[..., Array]:
    """Return function(shuffled, depth, *operands), which chooses a backend and computes a product.

    It raises NotDifferentiableError when it is differentiated.

    Args:
        target: custom call of the kernels; the operation has the same name.
        kernel: function of a choice and of operands in the kernels' order.
        reference: function of row-major operands.
        order: the kernels' order.
        rule: dimensions of the operands and of the result, divided into parts that the
            kernels support.
        shuffled_rule: the same for operands in the kernels' order; None if it is equal.
        group: number of rows that the kernels write as a whole.
    """
    operation = target.name.removeprefix("jax_aiter_")

    def lowered(
        choice: Choice,
        shuffled: bool,
        *operands: Array,
    ) -> Array:
        def on_gpu(*operands: Array) -> Array:
            ordered = operands if shuffled else order.shuffle(*operands)
            return kernel(choice, *ordered)

        def elsewhere(*operands: Array) -> Array:
            plain = order.unshuffle(*operands) if shuffled else operands
            return reference(*plain)

        return dispatch(choice, on_gpu, elsewhere, *operands)

    def divided(
        choice: Choice,
        shuffled: bool,
        *operands: Array,
    ) -> Array:
        def local(_axes: Axes, *operands: Array) -> Arrays:
            return (lowered(choice, shuffled, *operands),)

        own = shuffled_rule if shuffled and shuffled_rule else rule
        by_rule = choice.backend != XLA
        return partitioned(own, local, *operands, by_rule=by_rule)[0]

    def refuse(
        _choice: Any,
        _shuffled: Any,
        _primals: Any,
        _tangents: Any,
    ) -> Any:
        raise NotDifferentiableError(
            f"{operation} has no derivative: its operands are quantised. Apply"
            " jax.lax.stop_gradient to its arguments, or differentiate"
            " jax_aiter.gemm.gemm of the dequantised operands."
        )

    compiled = jax.jit(divided, static_argnums=(0, 1))
    wrapped = partial(jax.custom_jvp, nondiff_argnums=(0, 1))(compiled)
    wrapped.defjvp(refuse)

    def product(
        shuffled: bool,
        depth: int,
        *operands: Array,
    ) -> Array:
        _check.static(operation, preshuffled=shuffled)
        rows, columns = operands[0].shape[0], operands[1].shape[0]
        obstacle = _limits.obstacle(target, m=rows + -rows % group, n=columns, k=depth)
        choice = choose(
            operation,
            obstacles={AITER: obstacle},
            product=Product(rows, columns, depth),
        )
        return wrapped(choice, shuffled, *together(*operands))

    return product
