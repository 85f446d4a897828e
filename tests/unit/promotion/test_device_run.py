"""Complete and partial runs of the device gate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.errors import CiBuildError, GateError, MachineError, RequestError
from core.process import HostRunner
from promotion.evidence.evidence import ENVIRONMENT
from promotion.evidence.test_results import TestVerdict
from promotion.gates.common.gate_context import Check, error
from promotion.gates.device import device_run
from promotion.gates.device.config import Shard
from promotion.gates.device.device_run import _GateRun, make_gate
from promotion.gates.device.lease import GIB, Allotment, JaxPlatform
from promotion.gates.device.preflight import SET_UNUSABLE
from promotion.gates.device.run_outcome import (
    RunOutcome,
    missing_tests,
    raise_unless_complete,
)
from promotion.gates.device.sessions.passes import Suite
from tests.support.device_results import result
from tests.support.fake_devices import device_config

V = TestVerdict


def outcome(*verdicts: TestVerdict, collected: int = 1, **more: Any) -> RunOutcome:
    results = [result(f"x{n}", verdict) for n, verdict in enumerate(verdicts)]
    tests = ("x",) * collected
    return RunOutcome(results=tuple(results), collected=tests, details={}, **more)


@pytest.mark.parametrize(
    ("made", "said", "kind"),
    [
        (outcome(V.PASSED, collected=0), "no test was collected", GateError),
        (outcome(V.SKIPPED), "no test was executed", GateError),
        (outcome(V.NOT_RUN), "1 tests were not run", GateError),
        (outcome(V.ENVIRONMENT), "1 tests failed because of", MachineError),
        (outcome(V.ENVIRONMENT, V.FAILED), "1 tests failed because of", GateError),
        (outcome(V.PASSED, problems=("stood still",)), "stood still", GateError),
    ],
)
def test_raise_unless_complete_refuses_incomplete_run(
    made: RunOutcome, said: str, kind: type[CiBuildError]
) -> None:
    with pytest.raises(kind, match=said) as raised:
        raise_unless_complete(made)
    assert raised.type is kind


def test_missing_tests_names_absent_tests() -> None:
    there = ["a.py::x", "a.py::y[1]", "b.py::z"]
    broken = [
        replace(result("", V.FAILED), id="c.py"),
        replace(result("", V.SKIPPED), id="d.py"),
    ]
    assert missing_tests(["a.py::x", "b.py", "a.py::y[1]"], there, broken) == ()
    assert missing_tests(["a.py::x", "a.py::Z", "b.py::y"], there, broken) == (
        "a.py::Z",
        "b.py::y",
    )
    assert missing_tests(["c.py::x", "d.py::y", "e.py::z"], there, broken) == (
        "e.py::z",
    )


def test_raise_unless_complete_accepts_failed_tests() -> None:
    raise_unless_complete(outcome(V.FAILED, V.CRASHED, V.FLAKY))


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [
        (V.PASSED, RequestError),
        (V.FAILED, GateError),
    ],
)
def test_raise_unless_complete_names_missing_tests(
    verdict: TestVerdict, kind: type[CiBuildError]
) -> None:
    with pytest.raises(kind, match="lacks or deselects"):
        raise_unless_complete(outcome(verdict), missing=("a.py::y",))


def test_make_gate_distinguishes_partial_runs() -> None:
    config = device_config(JaxPlatform.CPU, suite="s")
    whole_, one, part_ = (
        make_gate(word)
        for word in (
            config,
            replace(config, request=replace(config.request, tests=("t.py::a",))),
            replace(config, shard=Shard(number=1, count=2, folder=Path())),
        )
    )
    assert whole_.partial is False
    assert one.partial is True
    assert part_.partial is True
    assert whole_.has_options
    assert whole_.settings not in (one.settings, part_.settings)
    assert one.settings != part_.settings
    assert whole_.name == "device-cpu"
    assert whole_.tier.value == "cpu"
    assert whole_.per_target is False


def preflight_error(*codes: str) -> CiBuildError:
    """Return the error after a preflight whose checks have findings with these codes."""
    gate = _GateRun.__new__(_GateRun)
    gate.target = "gfx942"
    gate.facts = {}
    checks = [
        Check(name=f"preflight: {code}", findings=(error(code, "no.", ""),), times=0)
        for code in codes
    ]
    with pytest.raises(CiBuildError) as raised:
        list(gate._preflight(checks))
    return raised.value


def test_preflight_error_belongs_to_set_or_machine() -> None:
    """Only a GateError blocks the set."""
    of_set = preflight_error(SET_UNUSABLE)
    assert type(of_set) is GateError
    assert (
        of_set.message
        == "jax cannot run with the set on this machine, which is fit: set-unusable."
    )
    assert type(preflight_error(ENVIRONMENT)) is MachineError
    assert type(preflight_error(ENVIRONMENT, SET_UNUSABLE)) is MachineError


def test_plan_has_the_import_limit_and_the_memory_of_own_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = {"": 1, "GPU-other": 2}
    monkeypatch.setattr(device_run, "free_memory", lambda *_: memory)
    gate = _GateRun.__new__(_GateRun)
    gate.devices = ()
    gate.host = Allotment(cores=1, memory=GIB)
    gate.config = device_config(JaxPlatform.CPU, import_limit=9)
    suite = Suite(root=tmp_path, files=(".",), env={})
    gate.runner = HostRunner({})
    plan = gate._plan(("python",), {}, suite)
    assert plan.limits.collect == 9
    assert plan.free_memory() == {"": 1}
