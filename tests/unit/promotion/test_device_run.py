"""Complete and partial runs of the device gate."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from core.errors import CiBuildError, GateError, MachineError
from core.process import HostRunner
from promotion.evidence.test_results import TestVerdict
from promotion.gates.device.baseline import missing_tests, raise_unless_complete
from promotion.gates.device.lease import JaxPlatform
from promotion.gates.device.machine import MachineInfo
from promotion.gates.device.run import make_gate
from promotion.gates.device.shards import Shard
from tests.support.device_results import result
from tests.support.fake_devices import device_config

V = TestVerdict


@pytest.mark.parametrize(
    ("problems", "collected", "verdicts", "said", "kind"),
    [
        ((), 0, [V.PASSED], "no test was collected", GateError),
        ((), 1, [V.SKIPPED], "no test was executed", GateError),
        ((), 1, [V.NOT_RUN], "1 tests were not run", GateError),
        ((), 1, [V.ENVIRONMENT], "1 tests failed because of the machine", MachineError),
        ((), 3, [V.ENVIRONMENT, V.PASSED, V.SKIPPED], "1 tests failed because of the machine", MachineError),
        ((), 2, [V.ENVIRONMENT, V.FAILED], "1 tests failed because of the machine", GateError),
        ((), 2, [V.ENVIRONMENT, V.NOT_RUN], "1 tests failed because of the machine", GateError),
        (("pass single: stood still",), 1, [V.PASSED], "stood still", GateError),
    ],
)
def test_raise_unless_complete_refuses_incomplete_run(
    problems: tuple[str, ...], collected: int, verdicts: list[TestVerdict], said: str, kind: type[CiBuildError]
) -> None:
    with pytest.raises(kind, match=said) as raised:
        raise_unless_complete(problems, collected, [result(f"x{n}", verdict) for n, verdict in enumerate(verdicts)])
    assert raised.type is kind


def test_missing_tests_names_absent_tests() -> None:
    there = ["a.py::x", "a.py::y[1]", "b.py::z"]
    assert [*missing_tests(["a.py::x", "b.py", "a.py::y[1]"], there)] == []
    assert [*missing_tests(["a.py::x", "a.py::Z", "b.py::y"], there)] == ["the suite has no a.py::Z, b.py::y"]
    (many,) = missing_tests([f"a.py::{n}" for n in range(6)], there)
    assert many.endswith("a.py::4 and others")


def test_raise_unless_complete_accepts_failed_tests_and_empty_shards() -> None:
    raise_unless_complete((), 1, [], shard=True)
    raise_unless_complete((), 1, [result("x", V.FAILED), result("y", V.CRASHED), result("z", V.FLAKY)])


def test_make_gate_distinguishes_partial_runs() -> None:
    config = device_config(JaxPlatform.CPU, suite="s")
    whole_, one, part_ = (
        make_gate(word)
        for word in (config, replace(config, listed=("t.py::a",)), replace(config, shard=Shard(number=1, count=2)))
    )
    assert (whole_.partial, one.partial, part_.partial) == (False, True, True)
    assert whole_.settings not in (one.settings, part_.settings)
    assert one.settings != part_.settings
    rocm = make_gate(device_config(suite="s"))
    assert (rocm.name, rocm.tier.value, rocm.per_target) == ("device", "device", True)
    assert (whole_.name, whole_.tier.value, whole_.per_target) == ("device-cpu", "cpu", False)


def test_gate_refuses_devices_of_several_kinds() -> None:
    config = device_config(JaxPlatform.ROCM, 2)
    first, second = config.machine.devices
    mixed = replace(config, machine=MachineInfo(devices=(first, replace(second, gfx="gfx950"))))
    room: Any = SimpleNamespace(runner=HostRunner({}), targets=("gfx942", "gfx950"))
    with pytest.raises(MachineError, match="several kinds: gfx942, gfx950"):
        next(iter(make_gate(mixed).run(room)))
