"""The gate device with `--cluster`: shards of the tests on the GPUs of workers.

A worker is a process of Dask that sees the GPUs of one task, and offers one of their kind
as Dask's resource, so that it runs one shard at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from ci_build.release import device_gate
from core.errors import CiBuildError, GateError, MachineError, RequestError
from core.model import Evidence, GfxTarget
from core.process import HostRunner
from core.report import Reporter
from core.tasks import Task, TaskContext, TaskResult, Tasks
from promotion.evidence.evidence import is_machine_failure
from promotion.gates.common.gate_context import Check, GateContext
from promotion.gates.device.config import DeviceGateConfig, Shard
from promotion.gates.device.device_evidence import LOGS
from promotion.gates.device.device_request import DeviceRequest
from promotion.gates.device.gpu_machine import MachineInfo
from promotion.gates.device.lease import GpuDevice, JaxPlatform
from promotion.gates.device.run_outcome import (
    OUTCOME,
    checks_of_run,
    merge,
    read_outcome,
)
from promotion.policy.families import load_families
from promotion.stage import fetch_set, read_staged, stage
from promotion.storage.bucket import Bucket
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet

KIND = "device-shard"
SHARDS = 8
"""Number of tasks that share the tests of a target.

Some for each worker, so that slow ones get fewer.
"""
_NOT_SENT = ("tests", "also", "rocm", "rocm_of_set", "wheelhouse")
"""Options of the gate that a run on a cluster does not have."""


def check_cluster_options(request: DeviceRequest) -> None:
    """Raise RequestError for options that a run on a cluster does not have."""
    unused = []
    for option in fields(DeviceRequest):
        value = getattr(request, option.name)
        if option.name in _NOT_SENT and value != option.default:
            name = "test" if option.name == "tests" else option.name
            unused.append(f"--{name.replace('_', '-')}")
    if request.platform == JaxPlatform.CUDA:
        unused.append("--platform=cuda")
    if unused:
        raise RequestError(
            f"{', '.join(unused)} cannot be used with --cluster.",
            hint="Omit it, or run the gate without --cluster.",
        )
    if request.jax_tests and "://" not in request.jax_tests:
        raise RequestError(
            f"--jax-tests is a folder of this machine: {request.jax_tests}.",
            hint="With --cluster, give URL@COMMIT.",
        )


def run_on_cluster(
    config: DeviceGateConfig,
    staged: StagedSet,
    bucket: Bucket,
    reporter: Reporter,
    runner: HostRunner,
    *,
    tasks: Tasks,
    redo: bool,
    channel: str,
) -> tuple[Evidence, ...]:
    """Run the gate for each kind of GPU of the family's runners; see `device_gate.run`."""
    wheel_set = read_staged(bucket, staged)
    python = config.python or wheel_set.python_versions[0]
    config = replace(config, machine=MachineInfo(devices=()), python=python)
    targets = device_gate.covered_targets(config, wheel_set) or ()
    kinds = [GfxTarget.parse(target).processor for target in targets]
    family = load_families().families.get(config.request.family)
    tested = [kind for kind in kinds if family and kind in family.targets]
    count = config.request.devices or 1
    evidences: list[Evidence] = []
    for kind in dict.fromkeys(tested or kinds or [""]):
        own = config
        if kind:  # as if this machine had the GPUs of a worker
            devices = [GpuDevice(index=number, gfx=kind) for number in range(count)]
            machine = MachineInfo(devices=tuple(devices))
            own = replace(config, machine=machine, environ={}, devices=(count,))
        evidences += device_gate.run(
            own,
            staged,
            bucket,
            reporter,
            runner,
            redo=redo,
            channel=channel,
            checks=partial(shard_checks, tasks=tasks, gfx=kind),
        )
    return tuple(evidences)


def shard_checks(
    context: GateContext, config: DeviceGateConfig, *, tasks: Tasks, gfx: str
) -> Iterator[Check]:
    """Run all shards, and yield the checks of their tests.

    Args:
        gfx: kind of GPU of the workers; empty for a run on CPUs.

    Raises:
        RequestError: options are wrong, such as variables of JAX's script.
        GateError: shards failed, or collected different tests.
        MachineError: shards were lost with their workers, or no worker can be reached.
    """
    folder = context.work / "set"
    results = context.work / "results"
    results.mkdir()
    context.progress.step(f"fetch {context.staged}")
    fetch_set(context.bucket, context.staged, folder)
    shards = []
    for number in range(1, SHARDS + 1):
        task = Task(
            kind=KIND,
            label=f"{config.gate_name} {gfx} shard {number}/{SHARDS}",
            arguments={
                "bucket": config.bucket_anywhere,
                "request": _request_json(replace(config.request, python=config.python)),
                "shard": [number, SHARDS],
            },
            inputs={"set": folder},
            resources={gfx: 1.0} if gfx else {},
        )
        shards.append(task)
    done = sorted(tasks.run(shards, results), key=lambda result: result.task.label)
    if failed := [result for result in done if result.error]:
        raise _failure(failed)
    outcome = merge([read_outcome(result.folder) for result in done])
    logs = {}
    for number, result in enumerate(done, 1):
        logs[f"{number}.{LOGS}"] = (result.folder / LOGS).read_bytes()
    yield from checks_of_run(context, config, context.targets[0], outcome, logs)


def _request_json(request: DeviceRequest) -> Mapping[str, Any]:
    """Return the options of a request that differ from their defaults."""
    values = {}
    for option in fields(DeviceRequest):
        value = getattr(request, option.name)
        if value != option.default:
            values[option.name] = value
    return values


def _failure(failed: Sequence[TaskResult]) -> CiBuildError:
    """Return the error of a run with failed shards."""
    kinds = {result.kind for result in failed}
    kind: type[CiBuildError] = GateError
    if RequestError in kinds:
        kind = RequestError
    elif kinds == {MachineError}:
        kind = MachineError
    texts = []
    for result in failed:
        place = f" on {result.worker}" if result.worker else ""
        texts.append(f"{result.task.label}{place}: {result.error}")
    return kind("; ".join(texts), hint="Run the gate again.")


def run_shard(arguments: Mapping[str, Any], context: TaskContext) -> None:
    """Run one shard on this worker's GPUs; its outcome and logs are the files of the result.

    Raises:
        MachineError: the machine is unfit.
        GateError: the shard could not run.
    """
    request = DeviceRequest(**arguments["request"])
    bucket = DirBucket(context.scratch / "bucket")
    staged = stage(bucket, context.inputs["set"])
    runner = context.runner
    number, count = arguments["shard"]
    shard = Shard(number=number, count=count, folder=context.folder)
    config = device_gate.parse_config(request, runner.environment, runner, None, "")
    config = replace(config, bucket=arguments["bucket"], shard=shard)
    (evidence, *_) = device_gate.run(
        config,
        staged,
        bucket,
        Reporter(terminal=False),
        runner,
        redo=True,
        channel="local",
    )
    messages = [finding.message for finding in evidence.findings]
    errors = "; ".join(messages) or "no reason was given"
    if is_machine_failure(evidence):
        raise MachineError(errors, hint="Fix the machine, and start its worker again.")
    if not (context.folder / OUTCOME).exists():
        raise GateError(errors, hint="Run the gate again.")
