"""Settings of the PEP 517 backend of jax_aiter."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

import pytest

from core.errors import RequestError


@pytest.fixture(scope="module")
def backend() -> Any:
    """Import the backend; without the distutils of setuptools, which would make each later import of pip warn."""
    module = importlib.import_module("backend")
    for name in [name for name in sys.modules if name.partition(".")[0] == "distutils"]:
        del sys.modules[name]
    return module


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"target": "gfx942"}, "jax_aiter has no setting target. Valid settings: targets, modules"),
        ({"--build-option": "--targets=gfx942"}, "jax_aiter has no setting --build-option"),
        ({"files": "x"}, "files and version need each other"),
        ({"version": "1"}, "files and version need each other"),
        ({"allow-partial": "yes"}, "allow-partial is invalid: 'yes'. Write true or false"),
    ],
)
@pytest.mark.parametrize("hook", ["get_requires_for_build_wheel", "get_requires_for_build_sdist"])
def test_backend_refuses_invalid_settings(backend: Any, hook: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=re.escape(said)):
        getattr(backend, hook)(settings)


def test_backend_joins_repeated_settings(backend: Any) -> None:
    with backend._hook({"targets": ["gfx942", "gfx1100"]}):
        assert backend.arguments()["version"].endswith("+gfx942.gfx1100")
