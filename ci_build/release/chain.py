"""The way of a staged set to users.

Gates, evidence of other machines, promotion, and a check of the released index.

Each step is skipped if it was done before, so that a run after an interruption
continues. A set that was promoted and then withdrawn by a person is never promoted
again.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ci_build.cluster.cluster_request import connected
from ci_build.release import device_step, gating
from ci_build.release import release_steps as steps
from ci_build.release.index_authority import policy_source, read_authority
from ci_build.release.release_request import (
    NO_URL,
    STRUCTURE,
    ReleaseOptions,
    ReleaseStep,
)
from core.errors import CiBuildError, PromotionBlockedError
from core.model import Outcome, Requirement, Verdict, WheelSet
from core.process import HostRunner
from core.report import Reporter
from promotion.check import check, raise_if_blocked
from promotion.evidence.attestation_verification import lazy_verifier
from promotion.gates.common.gate_context import Check
from promotion.gates.common.gate_runs import raise_for_failures
from promotion.gates.gate_table import GATES, GateOptions
from promotion.index.authority import PolicySource
from promotion.index.ledger import LedgerEntry
from promotion.index.publish import publish
from promotion.index.serve import IndexServer
from promotion.night_results import description_of
from promotion.policy.families import GATE
from promotion.policy.promotion_policy import Policy, load_policy
from promotion.policy.tier_requirements import DISTINCT_SETTINGS, NEVER_RAN
from promotion.promote import promotion_of
from promotion.published_check import check_published, raise_for_checks, read_published
from promotion.stage import read_staged
from promotion.storage.bucket import Bucket
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import ReleasedIndex, StagedSet

_POLL = 30.0
"""Seconds between two looks for the evidence of other machines."""


class SetState(enum.StrEnum):
    """The state of a set at the end of a run."""

    PROMOTED = "promoted"
    UNCHANGED = "unchanged"
    """An earlier run promoted and checked the set."""
    WITHDRAWN = "withdrawn"
    """The set was promoted, and is not visible any more."""
    STAGED = "staged"
    """The run did not include the remaining steps."""
    PENDING = "pending"
    """Evidence is missing that other machines produce."""
    BLOCKED = "blocked"
    FAILED = "failed"
    """Failure of the build, a local gate, the promotion or the index check."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetOutcome:
    """A set at the end of a run.

    Attributes:
        verdict: verdict of the policy; None if the set was promoted before.
        entry: ledger entry of the promotion; None if the set was never promoted.
        checks: checks of the released index in this run.
        error: reason why the run fails; None if it succeeds.
    """

    staged: StagedSet
    wheel_set: WheelSet
    state: SetState
    verdict: Verdict | None = None
    entry: LedgerEntry | None = None
    checks: tuple[Check, ...] = ()
    error: CiBuildError | None = None


Checked = Callable[[Sequence[Check]], None]
"""A function that records the checks of a released set that passed."""


def finish(
    staged: StagedSet,
    bucket: Bucket,
    options: ReleaseOptions,
    reporter: Reporter,
    runner: HostRunner,
    *,
    was_checked: bool = False,
    on_checked: Checked = lambda _: None,
) -> SetOutcome:
    """Gate, promote and check a staged set, as far as the requested steps and the policy allow.

    Args:
        was_checked: whether an earlier run checked the released set.
        on_checked: receives the checks of the released set if all passed.
    """
    before = promotion_of(bucket, staged)
    if before is None:
        outcome = _promoted(staged, bucket, options, reporter, runner)
    else:
        entry, visible = before
        state = SetState.UNCHANGED if visible else SetState.WITHDRAWN
        wheel_set = description_of(bucket, staged, entry.promoted)
        assert wheel_set is not None  # the index holds the set
        outcome = SetOutcome(
            staged=staged, wheel_set=wheel_set, state=state, entry=entry
        )
        if visible and ReleaseStep.PROMOTE in options.steps:
            released = ReleasedIndex(index=staged.index)
            # Complete an interrupted promotion.
            publish(
                bucket,
                released,
                authority=read_authority(bucket, released, options.channel),
            )
    wanted = (
        ReleaseStep.CHECK in options.steps
        and options.public_url != NO_URL
        and not was_checked
    )
    if not wanted or outcome.state not in (SetState.PROMOTED, SetState.UNCHANGED):
        return outcome
    outcome = replace(outcome, state=SetState.PROMOTED)
    try:
        with reporter.group("check"):
            checks = _released_checks(
                staged, bucket, options.public_url, reporter, runner
            )
        outcome = replace(outcome, checks=checks)
        raise_for_checks(f"the released index of {staged}", checks)
    except CiBuildError as error:
        return replace(outcome, state=SetState.FAILED, error=error)
    on_checked(checks)
    return outcome


