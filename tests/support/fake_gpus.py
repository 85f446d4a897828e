"""Fake GPUs of a worker.

The tests of a shard do not run, and each shard leaves a note with its tests and GPUs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ci_build.release import device_gate
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.common.gate_context import Check, Gate, GateContext
from promotion.gates.device.config import DeviceGateConfig
from promotion.gates.device.gpu_machine import MachineInfo
from promotion.gates.device.lease import visible_devices
from promotion.gates.device.run_outcome import RunOutcome, write_outcome
from tests.support.fake_devices import fake_devices

TESTS = tuple(f"tests/lax_test.py::test_{number}" for number in range(1200))


def fake_gate(config: DeviceGateConfig, folder: Path) -> Gate:
    """Return a gate that stores the shard of a configuration like the real one."""
    shard = config.shard
    assert shard is not None

    def run(context: GateContext) -> Iterator[Check]:
        tests = TESTS[shard.number - 1 :: shard.count]
        used = [
            device.token
            for device in visible_devices(
                config.machine.devices, config.platform, config.environ
            )
        ]
        started = time.time()
        context.runner.run(("sleep", "0.3"))
        note = {
            "tests": tests,
            "devices": used,
            "started": started,
            "ended": time.time(),
        }
        (folder / f"{os.getpid()}.{shard.number}").write_text(json.dumps(note))
        results = []
        for test in tests:
            results.append(
                TestResult(id=test, verdict=TestVerdict.PASSED, seconds=1.0, attempts=1)
            )
        outcome = RunOutcome(results=tuple(results), collected=TESTS, details={})
        write_outcome(outcome, shard.folder, b"")
        yield Check(name="run", target=context.targets[0])

    settings = {**config.settings, "part": "shard"}
    return Gate(
        name=config.gate_name,
        tier=config.tier,
        per_target=True,
        run=run,
        settings=settings,
        partial=True,
    )


def use_fake_gpus(text: str) -> None:
    """Give this worker fake GPUs, described as `COUNT:GFX:FOLDER`."""
    count, gfx, folder = text.split(":", 2)
    machine = MachineInfo(devices=fake_devices(int(count), gfx=gfx))
    vars(device_gate)["detect_machine"] = lambda *_: machine
    vars(device_gate)["make_gate"] = lambda config, _: fake_gate(config, Path(folder))
