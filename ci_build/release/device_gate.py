"""The device gate on the command line.

Its configuration from options, and the output of its evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from ci_build.release import gating
from core.errors import RequestError
from core.model import Evidence, WheelSet
from core.process import Runner
from core.report import Reporter
from core.targets import expand
from promotion.evidence.evidence import check_records
from promotion.evidence.signing import Signer
from promotion.evidence.test_results import TestVerdict
from promotion.gates.common.gate_runs import run_gates
from promotion.gates.common.pythons import find_pythons
from promotion.gates.device.config import DeviceGateConfig
from promotion.gates.device.device_evidence import first_lines
from promotion.gates.device.device_request import (
    DeviceRequest,
)
from promotion.gates.device.device_run import RunChecks, make_gate
from promotion.gates.device.gpu_machine import detect_machine
from promotion.gates.device.lease import JaxPlatform, visible_devices
from promotion.gates.device.run_outcome import RUN
from promotion.gates.device.suite import parse_source, suite_id
from promotion.policy.exceptions import PolicyException
from promotion.policy.families import load_families
from promotion.policy.promotion_policy import load_exceptions
from promotion.stage import read_staged
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import StagedSet

SHOWN_FAILURES = 3
"""Number of failures that are printed with their tracebacks."""
_TRACEBACK_LINES = 40


def parse_config(
    request: DeviceRequest,
    environ: Mapping[str, str],
    runner: Runner,
    signer: Signer | None,
    bucket: str,
) -> DeviceGateConfig:
    """Return the configuration for a request; `environ` is the environment of the tests.

    Raises:
        RequestError: options are invalid or contradict each other.
        InputError: the suite does not exist.
    """
    check_options(request)
    source = parse_source(request.jax_tests) if request.jax_tests else None
    folders = {}
    for name in ("rocm", "also", "wheelhouse"):
        folder = getattr(request, name)
        folders[name] = folder and folder.absolute()
    return DeviceGateConfig(
        request=replace(request, **folders),
        machine=detect_machine(JaxPlatform(request.platform), runner),
        environ=environ,
        source=source,
        suite=suite_id(source),
        devices=device_counts(request),
        python=request.python,
        bucket=bucket,
        signer=signer,
    )


def device_counts(request: DeviceRequest) -> tuple[int, ...]:
    """Return this machine's possible device counts, from `--devices` or the family."""
    if request.devices is not None:
        return (request.devices,)
    # Only the platform rocm has a family.
    family = load_families().families.get(request.family)
    return family.device_counts if family else ()


def check_options(request: DeviceRequest) -> None:
    """Raise RequestError if options are invalid, contradict each other or have no effect."""
    platform = JaxPlatform(request.platform)
    rocm = platform is JaxPlatform.ROCM
    if rocm and not request.family:
        raise RequestError(
            "Platform rocm needs --family.",
            hint="Name the runner's GPU family, for example gfx94X-dcgpu.",
        )
    without_effect = {
        "--family": bool(request.family) and not rocm,
        "--rocm": (request.rocm is not None or request.rocm_of_set) and not rocm,
        "--also": request.also is not None and platform is not JaxPlatform.CUDA,
        "--devices": request.devices is not None and platform is JaxPlatform.CPU,
    }
    if unused := [name for name, is_unused in without_effect.items() if is_unused]:
        raise RequestError(
            f"Platform {platform} does not use {', '.join(unused)}.",
            hint="Omit these options.",
        )
    if request.size and not request.jax_tests:
        raise RequestError("--size requires --jax-tests.", hint="Give --jax-tests too.")
    if request.size and request.tests:
        raise RequestError("--size contradicts --test.", hint="Give one of them.")