def planned_groups(options: ReleaseOptions) -> tuple[str, ...]:
    """Return the titles of the groups of `finish` in their order."""
    titles = {
        ReleaseStep.GATES: ("gates",),
        ReleaseStep.PROMOTE: ("promote",),
        ReleaseStep.CHECK: ("check",),
    }
    chosen = {
        step: names if step in options.steps else () for step, names in titles.items()
    }
    checked = () if options.public_url == NO_URL else chosen[ReleaseStep.CHECK]
    return (
        *chosen[ReleaseStep.GATES],
        "policy",
        *chosen[ReleaseStep.PROMOTE],
        *checked,
    )


def _promoted(
    staged: StagedSet,
    bucket: Bucket,
    options: ReleaseOptions,
    reporter: Reporter,
    runner: HostRunner,
) -> SetOutcome:
    """Run this machine's gates, await other evidence, and promote the set if allowed."""
    policy = load_policy(staged.index, channel=options.channel)
    failure = (
        _gated(staged, bucket, options, policy, reporter, runner)
        if ReleaseStep.GATES in options.steps
        else None
    )
    with reporter.group("policy"):
        source = policy_source(options.ledger, runner)
        verdict = _awaited(staged, bucket, options, policy, source, reporter)
        wheel_set = read_staged(bucket, staged)
        steps.show_verdict(
            staged,
            wheel_set,
            verdict,
            reporter,
            channel=options.channel,
            bucket_name=options.bucket,
        )
    outcome = SetOutcome(
        staged=staged, wheel_set=wheel_set, state=SetState.STAGED, verdict=verdict
    )
    if not verdict.allowed and failure is not None:
        return replace(outcome, state=SetState.FAILED, error=failure)
    if ReleaseStep.PROMOTE not in options.steps:
        return replace(outcome, state=_unfinished(verdict))
    if not verdict.allowed:
        return _refused(outcome, verdict, options)
    with reporter.group("promote"):
        try:
            promotion = steps.promote(
                staged,
                bucket,
                options.ledger,
                reporter,
                runner,
                options.actor,
                options.trust_config,
                allow_lower=options.allow_lower,
            )
        except CiBuildError as error:
            # Another run may have changed the index meanwhile.
            blocked = isinstance(error, PromotionBlockedError)
            return replace(
                outcome,
                state=SetState.BLOCKED if blocked else SetState.FAILED,
                error=error,
            )
    return replace(outcome, state=SetState.PROMOTED, entry=promotion.entry)


def _unfinished(verdict: Verdict) -> SetState:
    """Return the state of a set that this run does not promote.

    Existing evidence that is refused blocks it.
    """
    if any(item.problems and not _is_open(item) for item in verdict.requirements):
        return SetState.BLOCKED
    return SetState.PENDING if open_requirements(verdict) else SetState.STAGED


def _refused(
    outcome: SetOutcome, verdict: Verdict, options: ReleaseOptions
) -> SetOutcome:
    """Return the outcome of a set that the policy blocks.

    Missing evidence fails a run that builds nothing.
    """
    try:
        raise_if_blocked(outcome.staged, verdict)
    except CiBuildError as error:
        if open_requirements(verdict):
            ends = None if ReleaseStep.BUILD in options.steps else error
            return replace(outcome, state=SetState.PENDING, error=ends)
        return replace(outcome, state=SetState.BLOCKED, error=error)
    raise AssertionError("the verdict allows the set")


