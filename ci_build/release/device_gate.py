"""The device gate as a person asks for it: words become what it is told, and what it says is shown.

Part of the command line, as `gating` is.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from uv import find_uv_bin

from ci_build.cli import options
from ci_build.release import gating
from ci_build.release import release as way
from core.errors import GateError, RequestError
from core.model import Evidence
from core.process import Runner
from core.report import Reporter
from core.targets import expand
from promotion.evidence.known_tests import known_for, load_entries
from promotion.evidence.signing import Signer
from promotion.evidence.test_runs import read_runs
from promotion.gates import run_gates
from promotion.gates.common.pythons import find_pythons
from promotion.gates.device import merge, view
from promotion.gates.device.baseline import baseline
from promotion.gates.device.config import AUTO, Told
from promotion.gates.device.machine import lister
from promotion.gates.device.lease import Platform, visible
from promotion.gates.device.shards import collect
from promotion.gates.device.results import load_results
from promotion.gates.device.run import make_gate
from promotion.gates.device.run_record import remember
from promotion.gates.device.sessions.session import Limits
from promotion.gates.device.shards import parse_shard
from promotion.gates.device.suite import identify, parse_source, read_list
from promotion.policy.families import load_families
from promotion.stage import read_staged
from promotion.storage.bucket import Bucket
from promotion.storage.keys import StagedSet

_IMAGE = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")


def tell(words: options.DeviceOptions, runner: Runner, signer: Signer | None, bucket: str) -> Told:
    """What the gate is told.

    Raises:
        RequestError: options that contradict each other, or say nothing that can be understood.
        InputError: there is no such suite.
    """
    platform = Platform(words.platform)
    _refuse(words, platform)
    source = parse_source(words.jax_tests) if words.jax_tests else None
    listed = (*words.tests, *(read_list(words.test_list) if words.test_list else ()))
    environ = options.environment()
    return Told(
        platform=platform,
        machine=lister(platform, runner).machine(),
        environ=environ,
        family=words.family,
        source=source,
        suite=identify(source, runner),
        size="" if listed or source is None else words.size or "large",
        devices=_counts(words, platform),
        listed=listed,
        shard=parse_shard(words.shard) if words.shard else None,
        per_device=AUTO if words.workers_per_device == "auto" else int(words.workers_per_device or 1),
        workers=words.workers,
        cpus=words.cpus,
        python=words.python,
        rocm=words.rocm.absolute() if words.rocm else None,
        also=words.also.absolute() if words.also else None,
        image=words.image,
        folder=words.work.absolute() if words.work else None,
        retries=words.retries,
        limits=replace(Limits(), test=words.test_timeout),
        bucket=bucket,
        signer=signer,
    )


def _counts(words: options.DeviceOptions, platform: Platform) -> tuple[int, ...]:
    """How many devices this machine may have: what it was told, else what runners of the family have."""
    if words.devices is not None:
        return (words.devices,)
    families = load_families().families if platform is Platform.ROCM else {}
    return families[words.family].device_counts if words.family in families else ()


def _refuse(words: options.DeviceOptions, platform: Platform) -> None:
    rocm = platform is Platform.ROCM
    if rocm and not words.family:
        raise RequestError("Platform rocm needs --family.", hint="Say what the runner has, such as gfx94X-dcgpu.")
    strange = {
        "--family": bool(words.family) and not rocm,
        "--rocm": words.rocm is not None and not rocm,
        "--also": words.also is not None and platform is not Platform.CUDA,
        "--devices": words.devices is not None and platform is Platform.CPU,
        "--workers-per-device": bool(words.workers_per_device) and platform is Platform.CPU,
        "--workers": bool(words.workers) and platform is not Platform.CPU,
    }
    if unused := [name for name, is_strange in strange.items() if is_strange]:
        raise RequestError(f"Platform {platform} has no use for {', '.join(unused)}.", hint="Leave it out.")
    if words.size and not words.jax_tests:
        raise RequestError("--size is about JAX's suite.", hint="Give --jax-tests too.")
    if words.size and (words.tests or words.test_list):
        raise RequestError("--size contradicts --test and --test-list.", hint="Give one of them.")
    if words.shard and (words.tests or words.test_list):
        raise RequestError("--shard contradicts --test and --test-list.", hint="Give one of them.")
    if words.workers_per_device and not re.fullmatch(r"auto|[1-9][0-9]?", words.workers_per_device):
        raise RequestError(f"--workers-per-device is {words.workers_per_device!r}.", hint="Give a number, or auto.")
    if words.image and not _IMAGE.fullmatch(words.image):
        raise RequestError(f"--image {words.image} has no digest.", hint="Write it like NAME@sha256:….")


def targets_of(told: Told, staged: StagedSet, bucket: Bucket) -> tuple[str, ...] | None:
    """The targets of the set that this machine can say something of; None where the platform has no targets.

    Raises:
        RequestError: the set is for none of the family's targets.
    """
    if told.platform is not Platform.ROCM:
        return None
    family = {str(target) for target in expand(told.family)}
    own = read_staged(bucket, staged).targets
    wanted = tuple(target for target in own if target.partition(":")[0] in family)
    if not wanted:
        raise RequestError(f"The set is not for {told.family}.", hint=f"It is for {', '.join(own)}.")
    there = {device.gfx for device in visible(told.machine.devices, told.platform, told.environ)}
    return tuple(target for target in wanted if target.partition(":")[0] in there) or wanted


def run(
    told: Told, staged: StagedSet, bucket: Bucket, reporter: Reporter, runner: Runner, *, redo: bool
) -> tuple[Evidence, ...]:
    """Run the gate; a shard is kept as such, everything else as evidence."""
    targets = targets_of(told, staged, bucket)
    told = replace(
        _informed(told, staged, bucket),
        python=_python(told.python, staged, bucket, runner),
        seconds=_seconds(told, staged, bucket, (targets or ("any",))[0]),
        on_progress=reporter.count_tests,
    )
    signer = told.signer
    made = run_gates(bucket, staged, [make_gate(told)], runner, reporter, targets=targets, redo=redo, signer=signer)
    if not told.shard and not told.listed:
        remember(bucket, staged, read_staged(bucket, staged), made)
    return made


def _python(asked: str, staged: StagedSet, bucket: Bucket, runner: Runner) -> str:
    """The version to test with: what is asked for, else the set's first that is on this machine.

    Raises:
        RequestError: the set is not for it.
    """
    own = read_staged(bucket, staged).python_versions
    if asked and asked not in own:
        raise RequestError(f"The set is not for Python {asked}.", hint=f"It is for {', '.join(own)}.")
    if asked:
        return asked
    found = find_pythons(own, runner, find_uv_bin())
    return next((version for version in own if version in found), own[0])


def _informed(told: Told, staged: StagedSet, bucket: Bucket) -> Told:
    """With what is known of tests: the ledgers, and what was flaky before."""
    jax, platform = read_staged(bucket, staged).jax_version, told.platform.value
    today = datetime.now(UTC).date()
    known = known_for(load_entries(), jax=jax, family=told.family, platform=platform, today=today)
    with read_runs(bucket, staged.index) as history:
        flaky = history.flaky_before(platform=platform, family=told.family, but=staged.digest)
    return replace(told, known=known, flaky_before=flaky)


def join(told: Told, staged: StagedSet, bucket: Bucket, reporter: Reporter, runner: Runner) -> tuple[Evidence, ...]:
    """Make one word of what the shards said."""
    targets = targets_of(told, staged, bucket)
    told = _informed(told, staged, bucket)
    parts = collect(bucket, staged, told.gate_name, told.settings, targets, told.signer)
    gates = [merge.make_gate(told, parts)]
    about = None if targets is None else [parts.target]
    made = run_gates(bucket, staged, gates, runner, reporter, targets=about, redo=True, signer=told.signer)
    remember(bucket, staged, read_staged(bucket, staged), made)
    return made


def _seconds(told: Told, staged: StagedSet, bucket: Bucket, target: str) -> dict[str, float]:
    """How long each test took on the set that was promoted last; all shards have to know the same."""
    if told.shard is None:
        return {}
    before = baseline(bucket, staged.index, told.gate_name, target, told.settings, alike=("platform",))
    if not before.results:
        return {}
    try:
        results = load_results(gzip.decompress(bucket.get(before.results)), before.results)
    except (OSError, EOFError, GateError):
        return {}
    return {result.id: result.seconds for result in results if result.seconds}


def show(
    told: Told, evidences: Sequence[Evidence], staged: StagedSet, bucket: Bucket, channel: str, reporter: Reporter
) -> None:
    """A table, the first failures, what becomes of it, and what the policy makes of all that is known of the set."""
    gating.show_evidence(evidences, reporter)
    columns, rows = view.table(evidences)
    if rows:
        reporter.table(columns, rows, numeric=range(3, 10))
    for line in view.failures(evidences):
        reporter.line(line)
    if told.shard:
        reporter.line(f"  shard {told.shard} is kept beside the set; `gate merge` makes evidence of all of them")
    elif told.listed:
        reporter.line("  only a part was run: this is shown, and no evidence")
    word = way.check_policy(staged, bucket, channel, reporter)
    about = [text for text in word.blocked_by if "device" in text] or list(word.blocked_by)
    reporter.line(f"  channel {channel}: " + ("may be promoted" if word.allowed else "blocked"))
    for text in about[:5]:
        reporter.line(f"    {text}")