def covered_targets(
    config: DeviceGateConfig, wheel_set: WheelSet
) -> tuple[str, ...] | None:
    """Return the set's targets that this machine can test; None if the platform has no targets.

    Raises:
        RequestError: the set has none of the family's targets.
    """
    if config.platform is not JaxPlatform.ROCM:
        return None
    family = {str(target) for target in expand(config.request.family)}
    shared = tuple(
        target for target in wheel_set.targets if target.partition(":")[0] in family
    )
    if not shared:
        hint = f"Give a family with one of {', '.join(wheel_set.targets)}."
        raise RequestError(
            f"The set has no target of {config.request.family}.", hint=hint
        )
    devices = visible_devices(config.machine.devices, config.platform, config.environ)
    present = {device.gfx for device in devices}
    here = tuple(target for target in shared if target.partition(":")[0] in present)
    return here or shared


def run(
    config: DeviceGateConfig,
    staged: StagedSet,
    bucket: Bucket,
    reporter: Reporter,
    runner: Runner,
    *,
    redo: bool,
    channel: str,
    checks: RunChecks | None = None,
) -> tuple[Evidence, ...]:
    """Run the gate, and store its result as evidence, or as the outcome of a shard.

    Args:
        checks: function that runs the tests elsewhere; None runs them on this machine.
        channel: channel whose policy limits the age of reused evidence; that of an
            existing index counts first.
    """
    wheel_set = read_staged(bucket, staged)
    days = gating.policy_of(bucket, staged.index, channel).max_age_days
    targets = covered_targets(config, wheel_set)
    config = replace(
        config,
        exceptions=_exceptions(wheel_set),
        python=_python(config.python, wheel_set.python_versions, runner),
    )
    return run_gates(
        bucket,
        staged,
        [make_gate(config, checks)],
        runner,
        reporter,
        targets=targets,
        redo=redo,
        max_age=None if days is None else timedelta(days=days),
        signer=config.signer,
    )


def check_python(python: str, supported: Sequence[str]) -> None:
    """Raise RequestError if a set does not support a Python version."""
    if python not in supported:
        hint = f"Give one of {', '.join(supported)}."
        raise RequestError(f"The set does not support Python {python}.", hint=hint)


def _python(requested: str, supported: Sequence[str], runner: Runner) -> str:
    """Return the requested Python version, or else the set's first version on this machine.

    Raises:
        RequestError: the set does not support the requested version.
    """
    if requested:
        check_python(requested, supported)
        return requested
    installed = find_pythons(supported, runner)
    usable = [version for version in supported if version in installed]
    return (usable or supported)[0]


def _exceptions(wheel_set: WheelSet) -> tuple[PolicyException, ...]:
    """Return the valid exceptions of a set."""
    now = datetime.now(UTC)
    exceptions = load_exceptions()
    return tuple(
        entry
        for entry in exceptions
        if entry.is_for(wheel_set) and not entry.state(now)
    )


def show(
    request: DeviceRequest,
    evidences: Sequence[Evidence],
    staged: StagedSet,
    reporter: Reporter,
) -> None:
    """Print the verdicts and the next command."""
    gating.show_evidence(evidences, reporter)
    if rows := [*_verdict_rows(evidences)]:
        columns = (
            "gate",
            "target",
            "result",
            *(verdict.value for verdict in TestVerdict),
        )
        reporter.table(columns, rows, numeric=range(3, 10))
    if request.tests:
        reporter.line("  only part of the suite ran; no evidence was stored")
    else:
        reporter.line(f"  `ci_build ci policy {staged}` shows what blocks the set")


def _verdict_rows(evidences: Sequence[Evidence]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each run with the number of tests per verdict."""
    for evidence in evidences:
        for check in check_records(evidence):
            if check.get("name") == RUN:
                verdicts = check.get("verdicts", {})
                numbers = (str(verdicts.get(one.value, 0)) for one in TestVerdict)
                yield (evidence.gate, evidence.target, evidence.outcome.value, *numbers)


def failure_lines(evidences: Sequence[Evidence]) -> Iterator[str]:
    """Yield the tracebacks of the first failures; the error of the gate names all."""
    failures = []
    for evidence in evidences:
        for check in check_records(evidence):
            if "attempts" in check and check["outcome"] in ("failed", "skipped"):
                failures.append(check)
    for check in failures[:SHOWN_FAILURES]:
        yield f"--- {check['name']}"
        for line in first_lines(str(check.get("error", "")), _TRACEBACK_LINES):
            yield f"    {line}"
