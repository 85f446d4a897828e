"""Fixtures of the checks: a plugin, so that pytest outside of the environment with jax does not meet it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def _no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("JAX_AITER_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def x64() -> Iterator[None]:
    """Let jax compute in float64."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
