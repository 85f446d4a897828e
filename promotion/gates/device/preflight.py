"""Checks before the tests: platform, devices, loaded libraries and health of the machine.

A failed check is reported as an environment problem, unless the set is at fault
(`blame`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from core.errors import ProcessError
from core.process import Runner
from core.units import human
from promotion.evidence.evidence import ENVIRONMENT
from promotion.gates.common.gate_context import Check
from promotion.gates.device.blame import SET_UNUSABLE, Control, is_fault_of_set
from promotion.gates.device.expected_machine import (
    ExpectedMachine,
    check_libraries,
    check_rocm,
    check_same_rocm,
    other_rocm,
    preflight_check,
)
from promotion.gates.device.gpu_machine import MachineInfo
from promotion.gates.device.lease import DEVICE_SHARE, GpuDevice, JaxPlatform

CHILD = Path(__file__).with_name("preflight_child.py")
_SECONDS = 600.0
_DOCTOR = "Run `ci_build doctor` on this machine."
_FIX_SET = (
    "Fix the set; the machine is not the cause. `ci_build gate load` may show more."
)


def query_jax(
    runner: Runner,
    python: Sequence[str],
    env: Mapping[str, str],
    expected: ExpectedMachine,
) -> Mapping[str, Any]:
    """Return jax's description of its devices in the tested environment.

    `error` describes a failure.
    """
    try:
        argv = (*python, str(CHILD), expected.platform.value, *expected.modules)
        done = runner.run(argv, env=env, timeout=_SECONDS)
        answer: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer
    except ProcessError as problem:
        return {"error": problem.message}
    except (ValueError, IndexError):
        return {"error": "the process that imports jax printed no result"}


def check_host(
    machine: MachineInfo,
    devices: Sequence[GpuDevice],
    expected: ExpectedMachine,
    root: Path,
) -> Iterator[Check]:
    """Check the driver, the devices and the host, with causes before consequences.

    Args:
        root: root of the file system.
    """
    if expected.platform is JaxPlatform.CPU:
        yield preflight_check("processor", facts=dict(machine.facts))
        return
    yield _devices(machine, devices, expected)
    if expected.platform is JaxPlatform.ROCM:
        kfd = root / "dev/kfd"
        opens = kfd.exists() and os.access(kfd, os.R_OK | os.W_OK)
        problem = "" if opens else "/dev/kfd cannot be opened for reading and writing"
        remedy = (
            "Start the container with --device=/dev/kfd --device=/dev/dri and the"
            " groups video and render."
        )
        yield preflight_check("/dev/kfd", problem, remedy)
    poor = [
        f"device {device.token} has {human(device.free)} of {human(device.memory)} free"
        for device in devices
        if device.free is not None and device.free < DEVICE_SHARE
    ]
    yield preflight_check(
        "device memory",
        "; ".join(poor),
        "End the processes that use the device, or use another device.",
    )


def _devices(
    machine: MachineInfo, devices: Sequence[GpuDevice], expected: ExpectedMachine
) -> Check:
    targets = _plain(expected.targets)
    other = sorted({device.gfx for device in devices} - {*targets})
    problem = ""
    if not devices:
        problem = f"no {expected.platform} device is available"
    elif other and expected.platform is JaxPlatform.ROCM:
        problem = f"the devices are {', '.join(other)}, not {' or '.join(targets)}"
    elif expected.counts and len(devices) not in expected.counts:
        counts = " or ".join(map(str, expected.counts))
        problem = f"{len(devices)} devices are available, not {counts}"
    names = ("token", "gfx", "name", "memory", "free")
    rows = []
    for device in devices:
        rows.append({name: getattr(device, name) for name in names})
    return preflight_check(
        "devices",
        problem,
        "Use a runner of the requested family; `--devices` overrides the number of"
        " devices.",
        facts={
            "devices": rows,
            "driver": machine.driver,
            **machine.facts,
        },
    )


def check_jax(
    answer: Mapping[str, Any], expected: ExpectedMachine, control: Control
) -> Iterator[Check]:
    """Check jax's platform, devices and libraries.

    Args:
        control: see `Control`; it is called only if jax fails.
    """
    if answer["error"]:
        yield _no_platform(answer, expected, control)
        return
    yield _platform(answer, expected)
    count = len(answer["devices"])
    problem = ""
    if count != expected.count:
        problem = f"jax sees {count} devices, not {expected.count}"
    hint = "Check whether masks or other processes hide devices."
    yield preflight_check("device count", problem, hint)
    if expected.platform is JaxPlatform.ROCM:
        # A version override in the environment changes the runtime's names of the
        # devices.
        names = {*_plain(str(one["capability"]) for one in answer["devices"])}
        others = sorted(names.difference(_plain(expected.targets)))
        strange = [name for name in others if name.startswith("gfx")]
        problem = ""
        if strange:
            problem = f"the runtime reports the devices as {', '.join(strange)}"
        yield preflight_check(
            "gfx name",
            problem,
            "Unset HSA_OVERRIDE_GFX_VERSION.",
            facts={"gfx": sorted(names)},
        )
    yield check_libraries(answer["libraries"], expected)
    if expected.platform is JaxPlatform.ROCM:
        yield check_rocm(answer["libraries"], expected.rocm_version)
        yield check_same_rocm(answer["libraries"], expected)
    for module, reason in answer.get("modules", {}).items():
        at_fault = is_fault_of_set(reason, expected, control, needs_device=False)
        remedy, code = _fault_remedy(at_fault, _DOCTOR)
        yield preflight_check(
            module, f"it cannot be imported: {reason}", remedy, code=code
        )
    yield from _kernels(answer["devices"], expected, control)


def _no_platform(
    answer: Mapping[str, Any], expected: ExpectedMachine, control: Control
) -> Check:
    problem = f"jax has no platform {expected.platform}: {answer['error']}"
    imports = answer.get("stage") == "import"
    if expected.platform is JaxPlatform.CUDA and not expected.also and not imports:
        return preflight_check(
            "platform", problem, "Give the lock file of NVIDIA's packages with --also."
        )
    # A set need not work with the ROCm of another release.
    if other := other_rocm(answer.get("libraries", ()), expected.rocm_version):
        return preflight_check(
            "platform", f"{problem}; {other}", f"Install ROCm {expected.rocm_version}."
        )
    at_fault = is_fault_of_set(
        answer["error"], expected, control, needs_device=not imports
    )
    remedy, code = _fault_remedy(at_fault, _DOCTOR)
    return preflight_check("platform", problem, remedy, code=code)


def _kernels(
    devices: Sequence[Mapping[str, Any]], expected: ExpectedMachine, control: Control
) -> Iterator[Check]:
    """Check the kernel of each device.

    If it fails on all devices, and these work without jax, the set is at fault.
    """
    at_fault = all(
        device["kernel"] and is_fault_of_set(device["kernel"], expected, control)
        for device in devices
    )
    remedy, code = _fault_remedy(at_fault, "Take this device out of service.")
    for device in devices:
        name = f"kernel on device {device['id']}"
        problem = f"a {name}: {device['kernel']}" if device["kernel"] else ""
        yield preflight_check(name, problem, remedy, code=code)


def _fault_remedy(at_fault: bool, remedy: str) -> tuple[str, str]:
    """Return remedy and code of a problem of the set, or of the machine with its own remedy."""
    return (_FIX_SET, SET_UNUSABLE) if at_fault else (remedy, ENVIRONMENT)


def _platform(answer: Mapping[str, Any], expected: ExpectedMachine) -> Check:
    platform = expected.platform
    client = answer["client"]
    reported = {*answer["platforms"], answer["default"]}
    on_cpu = platform is JaxPlatform.CPU
    accepted = {"cpu"} if on_cpu else {platform.value, "gpu"}
    problem = ""
    if not reported <= accepted:
        problem = f"jax runs on {', '.join(sorted(reported))}, not on {platform}"
    # jax reports all GPUs as "gpu"; the runtime's version contains the platform.
    elif not on_cpu and platform.value not in client.lower():
        name = " ".join(client.split())
        problem = f"jax's GPUs belong to {name!r}, not to {platform}"
    facts = {
        "jax": answer["version"],
        "kinds": sorted({device["kind"] for device in answer["devices"]}),
    }
    return preflight_check("platform", problem, _DOCTOR, facts=facts)


def _plain(targets: Iterable[str]) -> list[str]:
    return [target.partition(":")[0] for target in targets]
