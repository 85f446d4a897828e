"""Checks of a worker's devices after a test, and the record of lost workers.

The drivers are fakes whose functions return the codes of real drivers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promotion.gates.device.plugin import device_check
from promotion.gates.device.plugin import worker_hooks as worker
from promotion.gates.device.plugin.device_check import LASTING, Driver


class FakeLibrary:
    """CUDA's or HIP's functions for two devices.

    As in real drivers, a poisoned context fails every call.

    Args:
        code: result of the synchronization of device 1.
        used: whether the process uses the devices.
    """

    def __init__(
        self,
        code: int,
        *,
        used: bool = True,
        started: bool = True,
    ) -> None:
        self.code = code
        self.used = used
        self.started = started
        self.calls: list[str] = []
        self.current = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            if not self.started:
                return 3
            if name in ("cuDeviceGetCount", "hipGetDeviceCount"):
                arguments[0]._obj.value = 2
            elif name == "cuDeviceGet":
                arguments[0]._obj.value = arguments[1]
            elif name == "hipSetDevice":
                self.current = getattr(arguments[0], "value", arguments[0])
            elif name.endswith("PrimaryCtxGetState"):
                arguments[2]._obj.value = int(self.used)
            elif name == "cuDevicePrimaryCtxRetain":
                self.current = arguments[1].value
            elif (
                name in ("cuCtxSynchronize", "hipDeviceSynchronize")
                and self.current == 1
            ):
                return self.code
            elif name in ("cuMemGetInfo_v2", "hipMemGetInfo"):
                arguments[0]._obj.value = 5
            elif name == "cuGetErrorName":
                arguments[1]._obj.value = b"CUDA_ERROR_ILLEGAL_ADDRESS"
            elif name == "hipGetErrorName":
                return b"hipErrorIllegalAddress"
            return 0

        # ctypes keeps the type of a function's result as an attribute of the function.
        return call


def with_library(
    monkeypatch: pytest.MonkeyPatch, name: str, library: FakeLibrary
) -> None:
    def load(asked: str, mode: int) -> FakeLibrary:
        assert mode & os.RTLD_NOLOAD
        if asked != name:
            raise OSError(f"{asked}: cannot open shared object file")
        return library

    monkeypatch.setattr(device_check, "_load", load)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("libcuda.so.1", "CUDA_ERROR_ILLEGAL_ADDRESS (700)"),
        ("libamdhip64.so.7", "hipErrorIllegalAddress (700)"),
    ],
)
def test_device_error_names_poisoned_context(
    monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    with_library(monkeypatch, name, FakeLibrary(700))
    assert Driver().error == said
    for library in (
        FakeLibrary(0),
        FakeLibrary(700, used=False),
        FakeLibrary(700, started=False),
    ):
        with_library(monkeypatch, name, library)
        assert Driver().error == ""
    with_library(monkeypatch, name, FakeLibrary(0))
    assert Driver().free == 10
    # A device that the process does not use is neither started nor waited for.
    with_library(monkeypatch, name, unused := FakeLibrary(0, used=False))
    assert Driver().error == ""
    assert not {"cuDevicePrimaryCtxRetain", "hipDeviceSynchronize"} & set(unused.calls)


@pytest.mark.parametrize(
    "text",
    [
        "XlaRuntimeError: INTERNAL: hipErrorIllegalAddress",
        "hipErrorECCNotCorrectable",
        "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION",
    ],
)
def test_lasting_errors_are_recognised(text: str) -> None:
    assert LASTING.search(text)
    assert not LASTING.search(
        "CUDA_ERROR_INVALID_VALUE hipErrorInvalidValue CUDA_ERROR_OUT_OF_MEMORY"
        " AssertionError"
    )


IDS = st.sets(
    st.builds(
        "tests/{}_test.py::test_{}".format, st.integers(0, 9), st.integers(0, 99)
    ),
    max_size=200,
)


@given(IDS, st.integers(1, 9))
def test_each_test_is_in_one_shard(tests: set[str], count: int) -> None:
    parts = [worker.choose(tests, (), number, count) for number in range(1, count + 1)]
    assert sorted(chain.from_iterable(parts)) == sorted(tests)


def test_listed_tests_leave_out_others_of_their_files() -> None:
    tests = ["a.py::x", "a.py::y", "b.py::z"]
    assert worker.choose(tests, ["a.py::y"], 1, 1) == ["a.py::y", "b.py::z"]