def _gated(
    staged: StagedSet,
    bucket: Bucket,
    options: ReleaseOptions,
    policy: Policy,
    reporter: Reporter,
    runner: HostRunner,
) -> CiBuildError | None:
    """Run this machine's gates, print the evidence, and return any failures."""
    with reporter.group("gates"):
        signer = gating.find_signer(options.key, reporter)
        with connected(options.cluster, reporter) as tasks:
            evidences = gating.run_gates(
                STRUCTURE,
                staged,
                bucket,
                GateOptions(corpus=options.corpus),
                reporter,
                runner,
                signer,
                options.channel,
                cache=options.cache,
                tasks=tasks,
            )
        failure: CiBuildError | None = None
        if options.device:
            verify = lazy_verifier(options.trust_config)
            required = check(bucket, staged, policy, verify=verify).requirements
            missing = [item for item in required if item.gate == GATE and item.problems]
            try:
                evidences += device_step.run_device_gate(
                    staged, bucket, missing, options, reporter, runner, signer
                )
            except CiBuildError as error:
                failure = error
    gating.show_evidence(evidences, reporter)
    try:
        raise_for_failures(evidences)
    except CiBuildError as error:
        failure = error
    return failure


def _awaited(
    staged: StagedSet,
    bucket: Bucket,
    options: ReleaseOptions,
    policy: Policy,
    source: PolicySource,
    reporter: Reporter,
) -> Verdict:
    """Return the policy's verdict, after waiting for other machines if requested."""
    until = time.monotonic() + options.wait * 60
    first = True
    while True:
        verify = lazy_verifier(options.trust_config)
        verdict = check(
            bucket,
            staged,
            policy,
            verify=verify,
            allow_lower=options.allow_lower,
            source=source,
        )
        missing = open_requirements(verdict)
        if not missing or time.monotonic() >= until:
            return verdict
        if first:
            names = ", ".join(f"{item.gate} for {item.target}" for item in missing)
            reporter.step(f"wait up to {options.wait:g} minutes for evidence: {names}")
        first = False
        time.sleep(min(_POLL, max(0.0, until - time.monotonic())))


def open_requirements(verdict: Verdict) -> tuple[Requirement, ...]:
    """Return missing evidence of other machines, if nothing else blocks a set."""
    missing = [
        item
        for item in verdict.requirements
        if item.gate not in GATES and _is_open(item)
    ]
    texts = {
        f"The gate {item.gate} for {item.target} {problem}"
        for item in missing
        for problem in item.problems
    }
    tiers = tuple(f"{item.target} was tested at tier " for item in missing)
    others = [
        text
        for text in verdict.blocked_by
        if text not in texts and not text.startswith(tiers)
    ]
    return () if others else tuple(missing)


def _is_open(item: Requirement) -> bool:
    """Return whether a gate never ran for a target, or only with other settings."""
    if not item.evidence:
        return item.problems == (f"{NEVER_RAN}.",)
    required = {
        name: value
        for name, value in item.settings.items()
        if name in DISTINCT_SETTINGS
    }
    return all(
        part["outcome"] == Outcome.PASSED
        and any(part.get(name, "") != value for name, value in required.items())
        for part in item.evidence
    )


def _released_checks(
    staged: StagedSet, bucket: Bucket, url: str, reporter: Reporter, runner: HostRunner
) -> tuple[Check, ...]:
    """Install the released set from its index with pip and uv, and print problems."""
    with _served(bucket, url) as base:
        simple = f"{base.rstrip('/')}/{ReleasedIndex(index=staged.index).simple}"
        checks = tuple(
            check_published(read_published(simple, staged.digest), runner, reporter)
        )
    for item in checks:
        for finding in item.findings:
            reporter.finding(finding, item.name)
    return checks


@contextmanager
def _served(bucket: Bucket, url: str) -> Iterator[str]:
    """Provide the URL of a bucket; a folder without a URL is served on this machine."""
    if url:
        yield url
        return
    assert isinstance(
        bucket, DirBucket
    )  # the options refuse another bucket without a URL
    with IndexServer(Path(bucket.root)) as server:
        yield server.url
