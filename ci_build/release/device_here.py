"""The gate device of a night or a release on the GPUs of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ci_build.release import device_gate, device_image
from ci_build.release.policy_report import device_request
from ci_build.release.request import DeviceHere, ReleaseOptions
from core.errors import MachineError
from core.model import Evidence, Outcome, Requirement, WheelSet
from core.process import HostRunner
from core.report import Reporter
from promotion.evidence.signing import Signer
from promotion.gates.device.lease import GpuDevice, JaxPlatform, visible_devices
from promotion.gates.device.machine import detect_machine
from promotion.gates.device.request import DeviceRequest
from promotion.policy.families import load_families
from promotion.stage import read_staged
from promotion.storage.bucket import Bucket
from promotion.storage.keys import StagedSet


def find_devices(here: DeviceHere, runner: HostRunner) -> tuple[GpuDevice, ...]:
    """Return the GPUs of this machine that the environment does not mask.

    Raises:
        MachineError: there is none, or a mask is invalid.
    """
    machine = detect_machine(JaxPlatform.ROCM, runner)
    if devices := visible_devices(machine.devices, JaxPlatform.ROCM, here.environ):
        return devices
    raise MachineError(
        "This machine has no AMD GPU for --device-gate=here.", hint="Omit the option; the summary lists the jobs."
    )


def run_device_gate(
    staged: StagedSet,
    bucket: Bucket,
    missing: Sequence[Requirement],
    options: ReleaseOptions,
    reporter: Reporter,
    runner: HostRunner,
    signer: Signer,
) -> tuple[Evidence, ...]:
    """Run the gate for missing evidence of the targets that this machine has; other targets are reported.

    Args:
        missing: requirements of the gate that are not met.

    Raises:
        MachineError: the machine has no AMD GPU, or an image cannot run the gate.
        InputError: JAX's suite or an image cannot be obtained.
    """
    here = options.device
    if here is None or not missing:
        return ()
    devices, wheel_set = find_devices(here, runner), read_staged(bucket, staged)
    found: list[Evidence] = []
    for request in requests(missing, wheel_set, devices, options):
        reporter.step(f"gate device on {request.devices} GPUs for {request.family}")
        found += _run(request, staged, bucket, options, here, reporter, runner, signer)
    tested = {evidence.target for evidence in found}
    if others := [item.target for item in missing if item.target not in tested]:
        kinds = ", ".join(sorted({device.gfx for device in devices}))
        reporter.warning(f"The GPUs of this machine ({kinds}) cannot test {', '.join(others)}.")
    return tuple(found)


def requests(
    missing: Sequence[Requirement], wheel_set: WheelSet, devices: Sequence[GpuDevice], options: ReleaseOptions
) -> Iterator[DeviceRequest]:
    """Yield the distinct runs of the gate for the targets that these GPUs have; each run uses all GPUs of its kind."""
    families, known = load_families(), set()
    for item in missing:
        count = sum(device.gfx == item.target.partition(":")[0] for device in devices)
        request, _ = device_request(item, wheel_set, families, jax_tests=options.jax_tests, image=options.image)
        request = replace(request, devices=count)
        if count and request not in known:
            known.add(request)
            yield request


def _run(
    request: DeviceRequest,
    staged: StagedSet,
    bucket: Bucket,
    options: ReleaseOptions,
    here: DeviceHere,
    reporter: Reporter,
    runner: HostRunner,
    signer: Signer,
) -> tuple[Evidence, ...]:
    """Run the gate on this machine, in a container if the request has an image."""
    if not request.image:
        config = device_gate.parse_config(request, here.environ, runner, signer, options.bucket)
        evidences = device_gate.run(config, staged, bucket, reporter, runner, redo=False, channel=options.channel)
        for line in device_gate.failure_lines(evidences):
            reporter.line(line)
        return evidences
    run = device_image.ImageGateRun(
        request=request,
        settings=here.container,
        staged=staged,
        bucket=(options.bucket, bucket),
        channel=options.channel,
        key=options.key,
        redo=False,
    )
    code, evidences = device_image.run_in_image(run, reporter, runner, reporter.line)
    if code and not any(evidence.outcome in (Outcome.FAILED, Outcome.ERROR) for evidence in evidences):
        text = f"The gate device in {request.image} ended with exit code {code} and no evidence."
        raise MachineError(text, hint="See its output above.")
    return evidences
