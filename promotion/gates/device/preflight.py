"""Checks before the tests: platform, devices, loaded libraries and health of the machine.

A failed check is reported as an environment problem, unless the set is at fault: the
devices work without jax, or no device was needed to fail.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from core.errors import ProcessError
from core.model import RocmVersion
from core.process import Runner
from core.rocm_layouts import hip_soname
from core.units import human
from promotion.evidence.evidence import ENVIRONMENT
from promotion.gates.common.gate_context import Check
from promotion.gates.device.expected_machine import (
    ExpectedMachine,
    check_libraries,
    check_rocm,
    is_hip,
    other_rocm,
    preflight_check,
)
from promotion.gates.device.gpu_machine import MachineInfo
from promotion.gates.device.lease import DEVICE_SHARE, GpuDevice, JaxPlatform
from promotion.gates.device.results import is_machine_failure

CHILD = Path(__file__).with_name("preflight_child.py")
CONTROL = Path(__file__).with_name("preflight_control.py")
SET_UNUSABLE = "set-unusable"
"""Code of findings about a set that cannot run on a machine whose devices work."""
Control = Callable[[], str]
"""Function that returns why the devices do not work without jax; "" if they work."""
_SECONDS = 600.0
_CONTROL_SECONDS = 120.0
_MISSING = re.compile(r"(\S+\.so[.\w]*): cannot open shared object file")
"""glibc's message about a library that it does not find."""
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
    argv = (*python, str(CHILD), expected.platform.value)
    return _answer(runner, argv, env, _SECONDS)


def query_control(
    runner: Runner,
    python: Sequence[str],
    env: Mapping[str, str],
    rocm_version: str,
    mapped: Sequence[str] = (),
) -> str:
    """Return why the machine's devices do not work without jax; "" if they work.

    Args:
        rocm_version: ROCm of the set; a HIP with another soname does not count.
        mapped: libraries that jax's process had loaded, whose HIP is used.
    """
    soname = hip_soname(RocmVersion(text=rocm_version))
    hip = [file for file in mapped if is_hip(file)]
    argv = (*python, str(CONTROL), *hip, soname, f"/opt/rocm/lib/{soname}")
    return str(_answer(runner, argv, env, _CONTROL_SECONDS)["error"])


def _answer(
    runner: Runner, argv: Sequence[str], env: Mapping[str, str], seconds: float
) -> Mapping[str, Any]:
    """Return the JSON in the last line of a process's output."""
    try:
        lines = runner.run(argv, env=env, timeout=seconds).stdout.splitlines()
        answer: Mapping[str, Any] = json.loads(lines[-1])
        return answer
    except ProcessError as problem:
        return {"error": problem.message}
    except (ValueError, IndexError):
        return {"error": "the process that checks the devices printed no result"}


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
    kinds = sorted({device.gfx for device in devices})
    other = [kind for kind in kinds if kind not in targets]
    problem = ""
    if not devices:
        problem = f"no {expected.platform} device is available"
    elif other and expected.platform is JaxPlatform.ROCM:
        problem = f"the devices are {', '.join(other)}, not {' or '.join(targets)}"
    elif len(kinds) > 1:
        problem = f"the devices are of several kinds: {', '.join(kinds)}"
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
        "Use a runner of the requested family, or devices of one kind with"
        " ROCR_VISIBLE_DEVICES; `--devices` overrides the number of devices.",
        facts={"devices": rows, "driver": machine.driver, "kernel": os.uname().release},
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
        yield check_rocm(answer["libraries"], expected)
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


def is_fault_of_set(
    error: str,
    expected: ExpectedMachine,
    control: Control,
    *,
    needs_device: bool = True,
) -> bool:
    """Return whether an error of jax belongs to the set instead of the machine.

    Args:
        control: see `Control`.
        needs_device: whether the step that failed uses a device; an import does not.
    """
    if is_machine_failure(error):
        return False
    if match := _MISSING.search(error):
        name = Path(match[1]).name
        if any(Path(path).name == name for path in expected.libraries):
            return True
        # The ROCm of the set is known: either the machine lacks one of its libraries,
        # or the set needs a foreign one.
        return bool(expected.rocm) and name not in expected.rocm
    if not needs_device or expected.platform is JaxPlatform.CPU:
        return True
    # The plugin for CUDA is not part of the set.
    return expected.platform is JaxPlatform.ROCM and not control()
