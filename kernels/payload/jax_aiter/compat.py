"""Conventions of the package jax-aiter, for programs that were written for it.

Attention always returns a tuple there, and gemm_i8 takes `b` in the order of the
kernels. Import the functions of this module, or set JAX_AITER_COMPAT=1, which gives the
functions of `jax_aiter.mha` and `jax_aiter.gemm_i8` these conventions without a change
of the program. The option is read whenever an operation is traced.
"""

from __future__ import annotations

from typing import Any

from jax import Array

from jax_aiter import gemm_i8 as _gemm_i8
from jax_aiter import mha as _mha

__all__ = ["flash_attn_func", "flash_attn_varlen", "gemm_i8"]


def flash_attn_func(*args: Any, **options: Any) -> tuple[Array, ...]:
    """Compute `jax_aiter.mha.flash_attn_func`; the result is a tuple, also for the output alone."""
    result = _mha.flash_attn_func(*args, **options)
    return result if isinstance(result, tuple) else (result,)


def flash_attn_varlen(*args: Any, **options: Any) -> tuple[Array, ...]:
    """Compute `jax_aiter.mha.flash_attn_varlen`.

    The result is a tuple, also for the output alone.
    """
    result = _mha.flash_attn_varlen(*args, **options)
    return result if isinstance(result, tuple) else (result,)


def gemm_i8(a: Array, b: Array, a_scale: Array, b_scale: Array, bias: Array) -> Array:
    """Compute `jax_aiter.gemm_i8.gemm_i8` with `b` in the order of the kernels."""
    return _gemm_i8.gemm_i8(a, b, a_scale, b_scale, bias, preshuffled=True)
