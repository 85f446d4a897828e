"""Attribution of jax's failure to start, to the set or to the machine, and the check of devices without jax."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.errors import ProcessError
from core.process import HostRunner, ProcessResult
from promotion.gates.device import preflight_control
from promotion.gates.device.blame import SET_UNUSABLE, Control, query_control
from promotion.gates.device.expected_machine import PREFIX
from promotion.gates.device.lease import JaxPlatform
from promotion.gates.device.preflight import check_jax
from tests.unit.promotion.test_device_machine import EXPECTED, PLUGIN, sick, site_with
from wheelkit.rocm_manifest import RocmLibrary


def fit() -> str:
    return ""


NO_BACKEND = "RuntimeError: Unable to initialize backend 'rocm': INTERNAL: the plugin is broken"
UNDEFINED = "ImportError: /site/jax_rocm7_plugin/_linalg.so: undefined symbol: hipsolverOld"


def codes(answer: Mapping[str, Any], control: Control = fit, **changes: Any) -> dict[str, str]:
    """Return the name and the code of each failed preflight check of jax."""
    checks = check_jax(answer, replace(EXPECTED, **changes), control)
    return {check.name.removeprefix(PREFIX): check.findings[0].code for check in checks if check.failed}


@pytest.mark.parametrize(
    ("error", "stage", "control", "code"),
    [
        # jaxlib refuses a jax that it does not fit, before any device is used.
        ("RuntimeError: jaxlib version 0.9.0 is newer than jax 0.8.1", "import", sick, SET_UNUSABLE),
        (UNDEFINED, "import", sick, SET_UNUSABLE),
        (NO_BACKEND, "devices", fit, SET_UNUSABLE),
        (NO_BACKEND, "devices", sick, "environment"),
        ("FAILED_PRECONDITION: No visible GPU devices.", "devices", fit, "environment"),
        ("MemoryError: Cannot allocate memory", "import", fit, "environment"),
        ("ImportError: librocblas.so.5: cannot open shared object file: No such file", "import", fit, "environment"),
        ("ImportError: libforeign.so.1: cannot open shared object file: No such file", "import", fit, SET_UNUSABLE),
        (f"ImportError: {PLUGIN}: cannot open shared object file: No such file", "devices", sick, SET_UNUSABLE),
    ],
)
def test_check_jax_attributes_failed_start(error: str, stage: str, control: Control, code: str) -> None:
    rocm = {"librocblas.so.5": RocmLibrary(soname="librocblas.so.5", path="lib/librocblas.so.5", symbols={}, size=1)}
    answer = {"error": error, "stage": stage, "libraries": []}
    assert codes(answer, control, libraries={PLUGIN: ""}, rocm=rocm) == {"platform": code}
    assert codes(answer, control, libraries={PLUGIN: ""}, platform=JaxPlatform.CPU, rocm=rocm)["platform"] == (
        SET_UNUSABLE if code == "environment" and error == NO_BACKEND else code
    )


@pytest.mark.parametrize(("version", "code"), [("7.2.1", SET_UNUSABLE), ("7.0.2", "environment")])
def test_check_jax_does_not_blame_set_for_other_rocm(tmp_path: Path, version: str, code: str) -> None:
    expected, said = site_with(tmp_path, version)
    answer = {"error": UNDEFINED, "stage": "devices", "libraries": said["libraries"]}
    (check,) = check_jax(answer, expected, fit)
    assert check.findings[0].code == code
    assert ("ROCm 7.0.2 was loaded; the set was built with 7.2.0" in check.findings[0].message) is (version == "7.0.2")


def test_check_jax_attributes_failed_kernels(tmp_path: Path) -> None:
    expected, said = site_with(tmp_path)
    first, second = ({**device, "kernel": "XlaRuntimeError: INTERNAL: bad code object"} for device in said["devices"])

    def found(devices: Sequence[Mapping[str, Any]], control: Control) -> dict[str, str]:
        checks = check_jax({**said, "devices": devices}, expected, control)
        return {check.name.removeprefix(PREFIX): check.findings[0].code for check in checks if check.failed}

    both = ("kernel on device 0", "kernel on device 1")
    assert found([first, second], fit) == dict.fromkeys(both, SET_UNUSABLE)
    assert found([first, second], sick) == dict.fromkeys(both, "environment")
    # A set that fails on one of several equal devices is not the cause.
    assert found([first, said["devices"][1]], fit) == {both[0]: "environment"}
    broken = {**first, "kernel": "XlaRuntimeError: hipErrorECCNotCorrectable"}
    assert found([broken, broken], fit) == {both[0]: "environment", "kernel on device 0": "environment"}


def test_check_jax_imports_extension_modules(tmp_path: Path) -> None:
    expected, said = site_with(tmp_path)
    libraries = {**expected.libraries, "jax_rocm7_plugin/_linalg.so": "", "jax_rocm7_plugin/_rnn.cpython-312.so": ""}
    expected = replace(expected, libraries=libraries)
    assert expected.modules == ("jax_rocm7_plugin._linalg", "jax_rocm7_plugin._rnn")
    assert replace(expected, platform=JaxPlatform.CPU).modules == ()
    (check,) = (
        check
        for check in check_jax({**said, "modules": {expected.modules[0]: UNDEFINED}}, expected, sick)
        if check.failed
    )
    assert check.findings[0].code == SET_UNUSABLE
    assert "undefined symbol: hipsolverOld" in check.findings[0].message


class FakeDriver:
    """Functions of HIP or CUDA that fill memory, or return errors; like in C, results are written to addresses."""

    def __init__(self, fails: str = "", *, count: int = 2, wrong: bool = False) -> None:
        self.fails, self.count, self.wrong = fails, count, wrong

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            if name == self.fails:
                return 700
            if name.endswith("DeviceGetCount") or name == "hipGetDeviceCount":
                arguments[0]._obj.value = self.count
            if name in ("hipMemcpy", "cuMemcpyDtoH_v2"):
                arguments[0].raw = bytes([0x5A ^ self.wrong]) * len(arguments[0].raw)
            return 0

        return call


@pytest.mark.parametrize("platform", ["rocm", "cuda"])
@pytest.mark.parametrize(
    ("driver", "answer"),
    [
        (FakeDriver(), {"devices": 2, "error": ""}),
        (FakeDriver(count=0), {"devices": 0, "error": "the driver has no devices"}),
        (FakeDriver(wrong=True), {"devices": 0, "error": "memory that a device filled has other contents"}),
        (FakeDriver("hipMalloc"), {"devices": 0, "error": "hipMalloc returned 700"}),
        (FakeDriver("cuInit"), {"devices": 0, "error": "cuInit returned 700"}),
    ],
)
def test_control_checks_each_device_without_jax(
    platform: str, driver: FakeDriver, answer: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str) -> FakeDriver:
        if name == "absent":
            raise OSError("absent: cannot open shared object file")
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    if driver.fails and driver.fails.startswith("hip") != (platform == "rocm"):
        answer = {"devices": 2, "error": ""}
    assert preflight_control.main(platform, ["absent", "there"]) == answer
    assert preflight_control.main(platform, ["absent"])["error"] == "absent: cannot open shared object file"


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
    assert query_control(child, ("python",), {}, JaxPlatform.ROCM, "7.2.0", ["/lib/libc.so.6", hip]) == ""
    assert child.argv[3:] == (hip, "libamdhip64.so.7", "/opt/rocm/lib/libamdhip64.so.7")
    assert query_control(child, ("python",), {}, JaxPlatform.ROCM, "10.1.0") == ""
    assert child.argv[3:] == ("libamdhip64.so.7", "/opt/rocm/lib/libamdhip64.so.7")
    for line, said in (("", "SIGSEGV"), ("no json", "printed no result")):
        assert said in query_control(FakeChild(line), ("python",), {}, JaxPlatform.CUDA, "7.2.0")
