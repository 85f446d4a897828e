"""The gate device with `--cluster`: the run of this machine, and the shards that workers run."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from ci_build.release import device_gate, gating
from core.errors import GateError, MachineError, RequestError
from core.model import Evidence
from core.process import HostRunner
from core.report import Reporter
from core.tasks import TaskContext, Tasks
from promotion.evidence.evidence import ANY, is_machine_failure
from promotion.gates.common.gate_runs import run_gates
from promotion.gates.device.config import DeviceGateConfig
from promotion.gates.device.device_cluster import (
    NOT_SENT,
    make_cluster_gate,
    with_offered_devices,
)
from promotion.gates.device.device_request import DeviceRequest
from promotion.gates.device.gpu_machine import (
    KUBE,
    MachineInfo,
    detect_allotment,
    detect_machine,
)
from promotion.gates.device.lease import GpuDevice, JaxPlatform, visible_devices
from promotion.gates.device.shards import SHARD_FILE, Shard
from promotion.policy.families import load_families
from promotion.stage import read_staged, stage
from promotion.storage.bucket import Bucket
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import StagedSet

_LOCK = threading.Lock()
_TAKEN: set[str] = set()
"""Tokens of the GPUs that tasks of this worker use."""


def check_cluster_options(request: DeviceRequest) -> None:
    """Raise RequestError for options that a run on a cluster does not have."""
    defaults = DeviceRequest(platform=request.platform)
    given = [
        name for name in NOT_SENT if getattr(request, name) != getattr(defaults, name)
    ]
    if given:
        names = ", ".join(
            "--" + {"tests": "test"}.get(name, name).replace("_", "-") for name in given
        )
        raise RequestError(
            f"{names} cannot be used with --cluster.",
            hint="Omit it, or run the gate without --cluster.",
        )
    if request.platform == JaxPlatform.CUDA:
        raise RequestError(
            "--platform=cuda cannot be used with --cluster.",
            hint="Run the gate without --cluster.",
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
    """Run the gate for each target of the family that has machines, and store its evidence.

    See `device_gate.run`.
    """
    wheel_set = read_staged(bucket, staged)
    days = gating.policy_of(bucket, staged.index, channel).max_age_days
    python = config.python or wheel_set.python_versions[0]
    device_gate.check_python(python, wheel_set.python_versions)
    config = replace(
        device_gate.with_known_tests(config, wheel_set),
        python=python,
    )
    targets = device_gate.covered_targets(
        replace(config, machine=MachineInfo(devices=())), wheel_set
    )
    families = load_families().families
    if targets and config.request.family in families:
        machines = families[config.request.family].targets
        tested = tuple(t for t in targets if t.partition(":")[0] in machines)
        targets = tested or targets
    evidences: list[Evidence] = []
    for target in targets or (ANY,):
        own = with_offered_devices(config, target)
        evidences += run_gates(
            bucket,
            staged,
            [make_cluster_gate(own, tasks)],
            runner,
            reporter,
            targets=(target,) if targets else None,
            redo=redo,
            max_age=None if days is None else timedelta(days=days),
            signer=config.signer,
        )
    return tuple(evidences)


def run_shard(arguments: Mapping[str, Any], context: TaskContext) -> str:
    """Run one shard on this worker's GPUs.

    The shard and its attachments are the files of the result.

    Returns:
        The target of the shard.

    Raises:
        MachineError: the machine is unfit, or lacks the GPUs that the worker offers.
        GateError: the shard could not run.
    """
    request = DeviceRequest(**arguments["request"])
    bucket = DirBucket(context.scratch / "bucket")
    staged = stage(bucket, context.inputs["set"])
    reporter = Reporter(terminal=False)
    with leased(arguments["gfx"], request.devices or 1, context.runner) as environ:
        config = device_gate.parse_config(request, environ, context.runner, None, "")
        number, count = arguments["shard"]
        shard = Shard(number=number, count=count)
        config = replace(config, bucket=arguments["bucket"], shard=shard)
        (evidence, *_) = device_gate.run(
            config, staged, bucket, reporter, context.runner, redo=True, channel="local"
        )
    for key in bucket.list(staged.evidence):
        path = context.folder / key.removeprefix(staged.evidence)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(bucket.root) / key, path)
    messages = [finding.message for finding in evidence.findings]
    errors = "; ".join(messages) or "no reason was given"
    if is_machine_failure(evidence):
        raise MachineError(errors, hint="Fix the machine, and start its worker again.")
    if not [*context.folder.rglob(f"*.{SHARD_FILE}")]:
        raise GateError(errors, hint="Run the gate again.")
    return evidence.target


@contextmanager
def leased(gfx: str, count: int, runner: HostRunner) -> Iterator[Mapping[str, str]]:
    """Take GPUs that no other task of this worker uses.

    Provide an environment with only these, and a share of cores as Kubernetes' limit.

    Args:
        gfx: kind of GPU; empty for a run on a CPU, which gets all cores.

    Raises:
        MachineError: the worker offers more GPUs than the machine has.
    """
    environ = dict(runner.environment)
    if not gfx:
        yield environ
        return
    present = visible_devices(
        detect_machine(JaxPlatform.ROCM, runner).devices, JaxPlatform.ROCM, environ
    )
    own = [device for device in present if device.gfx == gfx]
    taken = _take(own, gfx, count)
    cores = detect_allotment(environ).cores
    lowest, *upper = JaxPlatform.ROCM.masks
    for name in upper:
        environ.pop(name, None)
    environ[lowest] = ",".join(taken)
    environ[KUBE] = str(max(1, cores * count // len(present)))
    try:
        yield environ
    finally:
        with _LOCK:
            _TAKEN.difference_update(taken)


def _take(devices: Sequence[GpuDevice], gfx: str, count: int) -> list[str]:
    with _LOCK:
        free = [device.token for device in devices if device.token not in _TAKEN]
        if len(free) >= count:
            _TAKEN.update(free[:count])
            return free[:count]
    raise MachineError(
        f"The machine has {len(free)} free GPUs of {gfx}, and a task needs {count}.",
        hint="Start the worker with the --resources that it has.",
    )
