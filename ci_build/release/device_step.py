"""The gate device of a night or a release, on the GPUs of this machine or of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from ci_build.cluster.connection import connected
from ci_build.release import device_gate
from ci_build.release.device_cluster import check_cluster_options, run_on_cluster
from ci_build.release.policy_report import device_request
from ci_build.release.release_request import DeviceRun, DeviceStep, ReleaseOptions
from ci_build.release.set_rocm import with_rocm_of_set
from core.errors import MachineError
from core.model import ROCM_LOCK, Evidence, Requirement, WheelSet
from core.process import HostRunner
from core.report import Reporter
from core.tasks import Tasks
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
        MachineError: the machine has no AMD GPU, or no worker can run the tests.
        InputError: JAX's suite cannot be obtained.
    """
    step = options.device
    if step is None or not missing:
        return ()
    wheel_set = read_staged(bucket, staged)
    found = list[Evidence]()
    with connected(step.cluster, reporter) as tasks:
        devices = None if tasks else find_devices(step, runner)
        for request in requests(missing, wheel_set, devices, options):
            place = "the cluster" if tasks else f"{request.devices} GPUs"
            reporter.step(f"gate device on {place} for {request.family}")
            run = DeviceRun(
                request=request,
                step=step,
                staged=staged,
                bucket=bucket,
                bucket_name=options.bucket,
                channel=options.channel,
            )
            found += run_gate(run, reporter, runner, signer, tasks)
    tested = {evidence.target for evidence in found}
    others = [item.target for item in missing if item.target not in tested]
    if devices is not None and others:
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
            item, wheel_set, families, jax_tests=options.jax_tests
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


def run_gate(
    run: DeviceRun,
    reporter: Reporter,
    runner: HostRunner,
    signer: Signer,
    tasks: Tasks | None = None,
) -> tuple[Evidence, ...]:
    """Run the gate on a cluster or on this machine; print failed tests.

    Args:
        tasks: cluster that runs the tests; None for this machine.
    """
    request = run.request
    device_gate.check_options(request)
    if tasks is not None:
        check_cluster_options(request)
    step = run.step
    request = with_rocm_of_set(
        request, run.staged, run.bucket, step.rocm, reporter, runner, step.connect
    )
    config = device_gate.parse_config(
        request, step.environ, runner, signer, run.bucket_name
    )
    execute = device_gate.run
    if tasks is not None:
        execute = partial(run_on_cluster, tasks=tasks)
    evidences = execute(
        config,
        run.staged,
        run.bucket,
        reporter,
        runner,
        redo=run.redo,
        channel=run.channel,
    )
    for line in device_gate.failure_lines(evidences):
        reporter.line(line)
    return evidences
