"""A night.

Find inputs that were not done yet, build and stage their set, and take waiting sets to
users.

Every step is derived from the bucket: records of nights, staged sets, evidence, and the
ledger. A run after an interruption, or on another machine, therefore continues where
the last one ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ci_build.release.night_lock import lock_of, with_free_version
from ci_build.release.pipeline import Pipeline, SetOutcome, SetState, plan_lines
from ci_build.release.release_request import ReleaseStep
from ci_build.release.run_report import SetRun, run_set
from ci_build.wheelset import set_build as dist_wheels
from ci_build.wheelset.wheel_request import WheelSetRequest
from core.errors import RequestError
from core.frozen import frozen
from core.model import BuildRequest
from core.targets import index_of
from promotion.nights import (
    Night,
    is_staged,
    list_nights,
    lock_digest,
    record_check,
    record_night,
)
from promotion.promote import promotion_of
from promotion.storage.bucket import Bucket
from promotion.storage.object_keys import StagedSet

if TYPE_CHECKING:  # At run time, it would load requests.
    from core.http.client import Connect

_MOST_WAITING = 10
"""Number of earlier nights whose sets may still be promoted."""


@frozen
class NightRequest:
    """The request of a night.

    Attributes:
        wheel_set: the set to build; None if the run builds nothing.
        redo: whether to build inputs that were done before.
    """

    index: str
    wheel_set: WheelSetRequest | None
    redo: bool = False


def check_index(request: BuildRequest, index: str) -> None:
    """Refuse a set that belongs to another index.

    Raises:
        RequestError: the targets of the request belong to another index.
    """
    found = index_of(request.targets)
    if found != index:
        raise RequestError(
            f"The targets belong to the index {found}, not {index}.",
            hint="Give other --targets.",
        )


def run_night(
    request: NightRequest, pipeline: Pipeline, connect: Connect
) -> tuple[SetRun, ...]:
    """Do a night.

    First promote the sets of earlier nights that became acceptable, then do the newest
    inputs.

    Returns:
        The sets of earlier nights, whose problems do not fail the run, and the set of
        this night last.

    Raises:
        InputError: an index lacks a wheel.
    """
    with pipeline.reporter.group("inputs"):
        found = find_inputs(request, pipeline)
        for line in found_lines(request, pipeline.bucket, found):
            pipeline.reporter.step(line)
    options = pipeline.options
    steps = tuple(step for step in options.steps if step is not ReleaseStep.GATES)
    earlier = replace(pipeline, options=replace(options, steps=steps))
    runs = []
    for night in _waiting(pipeline.bucket, found):
        work = partial(_finished, earlier, night)
        run = run_set(earlier, work, lock=night.lock)
        runs.append(replace(run, error=None))
    lock = lock_digest(found.lock)
    if found.night is not None:
        work = partial(_finished, pipeline, found.night)
        runs.append(run_set(pipeline, work, lock=found.night.lock))
    elif found.wheel_set is not None:
        work = partial(_built, pipeline, found, found.wheel_set, connect)
        runs.append(run_set(pipeline, work, lock=lock))
    return tuple(runs)


def dry_run_lines(
    request: NightRequest, pipeline: Pipeline, connect: Connect
) -> Iterator[str]:
    """Yield the lines of a dry run.

    Inputs, whether they were done, and the plan of the build.
    """
    found = find_inputs(request, pipeline)
    yield from found_lines(request, pipeline.bucket, found)
    if found.wheel_set is not None and found.night is None:
        prepared = dist_wheels.prepare(
            found.wheel_set, pipeline.reporter, pipeline.runner, connect
        )
        yield from dist_wheels.dry_run_lines(prepared, found.wheel_set)
        yield from plan_lines(pipeline.options)


@frozen
class FoundInputs:
    """The inputs of a night.

    Attributes:
        wheel_set: the set to build, with a version that no other set has; None if the
            run builds nothing.
        lock: exact inputs; empty if the run builds nothing.
        night: night with these inputs, or without a build the newest night; None if
            there is none.
        nights: all recorded nights, oldest first.
    """

    wheel_set: WheelSetRequest | None
    lock: Mapping[str, Any]
    night: Night | None
    nights: tuple[Night, ...]


def find_inputs(request: NightRequest, pipeline: Pipeline) -> FoundInputs:
    """Return the inputs of a night, and the night that used them before."""
    bucket = pipeline.bucket
    nights = list_nights(bucket, request.index)
    wheel_set = request.wheel_set
    if wheel_set is None:
        return FoundInputs(
            wheel_set=None, lock={}, night=nights[-1] if nights else None, nights=nights
        )
    lock = lock_of(wheel_set, pipeline.runner)
    while True:
        night = None if request.redo else _done(bucket, nights, lock_digest(lock))
        chosen = wheel_set
        if night is None:
            chosen = with_free_version(wheel_set, request.index, bucket)
        before = nights
        nights = list_nights(bucket, request.index)
        # Otherwise a concurrent night of the same inputs may have taken the version.
        if nights == before:
            return FoundInputs(wheel_set=chosen, lock=lock, night=night, nights=nights)


def found_lines(
    request: NightRequest, bucket: Bucket, found: FoundInputs
) -> Iterator[str]:
    """Yield lines about a night's inputs, and earlier nights awaiting promotion."""
    if request.wheel_set is not None:
        build = request.wheel_set.build
        lock = lock_digest(found.lock)
        state = "were not done yet"
        if night := found.night:
            state = f"were done on {night.time} as set {night.staged}"
        yield (
            f"jax {build.jax_version}, ROCm {build.rocm_version}, lock {lock[:12]}:"
            f" {state}"
        )
    elif found.night is None:
        yield f"the index {request.index} has no night"
    for night in _waiting(bucket, found):
        yield f"set {night.staged} of {night.time} is promoted if the policy allows it"


