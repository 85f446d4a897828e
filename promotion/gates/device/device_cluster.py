"""The gate device on several machines.

Shards of the tests are tasks for the workers of a cluster that offer GPUs as resources,
and their results are merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from core.digests import sha256_of
from core.errors import CiBuildError, GateError, MachineError, RequestError
from core.model import GfxTarget
from core.tasks import Task, TaskResult, Tasks
from promotion.evidence.evidence import ANY
from promotion.gates.common.gate_context import Check, Gate, GateContext, warning
from promotion.gates.device.config import DeviceGateConfig, reproduce
from promotion.gates.device.device_evidence import checks_of_tests
from promotion.gates.device.device_request import DeviceRequest
from promotion.gates.device.device_run import NOTE
from promotion.gates.device.gpu_machine import MachineInfo
from promotion.gates.device.lease import RAM_SHARE, GpuDevice, JaxPlatform
from promotion.gates.device.run_check import raise_unless_complete, run_check
from promotion.gates.device.shards import (
    SHARD_FILE,
    ShardResult,
    join_results,
    load_shard,
)
from promotion.stage import fetch_set


def merged_checks(
    context: GateContext, config: DeviceGateConfig, shards: Sequence[ShardResult]
) -> Iterator[Check]:
    """Yield the checks of all tests of a run, and the check of the run.

    Raises:
        GateError: the run is incomplete, or two shards ran the same test.
        MachineError: the machines caused all problems.
    """
    results = join_results(shards)
    target = shards[0].target
    found: list[tuple[str, str]] = []
    problems: list[str] = []
    for shard in shards:
        found += [(NOTE, note) for note in shard.notes]
        found += shard.warnings
        problems += [f"shard {shard.shard}: {problem}" for problem in shard.problems]
    again = partial(reproduce, config.words, str(context.staged))
    yield from checks_of_tests(results, target, again, config.exceptions)
    yield run_check(
        context,
        config,
        target,
        results,
        details={
            "suite": config.suite,
            "shards": [dict(shard.run) for shard in shards],
        },
        warnings=[warning(code, text) for code, text in dict.fromkeys(found)],
    )
    raise_unless_complete(tuple(problems), len(results), results)


KIND = "device-shard"
SHARDS = 8
"""Number of tasks that share the tests of a target.

Some for each worker, so that slow ones get fewer.
"""
NOT_SENT = (
    "tests",
    "also",
    "rocm",
    "rocm_of_set",
    "image",
    "inside",
    "wheelhouse",
)
"""Options of the gate that a run on a cluster does not have."""


def with_offered_devices(config: DeviceGateConfig, target: str) -> DeviceGateConfig:
    """Return the configuration as if this machine had the GPUs that each worker's task gets."""
    if config.platform is not JaxPlatform.ROCM:
        return config
    gfx = GfxTarget.parse(target).processor
    count = config.request.devices or 1
    devices = tuple(GpuDevice(index=number, gfx=gfx) for number in range(count))
    return replace(
        config, machine=MachineInfo(devices=devices), environ={}, devices=(count,)
    )


def make_cluster_gate(config: DeviceGateConfig, tasks: Tasks) -> Gate:
    """Return the gate for one target, whose tests run on a cluster."""
    return Gate(
        name=config.gate_name,
        tier=config.tier,
        per_target=config.platform is JaxPlatform.ROCM,
        run=lambda context: merged_checks(
            context, config, run_shards(context, config, tasks)
        ),
        settings=config.settings,
        has_options=True,
    )


def run_shards(
    context: GateContext, config: DeviceGateConfig, tasks: Tasks
) -> tuple[ShardResult, ...]:
    """Run all shards on the cluster and return their results in order.

    Their attachments go beside the set.

    Raises:
        RequestError: options are wrong, such as variables of JAX's script.
        GateError: shards failed, or collected different tests.
        MachineError: shards were lost with their workers, or no worker can be reached.
    """
    shards: list[ShardResult] = []
    failed: list[TaskResult] = []
    work = context.work / "results"
    work.mkdir()
    for result in tasks.run(_tasks(context, config), work):
        if result.error:
            failed.append(result)
        else:
            shards.append(_received(context, config, result))
    if failed:
        raise _failure(failed)
    shards.sort(key=lambda shard: shard.shard.number)
    if len({shard.tests for shard in shards}) > 1:
        raise GateError(
            "The shards collected different tests.",
            hint="Correct the machines of the workers, and run the gate again.",
        )
    return tuple(shards)


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


def _tasks(context: GateContext, config: DeviceGateConfig) -> Sequence[Task]:
    """Return the task of each shard."""
    folder = context.work / "set"
    context.progress.step(f"fetch {context.staged}")
    fetch_set(context.bucket, context.staged, folder)
    devices = config.request.devices or 1
    target = ANY
    gfx = ""
    resources: dict[str, float] = {}
    memory_mb = 0
    if config.platform is JaxPlatform.ROCM:
        target = context.targets[0]
        gfx = GfxTarget.parse(target).processor
        resources = {gfx: float(devices)}
        memory_mb = devices * RAM_SHARE // 1_000_000
    tasks = []
    for number in range(1, SHARDS + 1):
        request = replace(config.request, python=config.python)
        task = Task(
            kind=KIND,
            label=f"{config.gate_name} {target} shard {number}/{SHARDS}",
            arguments={
                "gfx": gfx,
                "bucket": config.bucket_anywhere,
                "request": request_json(request),
                "shard": [number, SHARDS],
            },
            inputs={"set": folder},
            resources=resources,
            memory_mb=memory_mb,
        )
        tasks.append(task)
    return tasks


def request_json(request: DeviceRequest) -> Mapping[str, Any]:
    """Return the options of a request that differ from their defaults, as JSON values."""
    values = {}
    for item in fields(DeviceRequest):
        value = getattr(request, item.name)
        if value != item.default:
            values[item.name] = value
    return values


def _received(
    context: GateContext, config: DeviceGateConfig, result: TaskResult
) -> ShardResult:
    """Return the shard in the files of a result, and store the other files beside the set."""
    found: list[Path] = []
    for path in sorted(path for path in result.folder.rglob("*") if path.is_file()):
        if path.name.endswith(f".{SHARD_FILE}"):
            found.append(path)
        else:
            key = context.staged.evidence + path.relative_to(result.folder).as_posix()
            context.bucket.put_if_absent(key, path, sha256=sha256_of(path))
    if len(found) != 1:
        raise GateError(
            f"{result.task.label} returned {len(found)} shards instead of one.",
            hint="Run the gate again.",
        )
    return load_shard(
        found[0].read_bytes(), found[0].name, context.staged, config.gate_name
    )
