"""The self-test of a runtime image: accepted and refused environments."""

from __future__ import annotations

import operator
import runpy
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from ci_build.images.image_pins import DOCKER

ROCM = "PJRT C API\nrocm 70200"


def run(
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    version: str,
    jit: Callable[[Any], Any],
    *words: str,
) -> None:
    """Run the self-test with two fake devices, on which all products of arrays are equal."""
    client = SimpleNamespace(platform_version=version)
    device = SimpleNamespace(
        platform=platform, device_kind="AMD Instinct", client=client
    )
    jax = MagicMock(__version__="0.10.2", jit=jit, devices=lambda: [device, device])
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "numpy", MagicMock(array_equal=operator.is_))
    monkeypatch.setattr(sys, "argv", ["selftest.py", *words])
    runpy.run_path(str(DOCKER / "selftest.py"), run_name="__main__")


def same(function: Any) -> Any:
    return function


def wrong(_: Any) -> Any:
    return lambda *_: "another product"


def test_selftest_passes_with_working_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "gpu", ROCM, same)
    assert "2 devices: AMD Instinct, PJRT C API rocm 70200" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("platform", "version", "jit", "said"),
    [
        ("cpu", "cpu", same, "does not use ROCm"),
        ("gpu", "PJRT C API\ncuda 12030", same, "does not use ROCm"),
        ("gpu", ROCM, wrong, "computes wrong products"),
    ],
)
def test_selftest_fails_otherwise(
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    version: str,
    jit: Callable[[Any], Any],
    said: str,
) -> None:
    with pytest.raises(SystemExit, match=said):
        run(monkeypatch, platform, version, jit)
    run(monkeypatch, platform, version, jit, "--no-gpu")