def _done(bucket: Bucket, nights: Sequence[Night], lock: str) -> Night | None:
    """Return the night of these inputs.

    The newest promoted one, else the newest whose set is still staged.
    """
    same = [night for night in reversed(nights) if night.lock == lock]
    for has_set in (promotion_of, is_staged):
        for night in same:
            if has_set(bucket, night.staged):
                return night
    return None


def _waiting(bucket: Bucket, found: FoundInputs) -> list[Night]:
    """Return earlier staged nights, oldest first, newer than the last promoted one."""
    waiting: list[Night] = []
    seen: set[StagedSet] = set()
    for night in reversed(found.nights):
        if night.staged in seen:
            continue
        seen.add(night.staged)
        if len(waiting) == _MOST_WAITING or promotion_of(bucket, night.staged):
            break
        is_this = found.night is not None and night.staged == found.night.staged
        if not is_this and is_staged(bucket, night.staged):
            waiting.append(night)
    return waiting[::-1]


def _built(
    pipeline: Pipeline, found: FoundInputs, wheel_set: WheelSetRequest, connect: Connect
) -> SetOutcome:
    """Build and stage a set, record the night, and take the set to users."""
    prepared = dist_wheels.prepare(
        wheel_set, pipeline.reporter, pipeline.runner, connect
    )
    staged = pipeline.build(wheel_set, prepared)
    version = prepared.plan.version
    night = record_night(pipeline.bucket, staged, found.lock, version=version)
    return _finished(pipeline, night)


def _finished(pipeline: Pipeline, night: Night) -> SetOutcome:
    """Gate, promote and check the set of a night as far as possible, and record its check."""
    outcome = pipeline.finish(night.staged, was_checked=night.checked)
    if outcome.checks and outcome.state is not SetState.FAILED:
        checks = {item.name: item.outcome for item in outcome.checks}
        record_check(pipeline.bucket, night, checks)
    return outcome
