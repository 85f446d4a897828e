"""`nightly --device-gate=here`: the gate device of a night on fake GPUs of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ci_build.release import device_gate, device_step
from ci_build.release.release_request import ReleaseOptions, SigningKey
from core.errors import GateError, MachineError
from core.http.client import Client
from core.model import ROCM_LOCK, Outcome, Requirement
from promotion.evidence.evidence import read_all
from promotion.gates.common.gate_context import Check, Gate, GateContext, error
from promotion.gates.device.config import DeviceGateConfig
from promotion.gates.device.gpu_machine import MachineInfo
from promotion.gates.device.lease import GpuDevice
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet
from tests.support import sets
from tests.support.fake_devices import fake_devices, offer_every_device
from tests.support.nights import INDEX, Nights, nights, small_release

__all__ = ["nights", "small_release"]


@dataclass
class FakeGpus:
    """The GPUs of a machine, whose tests pass or fail without running.

    Attributes:
        runs: configurations of the gate's runs.
    """

    devices: tuple[GpuDevice, ...] = fake_devices(8)
    failing: bool = False
    runs: list[DeviceGateConfig] = field(default_factory=list)

    def gate(self, config: DeviceGateConfig, _: object) -> Gate:
        """Return a gate with the settings of the real one."""

        def run(context: GateContext) -> Iterator[Check]:
            self.runs.append(config)
            target = next(t for t in context.targets if t == self.devices[0].gfx)
            found = (
                (
                    error(
                        "test-failed",
                        "t.py::test_x failed: wrong sum.",
                        "Run it alone.",
                    ),
                )
                if self.failing
                else ()
            )
            yield Check(name="tests", target=target, times=1000)
            yield Check(name="t.py::test_x", target=target, findings=found)

        return Gate(
            name=config.gate_name,
            tier=config.tier,
            per_target=True,
            run=run,
            settings=config.settings,
        )


@pytest.fixture
def gpus(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    """Provide fake GPUs; nobody else runs the gate device."""
    nights.device = False
    made = FakeGpus()
    for module in (device_gate, device_step):
        monkeypatch.setattr(
            module, "detect_machine", lambda *_: MachineInfo(devices=made.devices)
        )
    monkeypatch.setattr(device_gate, "make_gate", made.gate)
    offer_every_device(monkeypatch)
    return made


def night(nights: Nights, *words: str) -> int:
    return nights.run("nightly", INDEX, "--device-gate=here", "--json", *words)


def said(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """Return the only set of a summary in JSON, and the messages."""
    shown = capsys.readouterr()
    (one,) = json.loads(shown.out)["sets"]
    return one, shown.err


def test_night_tests_its_own_gpus_and_leaves_others_to_jobs(
    nights: Nights, gpus: FakeGpus, capsys: pytest.CaptureFixture[str]
) -> None:
    assert night(nights) == 0
    one, messages = said(capsys)
    assert one["state"] == "pending"
    assert {row["target"]: row["now"] for row in one["targets"]} == {
        "gfx942": "device",
        "gfx950": "compiled",
    }
    (missing,) = one["missing"]
    assert (missing["target"], bool(missing["runs_on"])) == ("gfx950", True)
    assert "The GPUs of this machine (gfx942) cannot test gfx950." in messages
    (config,) = gpus.runs
    assert config.request.family == "gfx94X-dcgpu"
    assert config.request.devices == 8
    assert config.request.size == "large"
    assert config.request.jax_tests.startswith("https://github.com/jax-ml/jax@")
    # Another machine completes the night; the first GPUs are not tested again.
    gpus.devices = fake_devices(1, gfx="gfx950")
    assert night(nights) == 0
    one, _ = said(capsys)
    assert one["state"] == "promoted"
    assert one["entry"] == 1
    assert [run.request.family for run in gpus.runs] == ["gfx94X-dcgpu", "gfx950-dcgpu"]
    assert night(nights) == 0
    assert said(capsys)[0]["state"] == "unchanged"
    assert len(gpus.runs) == 2


@pytest.mark.parametrize("files", [{}, {ROCM_LOCK: "1" * 64}])
def test_sets_with_a_lock_are_tested_with_their_rocm(files: dict[str, str]) -> None:
    missing = Requirement(
        gate="device",
        target="gfx942",
        ended="",
        problems=("has not run.",),
        settings={},
    )
    options = ReleaseOptions(
        bucket="",
        channel="",
        corpus="",
        key=SigningKey(file=None),
        connect=Client,
    )
    one = replace(sets.wheel_set(), files=files)
    (request,) = device_step.requests([missing], one, fake_devices(1), options)
    assert request.rocm_of_set == bool(files)
    (request,) = device_step.requests([missing], one, None, options)
    assert not request.rocm_of_set, (
        "a cluster's workers load the ROCm of their machines"
    )


def test_failed_tests_on_own_gpus_fail_the_night(
    nights: Nights, gpus: FakeGpus, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus.failing = True
    assert night(nights) == GateError.exit_code
    one, _ = said(capsys)
    assert one["state"] == "failed"
    assert ("t.py::test_x failed: wrong sum." in one["error"]) is True
    staged = StagedSet(index=INDEX, digest=one["set"].rpartition("/")[2])
    found = [
        file.evidence for file in read_all(DirBucket(nights.bucket), staged).values()
    ]
    assert [(item.target, item.outcome) for item in found if item.gate == "device"] == [
        ("gfx942", Outcome.FAILED)
    ]


def test_machine_without_gpu_ends_the_night_before_its_build(
    nights: Nights, gpus: FakeGpus, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus.devices = ()
    assert night(nights) == MachineError.exit_code
    assert (
        "This machine has no AMD GPU for --device-gate=here." in capsys.readouterr().err
    )
    assert not [*nights.bucket.iterdir()]
    assert (
        nights.run("release", "--channel=nightly", "--device-gate=here")
        == MachineError.exit_code
    )
    assert not [*nights.bucket.iterdir()]
