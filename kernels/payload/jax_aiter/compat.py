"""Conventions of the package jax-aiter, for programs that were written for it.

Attention always returns a tuple there, and gemm_i8 takes `b` in the order of the
kernels. Import the functions of this module, or set JAX_AITER_COMPAT=1, which gives the
functions of `jax_aiter.mha` and `jax_aiter.gemm_i8` these conventions without a change
of the program. The option is read whenever an operation is traced.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from jax import Array

from jax_aiter._errors import BackendError

__all__ = ["OPTION", "enabled", "flash_attn_func", "flash_attn_varlen", "gemm_i8"]

OPTION = "JAX_AITER_COMPAT"


def enabled(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether JAX_AITER_COMPAT selects the conventions of jax-aiter.

    Raises:
        BackendError: the value is neither 0 nor 1.
    """
    value = environment.get(OPTION, "")
    if value not in ("", "0", "1"):
        raise BackendError(f"{OPTION}={value} is invalid. Use 0 or 1.")
    return value == "1"


def results(values: Sequence[Array]) -> Any:
    """Return several results as a tuple; a single one is a tuple only under JAX_AITER_COMPAT=1."""
    return tuple(values) if len(values) > 1 or enabled() else values[0]


def flash_attn_func(*args: Any, **options: Any) -> tuple[Array, ...]:
    """Compute `jax_aiter.mha.flash_attn_func`; the result is a tuple, also for the output alone."""
    # Imported here, since that module imports this one.
    from jax_aiter.mha import flash_attn_func as function

    return _tuple(function(*args, **options))


def flash_attn_varlen(*args: Any, **options: Any) -> tuple[Array, ...]:
    """Compute `jax_aiter.mha.flash_attn_varlen`.

    The result is a tuple, also for the output alone.
    """
    # Imported here, since that module imports this one.
    from jax_aiter.mha import flash_attn_varlen as function

    return _tuple(function(*args, **options))


def gemm_i8(a: Array, b: Array, a_scale: Array, b_scale: Array, bias: Array) -> Array:
    """Compute `jax_aiter.gemm_i8.gemm_i8` with `b` in the order of the kernels."""
    # Imported here, since that module imports this one.
    from jax_aiter.gemm_i8 import gemm_i8 as function

    return function(a, b, a_scale, b_scale, bias, preshuffled=True)


def _tuple(result: Any) -> tuple[Array, ...]:
    return result if isinstance(result, tuple) else (result,)
