"""Fixtures of the checks.

A plugin, so that pytest ignores them outside of the environment with jax.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import jax
import pytest
from jax_aiter import _choice, _info, _loader, _native

from kernels.tests.checks.kernels import all_modules


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of checks that run with the oldest and the newest jax."""
    config.addinivalue_line(
        "markers",
        "releases: checks what goes through interfaces that a release of JAX may change",
    )


@pytest.fixture(autouse=True)
def _no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("JAX_AITER_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def x64() -> Iterator[None]:
    """Make jax compute in float64."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder _kernels with every module, whose handlers run on the CPU."""
    return all_modules(tmp_path_factory.mktemp("wheel") / "_kernels")


@pytest.fixture
def installed(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make the package use these kernels."""
    monkeypatch.setattr(_loader, "FOLDER", kernels)
    monkeypatch.setattr(_loader, "loader", cache(lambda: _loader_of(kernels)))
    monkeypatch.setattr(_choice, "loader", _loader.loader)
    monkeypatch.setattr(_info, "loader", _loader.loader)
    # Cached traces of other kernels are not valid for these.
    jax.clear_caches()
    yield kernels
    jax.clear_caches()


@pytest.fixture
def on_cpu(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run kernels on the CPU, where handlers.c computes the results of the GPU."""
    monkeypatch.setattr(_native, "PLATFORM", "cpu")
    monkeypatch.setattr(_loader, "PLATFORM", "cpu")
    monkeypatch.setattr(_loader.loader(), "_libraries", {})
    monkeypatch.setenv("JAX_AITER_TARGET", "gfx942")


@cache
def _loader_of(folder: Path) -> _loader.Loader:
    # A process can register a handler once.
    return _loader.Loader(folder)
