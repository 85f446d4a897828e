"""Warning about programs that are lowered for AMD GPUs whose target is unknown."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

# The platform is known only when a program is lowered, so an identity, which leaves no
# trace in the program, has a lowering rule for ROCm that warns.
_identity = Primitive("jax_aiter_warned")
_identity.def_impl(lambda array: array)
_identity.def_abstract_eval(lambda kind: kind)


def warned(array: Array) -> Array:
    """Return the array; lowering for ROCm warns that no kernel is used."""
    result: Array = _identity.bind(array)
    return result


@cache
def warn_once() -> None:
    """Warn at the first call."""
    warnings.warn(
        "jax_aiter: a program is lowered for AMD GPUs without kernels, since no AMD GPU"
        " is known here. Set JAX_AITER_TARGET, for example to gfx942.",
        stacklevel=2,
    )


def _lowered(_context: Any, array: Any) -> list[Any]:
    return [array]


def _lowered_for_rocm(context: Any, array: Any) -> list[Any]:
    warn_once()
    return _lowered(context, array)


def _batched(arrays: Any, axes: Any) -> tuple[Array, Any]:
    return warned(arrays[0]), axes[0]


batching.primitive_batchers[_identity] = _batched
mlir.register_lowering(_identity, _lowered)
mlir.register_lowering(_identity, _lowered_for_rocm, platform="rocm")
