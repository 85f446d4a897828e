"""The gate device on a cluster.

The shards of a run are tasks for workers that offer GPUs as resources.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from core.errors import GateError, MachineError, RequestError
from core.model import GfxTarget
from core.tasks import Task, TaskInput, TaskResult, Tasks
from promotion.evidence.evidence import ANY
from promotion.gates.common.gate_context import Gate, GateContext
from promotion.gates.device.config import DeviceGateConfig
from promotion.gates.device.device_request import DeviceRequest
from promotion.gates.device.gpu_machine import MachineInfo
from promotion.gates.device.lease import RAM_SHARE, GpuDevice, JaxPlatform
from promotion.gates.device.merge import merged_checks
from promotion.gates.device.shards import SHARD_FILE, Shard, ShardResult, load_shard
from promotion.stage import fetch_set
from promotion.storage.bucket import sha256_of

KIND = "device-shard"
SHARDS = 8
"""Default number of tasks of a run: some for each worker, so that slow ones get fewer."""
NOT_SENT = (
    *(
        "tests",
        "shard",
        "also",
        "rocm",
        "rocm_of_set",
        "image",
        "inside",
        "work",
    ),
    "wheelhouse",
)
"""Options of the gate that a run on a cluster does not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterRun:
    """A run on a cluster.

    Attributes:
        shards: number of tasks that share the tests of a target.
    """

    tasks: Tasks
    shards: int


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


def make_cluster_gate(config: DeviceGateConfig, run: ClusterRun) -> Gate:
    """Return the gate for one target, whose tests run on a cluster."""
    return Gate(
        name=config.gate_name,
        tier=config.tier,
        per_target=config.platform is JaxPlatform.ROCM,
        run=lambda context: merged_checks(
            context, config, run_shards(context, config, run)
        ),
        settings=config.settings,
        has_options=True,
    )


def run_shards(
    context: GateContext, config: DeviceGateConfig, run: ClusterRun
) -> tuple[ShardResult, ...]:
    """Run all shards on the cluster and return their results in order.

    Their attachments go beside the set.

    Raises:
        RequestError: options are wrong, such as variables of JAX's script.
        GateError: shards failed, or differ in settings or collected tests.
        MachineError: shards were lost with their workers, or no worker can be reached.
    """
    target = context.targets[0] if config.platform is JaxPlatform.ROCM else ANY
    results: dict[int, ShardResult] = {}
    failed: list[TaskResult] = []
    tasks = _tasks(context, config, run, target)
    numbers = {task.key: number for number, task in enumerate(tasks, start=1)}
    work = context.work / "results"
    work.mkdir()
    for result in run.tasks.run(tasks, work):
        if result.error:
            failed.append(result)
        else:
            results[numbers[result.task.key]] = _received(context, config, result)
    if failed:
        kinds = {result.kind for result in failed}
        kind = (
            RequestError
            if RequestError in kinds
            else MachineError
            if kinds == {MachineError}
            else GateError
        )
        texts = (
            f"{result.task.label}{' on ' + result.worker if result.worker else ''}: {result.error}"
            for result in failed
        )
        raise kind("; ".join(texts), hint="Run the gate again.")
    shards = tuple(results[number] for number in sorted(results))
    _check_shards(shards, config, run, target)
    return shards


def _tasks(
    context: GateContext, config: DeviceGateConfig, run: ClusterRun, target: str
) -> Sequence[Task]:
    """Return the task of each shard; the set and the durations of its tests travel by digest."""
    folder = context.work / "set"
    seconds = context.work / "seconds.json"
    context.progress.step(f"fetch {context.staged}")
    fetch_set(context.bucket, context.staged, folder)
    seconds.write_text(json.dumps(config.seconds or {}, sort_keys=True))
    inputs = {"set": TaskInput.of(folder), "seconds": TaskInput.of(seconds)}
    is_rocm = config.platform is JaxPlatform.ROCM
    devices = config.request.devices or 1
    gfx = GfxTarget.parse(target).processor if is_rocm else ""
    return [
        Task(
            kind=KIND,
            label=f"{config.gate_name} {target} shard {number}/{run.shards}",
            arguments={
                "gfx": gfx,
                "bucket": config.options.get("--bucket", ""),
                "request": request_json(
                    replace(
                        config.request,
                        python=config.python,
                        shard=f"{number}/{run.shards}",
                    )
                ),
            },
            inputs=inputs,
            resources={gfx: float(devices)} if is_rocm else {},
            memory_mb=devices * RAM_SHARE // 1_000_000 if is_rocm else 0,
        )
        for number in range(1, run.shards + 1)
    ]


def request_json(request: DeviceRequest) -> Mapping[str, Any]:
    """Return the options of a request that differ from their defaults, as JSON values."""
    values = {
        field.name: getattr(request, field.name) for field in fields(DeviceRequest)
    }
    defaults = {field.name: field.default for field in fields(DeviceRequest)}
    return {name: value for name, value in values.items() if value != defaults[name]}


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
            f"{result.task.label} returned {len(found)} shards.",
            hint="Run the gate again.",
        )
    return load_shard(
        found[0].read_bytes(), found[0].name, context.staged, config.gate_name
    )


def _check_shards(
    shards: Sequence[ShardResult],
    config: DeviceGateConfig,
    run: ClusterRun,
    target: str,
) -> None:
    problems = [*_differences(shards, config, target)]
    if len({shard.tests for shard in shards}) > 1:
        problems.append("the shards collected different tests")
    expected = [
        Shard(number=number, count=run.shards) for number in range(1, run.shards + 1)
    ]
    if [shard.shard for shard in shards] != expected:
        problems.append(
            f"the shards are {', '.join(str(shard.shard) for shard in shards)} of {run.shards}"
        )
    if problems:
        raise GateError(
            f"The shards do not belong together: {'; '.join(problems)}.",
            hint="Run the gate again.",
        )


def _differences(
    shards: Sequence[ShardResult], config: DeviceGateConfig, target: str
) -> Iterator[str]:
    for shard in shards:
        wrong = [
            f"{name} is {shard.settings.get(name, '')!r}, not {config.settings.get(name, '')!r}"
            for name in sorted({*shard.settings, *config.settings})
            if shard.settings.get(name, "") != config.settings.get(name, "")
        ]
        wrong += (
            []
            if shard.target == target
            else [f"it is for {shard.target}, not {target}"]
        )
        if wrong:
            yield f"shard {shard.shard}: {', '.join(wrong)}"
