"""Attribution of jax's failure to start, and the check of devices without jax."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from core.errors import ProcessError
from core.process import HostRunner, ProcessResult
from promotion.gates.device import preflight_control
from promotion.gates.device.expected_machine import ExpectedMachine
from promotion.gates.device.lease import JaxPlatform
from promotion.gates.device.preflight import is_fault_of_set, query_control

PLUGIN = "jax_plugins/xla_rocm7/xla_rocm_plugin.so"


EXPECTED = ExpectedMachine(
    platform=JaxPlatform.ROCM,
    targets=("gfx942",),
    count=2,
    libraries={
        PLUGIN: "",
        "jax_rocm7_plugin/_linalg.so": "",
        "jax_rocm7_plugin/_rnn.cpython-312.so": "",
    },
    rocm_version="7.2.0",
)
ON_CPU = replace(EXPECTED, platform=JaxPlatform.CPU)


def test_failure_on_cpu_needs_no_devices() -> None:
    text = "RuntimeError: Unable to initialize backend 'cpu'"
    assert is_fault_of_set(text, ON_CPU, lambda: "no driver")


def test_failure_on_cuda_belongs_to_the_machine() -> None:
    on_cuda = replace(EXPECTED, platform=JaxPlatform.CUDA)
    assert not is_fault_of_set("RuntimeError: no backend", on_cuda, lambda: "")


class FakeDriver:
    """Functions of HIP that fill memory, or return errors.

    Like in C, results are written to addresses.
    """

    def __init__(
        self,
        fails: str = "",
        *,
        count: int = 2,
        wrong: bool = False,
    ) -> None:
        self.fails = fails
        self.count = count
        self.wrong = wrong

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            if name == self.fails:
                return 700
            if name == "hipGetDeviceCount":
                arguments[0]._obj.value = self.count
            if name == "hipMemcpy":
                arguments[0].raw = bytes([0x5A ^ self.wrong]) * len(arguments[0].raw)
            return 0

        return call


@pytest.mark.parametrize(
    ("driver", "answer"),
    [
        (FakeDriver(), {"devices": 2, "error": ""}),
        (FakeDriver(count=0), {"devices": 0, "error": "the driver has no devices"}),
        (
            FakeDriver(wrong=True),
            {"devices": 0, "error": "memory that a device filled has other contents"},
        ),
        (FakeDriver("hipMalloc"), {"devices": 0, "error": "hipMalloc returned 700"}),
    ],
)
def test_control_checks_each_device_without_jax(
    driver: FakeDriver,
    answer: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def load(name: str) -> FakeDriver:
        if name == "absent":
            raise OSError("absent: cannot open shared object file")
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert preflight_control.main(["absent", "there"]) == answer
    assert (
        preflight_control.main(["absent"])["error"]
        == "absent: cannot open shared object file"
    )


class FakeChild(HostRunner):
    """Runner whose processes answer with a line of JSON, or fail."""

    def __init__(self, line: str) -> None:
        super().__init__({})
        self.line = line
        self.argv: tuple[str, ...] = ()

    def run(self, argv: Any, **_: Any) -> ProcessResult:
        self.argv = tuple(argv)
        if not self.line:
            raise ProcessError("python failed with signal SIGSEGV.")
        return ProcessResult(returncode=0, stdout=f"noise\n{self.line}\n")


def test_query_control_prefers_the_hip_of_jax() -> None:
    child = FakeChild('{"devices": 1, "error": ""}')
    hip = "/venv/lib/libamdhip64.so.7.14.0"
    assert query_control(child, ("python",), {}, "7.2.0", ["/lib/libc.so.6", hip]) == ""
    assert child.argv[2:] == (hip, "libamdhip64.so.7", "/opt/rocm/lib/libamdhip64.so.7")
    assert query_control(child, ("python",), {}, "10.1.0") == ""
    assert child.argv[2:] == ("libamdhip64.so.7", "/opt/rocm/lib/libamdhip64.so.7")
    for line, said in (("", "SIGSEGV"), ("no json", "printed no result")):
        assert said in query_control(FakeChild(line), ("python",), {}, "7.2.0")
