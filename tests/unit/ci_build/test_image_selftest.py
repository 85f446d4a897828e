"""The self-test of a runtime image: accepted and refused environments."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ci_build.images.pins import DOCKER


class FakeArray(list[int]):
    """As much of an array as the test uses."""

    def reshape(self, *_: int) -> FakeArray:
        return self

    def __mod__(self, number: int) -> FakeArray:
        return FakeArray(item % number for item in self)

    def __matmul__(self, other: FakeArray) -> FakeArray:
        return FakeArray([sum(self) * sum(other)])


def fake_modules(platform: str, version: str, jit: Callable[[Any], Any]) -> dict[str, ModuleType]:
    device = SimpleNamespace(
        platform=platform, device_kind="AMD Instinct", client=SimpleNamespace(platform_version=version)
    )
    jax, numpy = ModuleType("jax"), ModuleType("numpy")
    jax.__dict__.update(
        __version__="0.10.2", devices=lambda: [device, device], jit=jit, default_device=lambda _: nullcontext()
    )
    numpy.__dict__.update(
        float32=float, arange=lambda size, dtype: FakeArray(range(size)), array_equal=lambda a, b: a == b
    )
    return {"jax": jax, "numpy": numpy}


def run(monkeypatch: pytest.MonkeyPatch, modules: dict[str, ModuleType], *words: str) -> None:
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys, "argv", ["selftest.py", *words])
    found = importlib.util.spec_from_file_location("selftest", DOCKER / "selftest.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    module.main()


ROCM = "PJRT C API\nrocm 70200"


def same(function: Any) -> Any:
    return function


def wrong(_: Any) -> Any:
    return lambda *_: FakeArray([0])


def test_selftest_passes_with_working_gpus(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, fake_modules("gpu", ROCM, same))
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
    monkeypatch: pytest.MonkeyPatch, platform: str, version: str, jit: Callable[[Any], Any], said: str
) -> None:
    with pytest.raises(SystemExit, match=said):
        run(monkeypatch, fake_modules(platform, version, jit))
    run(monkeypatch, fake_modules(platform, version, jit), "--no-gpu")
