"""The gate device of a night or a release, on the GPUs of this machine or of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from ci_build.cluster.connection import connected
from ci_build.release import device_gate, device_image
from ci_build.release.device_cluster import check_cluster_options, run_on_cluster
from ci_build.release.policy_report import device_request
from ci_build.release.release_request import DeviceStep, ReleaseOptions
from ci_build.release.set_rocm import with_rocm_of_set
from core.errors import BucketError, BusyError, InputError, MachineError, RequestError
from core.model import ROCM_LOCK, Evidence, Outcome, Requirement, WheelSet
from core.process import HostRunner
from core.report import Reporter
from promotion.evidence.signing import Signer
from promotion.gates.device.device_request import DeviceRequest
from promotion.gates.device.gpu_machine import detect_machine
from promotion.gates.device.lease import GpuDevice, JaxPlatform, visible_devices
from promotion.policy.families import load_families
from promotion.stage import read_staged
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import StagedSet


def check_machines(
    options: ReleaseOptions, reporter: Reporter, runner: HostRunner
) -> None:
    """Check before a build that the gates have the cluster or GPUs that they need.

    Raises:
        MachineError: this machine has no GPU, or the cluster cannot be reached.
    """
    with connected(options.cluster, reporter):
        pass
    if options.device is not None and options.device.cluster is None:
        find_devices(options.device, runner)


def find_devices(step: DeviceStep, runner: HostRunner) -> tuple[GpuDevice, ...]:
    """Return the GPUs of this machine that the environment does not mask.

    Raises:
        MachineError: there is none, or a mask is invalid.
    """
    machine = detect_machine(JaxPlatform.ROCM, runner)
    if devices := visible_devices(machine.devices, JaxPlatform.ROCM, step.environ):
        return devices
    raise MachineError(
        "This machine has no AMD GPU for --device-gate=here.",
        hint="Omit the option; the summary lists the jobs.",
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
    """Run the gate for missing evidence, on a cluster or for the targets that this machine has.

    Args:
        missing: requirements of the gate that are not met.

    Raises:
        MachineError: the machine has no AMD GPU, no worker can run the tests, or an
            image cannot run the gate.
        InputError: JAX's suite or an image cannot be obtained.
        RequestError: the policy requires an image, which a cluster cannot start.
        BucketError, BusyError: the gate in an image ended with its exit code.
    """
    step = options.device
    if step is None or not missing:
        return ()
    wheel_set = read_staged(bucket, staged)
    found = list[Evidence]()
    with connected(step.cluster, reporter) as tasks:
        if tasks is not None:
            for request in requests(missing, wheel_set, None, options):
                reporter.step(f"gate device on the cluster for {request.family}")
                check_cluster_options(request)
                config = device_gate.parse_config(
                    request, step.environ, runner, signer, options.bucket
                )
                found += run_on_cluster(
                    config,
                    staged,
                    bucket,
                    reporter,
                    runner,
                    tasks=tasks,
                    redo=False,
                    channel=options.channel,
                )
            return tuple(found)
    devices = find_devices(step, runner)
    for request in requests(missing, wheel_set, devices, options):
        reporter.step(f"gate device on {request.devices} GPUs for {request.family}")
        found += _run(request, staged, bucket, options, step, reporter, runner, signer)
    tested = {evidence.target for evidence in found}
    if others := [item.target for item in missing if item.target not in tested]:
        kinds = ", ".join(sorted({device.gfx for device in devices}))
        reporter.warning(
            f"The GPUs of this machine ({kinds}) cannot test {', '.join(others)}."
        )
    return tuple(found)


def requests(
    missing: Sequence[Requirement],
    wheel_set: WheelSet,
    devices: Sequence[GpuDevice] | None,
    options: ReleaseOptions,
) -> Iterator[DeviceRequest]:
    """Yield the distinct runs of the gate for missing evidence.

    Args:
        devices: GPUs of this machine; each run uses all GPUs of its kind, and other
            targets get no run. None means a cluster, whose tasks have as many GPUs as
            the runners of the family.
    """
    families = load_families()
    known = set()
    for item in missing:
        request, _ = device_request(
            item, wheel_set, families, jax_tests=options.jax_tests, image=options.image
        )
        if devices is not None:
            gfx = item.target.partition(":")[0]
            count = sum(device.gfx == gfx for device in devices)
            request = replace(
                request, devices=count, rocm_of_set=ROCM_LOCK in wheel_set.files
            )
        if request.devices != 0 and request not in known:
            known.add(request)
            yield request


def _run(
    request: DeviceRequest,
    staged: StagedSet,
    bucket: Bucket,
    options: ReleaseOptions,
    step: DeviceStep,
    reporter: Reporter,
    runner: HostRunner,
    signer: Signer,
) -> tuple[Evidence, ...]:
    """Run the gate on this machine, in a container if the request has an image."""
    own_rocm = partial(
        with_rocm_of_set,
        staged=staged,
        bucket=bucket,
        storage=step.rocm,
        reporter=reporter,
        runner=runner,
        connect=step.connect,
    )
    if not request.image:
        config = device_gate.parse_config(
            request, step.environ, runner, signer, options.bucket
        )
        config = replace(config, request=own_rocm(config.request))
        evidences = device_gate.run(
            config,
            staged,
            bucket,
            reporter,
            runner,
            redo=False,
            channel=options.channel,
        )
        for line in device_gate.failure_lines(evidences):
            reporter.line(line)
        return evidences
    run = device_image.ImageGateRun(
        request=own_rocm(request),
        settings=step.container,
        staged=staged,
        bucket=(options.bucket, bucket),
        channel=options.channel,
        key=options.key,
        redo=False,
    )
    code, evidences = device_image.run_in_image(run, reporter, runner, reporter.line)
    outcomes = {evidence.outcome for evidence in evidences}
    if not code or outcomes & {Outcome.FAILED, Outcome.ERROR}:
        return evidences
    kinds = {
        kind.exit_code: kind
        for kind in (RequestError, InputError, BucketError, BusyError)
    }
    raise kinds.get(code, MachineError)(
        f"The gate device in {request.image} ended with exit code {code} and no"
        " evidence.",
        hint="See its output above.",
    )
