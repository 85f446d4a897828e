"""Fake GPUs of a worker: the tests of a shard do not run, and each shard leaves a note with its tests and GPUs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ci_build.release import device_cluster, device_gate
from promotion.evidence.evidence import now
from promotion.evidence.test_results import TestResult, TestVerdict
from promotion.gates.common.gate import Check, Gate, GateContext
from promotion.gates.device.config import DeviceGateConfig
from promotion.gates.device.lease import visible_devices
from promotion.gates.device.machine import MachineInfo
from promotion.gates.device.shards import ShardResult, digest_of_tests, split_tests, upload_shard
from promotion.storage.bucket import sha256_of
from tests.support.fake_devices import fake_devices

TESTS = tuple(f"tests/{name}_test.py::test_{number}" for name in ("lax", "nn") for number in range(600))


def fake_gate(config: DeviceGateConfig, folder: Path) -> Gate:
    """Return a gate that stores the shard of a configuration like the real one."""
    shard = config.shard
    assert shard is not None

    def run(context: GateContext) -> Iterator[Check]:
        started, tests = time.time(), split_tests(TESTS, config.seconds or {}, shard.count)[shard.number - 1]
        used = [device.token for device in visible_devices(config.machine.devices, config.platform, config.environ)]
        note = folder / f"{os.getpid()}.{shard.number}"
        note.write_text("")
        context.runner.run(("sleep", os.environ.get("FAKE_SECONDS", "0.3")))
        body = {"tests": tests, "devices": used, "started": started, "ended": time.time()}
        note.write_text(json.dumps({**body, "cpus": config.request.cpus}))
        log = f"log of shard {shard}".encode()
        key = context.staged.evidence_file(config.gate_name, context.targets[0], f"{shard.number}.log.gz")
        context.bucket.put_if_absent(key, log, sha256=sha256_of(log))
        result = ShardResult(
            shard=shard,
            target=context.targets[0],
            settings=config.settings,
            tests=digest_of_tests(TESTS),
            problems=(),
            notes=(),
            results=tuple(TestResult(id=test, verdict=TestVerdict.PASSED, seconds=1.0, attempts=1) for test in tests),
            run={"options": config.options, "devices": used},
            at=now(),
        )
        upload_shard(context.bucket, context.staged, config.gate_name, result, config.signer)
        yield Check(name="run", target=context.targets[0])

    settings = {**config.settings, "part": str(shard)}
    return Gate(name=config.gate_name, tier=config.tier, per_target=True, run=run, settings=settings, partial=True)


def use_fake_gpus(text: str) -> None:
    """Give this worker fake GPUs, described as `COUNT:GFX:FOLDER`."""
    count, gfx, folder = text.split(":", 2)
    machine = MachineInfo(devices=fake_devices(int(count), gfx=gfx))
    for module in (device_cluster, device_gate):
        vars(module)["detect_machine"] = lambda *_: machine
    vars(device_gate)["make_gate"] = lambda config: fake_gate(config, Path(folder))
