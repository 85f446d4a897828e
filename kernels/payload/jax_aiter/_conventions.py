"""The option JAX_AITER_COMPAT, which selects the conventions of the package jax-aiter."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from jax import Array

from jax_aiter._errors import BackendError

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
