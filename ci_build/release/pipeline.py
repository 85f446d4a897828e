"""The pipeline of `release --local`, `release` and `nightly`, from a build to users.

A set is built and staged; gates run, evidence of other machines is awaited, the set is
promoted, and the released index is checked. Each step is skipped if it was done before,
so that a run after an interruption continues. A set that was promoted and then withdrawn
by a person is never promoted again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ci_build.cluster.connection import connected
from ci_build.release import device_step, gating
from ci_build.release import promotion_steps as steps
from ci_build.release.index_authority import (
    check_authority,
    policy_source,
    read_authority,
)
from ci_build.release.policy_report import PolicyReport
from ci_build.release.release_request import (
    NO_URL,
    STRUCTURE,
    ReleaseOptions,
    ReleaseStep,
)
from ci_build.wheelset import set_build as dist_wheels
from ci_build.wheelset.source_build import PreparedBuild
from ci_build.wheelset.wheel_request import WheelSetRequest
from core.errors import CiBuildError, PromotionBlockedError
from core.frozen import frozen
from core.http.client import Client
from core.model import Evidence, Requirement, Verdict, WheelSet
from core.process import HostRunner
from core.report import Reporter
from promotion.check import check, raise_if_blocked
from promotion.evidence.attestation_verification import lazy_verifier
from promotion.evidence.signing import Signer
from promotion.gates.common.gate_context import Check
from promotion.gates.common.gate_report import raise_for_failures
from promotion.gates.common.pythons import OWN, find_pythons, require_python
from promotion.gates.gate_table import GATES, GateOptions
from promotion.index.ledger import LedgerEntry
from promotion.index.publish import publish
from promotion.index.serve import IndexServer
from promotion.policy.families import GATE
from promotion.policy.promotion_policy import load_policy
from promotion.policy.tier_requirements import NEVER_RAN
from promotion.promote import promotion_of
from promotion.published_check import check_published, raise_for_checks, read_published
from promotion.stage import locate, read_staged, stage
from promotion.storage.bucket import Bucket
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.object_keys import ReleasedIndex, StagedSet


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


@frozen
class SetOutcome:
    """A set at the end of a run.

    Attributes:
        report: the policy's verdict and the missing evidence; None if the set was
            promoted before.
        entry: ledger entry of the promotion; None if the set was never promoted.
        checks: checks of the released index in this run.
        error: reason why the run fails; None if it succeeds.
    """

    staged: StagedSet
    wheel_set: WheelSet
    state: SetState
    report: PolicyReport | None = None
    entry: LedgerEntry | None = None
    checks: tuple[Check, ...] = ()
    error: CiBuildError | None = None


@frozen
class Pipeline:
    """The steps that take sets to users of one bucket.

    Attributes:
        options: steps to perform, and their settings.
    """

    bucket: Bucket
    options: ReleaseOptions
    reporter: Reporter
    runner: HostRunner

    def check_start(
        self, index: str, pythons: Sequence[str] = (), *, dry_run: bool = False
    ) -> None:
        """Check policy, keys, checkout and machines before a build.

        Args:
            pythons: Python versions of the set; empty if they are not known yet.
            dry_run: omit the cluster, whose machines would be started.

        Raises:
            RequestError: a key is invalid, or the policy would refuse every promotion
                for its key or its checkout.
            FormatError: the policy cannot be read.
            MachineError: there is no GPU, cluster or Python for the gates.
        """
        options = self.options
        load_policy(index, channel=options.channel)
        if ReleaseStep.GATES in options.steps:
            gating.check_key(options.key)
            if pythons and OWN not in pythons:
                require_python(pythons, find_pythons(pythons, self.runner))
        if ReleaseStep.PROMOTE in options.steps:
            check_authority(index, options.ledger, self.runner)
        if dry_run:
            options = replace(options, cluster=None)
        device_step.check_machines(options, self.reporter, self.runner)

    def build(self, request: WheelSetRequest, prepared: PreparedBuild) -> StagedSet:
        """Build a set, or find that it is up to date, and stage it."""
        built = dist_wheels.dist_wheels(request, prepared, self.reporter, self.runner)
        dist_wheels.show_receipt(built, self.reporter)
        with self.reporter.group("stage"):
            return stage(self.bucket, built.folder, progress=self.reporter)

    def release(self, request: WheelSetRequest, prepared: PreparedBuild) -> SetOutcome:
        """Build and stage a set, and finish it."""
        self.reporter.plan(("dist_wheels", "stage", *self._groups()))
        return self.finish(self.build(request, prepared))

    def _groups(self) -> Iterator[str]:
        """Yield the titles of the groups of `finish` in their order."""
        if ReleaseStep.GATES in self.options.steps:
            yield "gates"
        yield "policy"
        if ReleaseStep.PROMOTE in self.options.steps:
            yield "promote"
        if self._checks_index:
            yield "check"

    @property
    def _checks_index(self) -> bool:
        options = self.options
        return ReleaseStep.CHECK in options.steps and options.public_url != NO_URL

    def finish(self, staged: StagedSet, *, was_checked: bool = False) -> SetOutcome:
        """Gate, promote and check a staged set, as far as steps and policy allow.

        Args:
            was_checked: whether an earlier run checked the released set.
        """
        before = promotion_of(self.bucket, staged)
        if before is None:
            outcome = self._promoted(staged)
        else:
            outcome = self._promoted_before(staged, *before)
        wanted = self._checks_index and not was_checked
        if not wanted or outcome.state not in (SetState.PROMOTED, SetState.UNCHANGED):
            return outcome
        outcome = replace(outcome, state=SetState.PROMOTED)
        try:
            with self.reporter.group("check"):
                checks = released_checks(
                    staged,
                    self.bucket,
                    self.options.public_url,
                    self.reporter,
                    self.runner,
                    self.options.connect(),
                )
            outcome = replace(outcome, checks=checks)
            raise_for_checks(f"the released index of {staged}", checks)
        except CiBuildError as error:
            return replace(outcome, state=SetState.FAILED, error=error)
        return outcome

    def _promoted_before(
        self, staged: StagedSet, entry: LedgerEntry, visible: bool
    ) -> SetOutcome:
        state = SetState.UNCHANGED if visible else SetState.WITHDRAWN
        wheel_set, _ = locate(self.bucket, staged)
        if visible and ReleaseStep.PROMOTE in self.options.steps:
            released = ReleasedIndex(index=staged.index)
            authority = read_authority(self.bucket, released, self.options.channel)
            # Completes an interrupted promotion, also of a set that left staging.
            publish(self.bucket, released, authority=authority)
            number = entry.number
            self.reporter.line(f"  {staged} was promoted before: ledger entry {number}")
        return SetOutcome(staged=staged, wheel_set=wheel_set, state=state, entry=entry)

    def _promoted(self, staged: StagedSet) -> SetOutcome:
        """Run this machine's gates, and promote the set if allowed."""
        options = self.options
        failure = self._gated(staged) if ReleaseStep.GATES in options.steps else None
        with self.reporter.group("policy"):
            report = steps.check_policy(
                staged,
                self.bucket,
                options.channel,
                self.reporter,
                options.trust_config,
                allow_lower=options.allow_lower,
                bucket_name=options.bucket,
                source=policy_source(options.ledger, self.runner),
            )
        verdict = report.verdict
        outcome = SetOutcome(
            staged=staged,
            wheel_set=read_staged(self.bucket, staged),
            state=SetState.STAGED,
            report=report,
        )
        if not verdict.allowed and failure is not None:
            return replace(outcome, state=SetState.FAILED, error=failure)
        if ReleaseStep.PROMOTE not in options.steps:
            return replace(outcome, state=_unfinished(verdict))
        if not verdict.allowed:
            return self._refused(outcome, verdict)
        with self.reporter.group("promote"):
            try:
                promotion = steps.promote(
                    staged,
                    self.bucket,
                    options.ledger,
                    self.reporter,
                    self.runner,
                    options.trust_config,
                    allow_lower=options.allow_lower,
                )
            except CiBuildError as error:
                # Another run may have changed the index meanwhile.
                is_blocked = isinstance(error, PromotionBlockedError)
                state = SetState.BLOCKED if is_blocked else SetState.FAILED
                return replace(outcome, state=state, error=error)
        return replace(outcome, state=SetState.PROMOTED, entry=promotion.entry)

    def _refused(self, outcome: SetOutcome, verdict: Verdict) -> SetOutcome:
        """Return the outcome of a set that the policy blocks."""
        error: CiBuildError | None = None
        try:
            raise_if_blocked(outcome.staged, verdict)
        except CiBuildError as problem:
            error = problem
        if not open_requirements(verdict):
            return replace(outcome, state=SetState.BLOCKED, error=error)
        if ReleaseStep.BUILD in self.options.steps:
            # Other machines need the staged set to produce the missing evidence.
            error = None
        return replace(outcome, state=SetState.PENDING, error=error)

    def _gated(self, staged: StagedSet) -> CiBuildError | None:
        """Run this machine's gates, print the evidence, and return any failures."""
        options = self.options
        failure: CiBuildError | None = None
        with self.reporter.group("gates"):
            signer = gating.find_signer(options.key, self.reporter)
            with connected(options.cluster, self.reporter) as tasks:
                evidences = gating.run_gates(
                    STRUCTURE,
                    staged,
                    self.bucket,
                    GateOptions(corpus=options.corpus),
                    self.reporter,
                    self.runner,
                    signer,
                    options.channel,
                    cache=options.cache,
                    tasks=tasks,
                )
            try:
                evidences += self._device_evidence(staged, signer)
            except CiBuildError as error:
                failure = error
        gating.show_evidence(evidences, self.reporter)
        try:
            raise_for_failures(evidences)
        except CiBuildError as error:
            failure = error
        return failure

    def _device_evidence(
        self, staged: StagedSet, signer: Signer
    ) -> tuple[Evidence, ...]:
        """Run the gate device for the targets that lack its evidence, if it is included."""
        if self.options.device is None:
            return ()
        verdict = check(
            self.bucket,
            staged,
            load_policy(staged.index, channel=self.options.channel),
            verify=lazy_verifier(self.options.trust_config),
        )
        missing = [
            item for item in verdict.requirements if item.gate == GATE and item.problems
        ]
        return device_step.run_device_gate(
            staged,
            self.bucket,
            missing,
            self.options,
            self.reporter,
            self.runner,
            signer,
        )


def _unfinished(verdict: Verdict) -> SetState:
    """Return the state of a set that this run does not promote.

    Existing evidence that is refused blocks it.
    """
    if any(item.problems and not _is_open(item) for item in verdict.requirements):
        return SetState.BLOCKED
    return SetState.PENDING if open_requirements(verdict) else SetState.STAGED


def open_requirements(verdict: Verdict) -> tuple[Requirement, ...]:
    """Return missing evidence of other machines, if nothing else blocks a set."""
    missing: list[Requirement] = []
    texts: set[str] = set()
    for item in verdict.requirements:
        if item.gate in GATES or not _is_open(item):
            continue
        missing.append(item)
        for problem in item.problems:
            texts.add(f"The gate {item.gate} for {item.target} {problem}")
    tiers = tuple(f"{item.target} has tier " for item in missing)
    others = [
        text
        for text in verdict.blocked_by
        if text not in texts and not text.startswith(tiers)
    ]
    return () if others else tuple(missing)


def _is_open(item: Requirement) -> bool:
    """Return whether a run of the gate is missing; nothing failed, and no evidence was refused."""
    never_ran = item.problems == (f"{NEVER_RAN}.",)
    return not item.failed and (never_ran or bool(item.problems and item.evidence))


def released_checks(
    staged: StagedSet,
    bucket: Bucket,
    url: str,
    reporter: Reporter,
    runner: HostRunner,
    client: Client,
) -> tuple[Check, ...]:
    """Install the released set from its index with pip and uv, and print problems.

    A folder without a URL is served on this machine.
    """
    with ExitStack() as stack:
        if not url:
            # The options refuse another bucket without a URL.
            assert isinstance(bucket, DirBucket)
            url = stack.enter_context(IndexServer(Path(bucket.root))).url
        simple = f"{url.rstrip('/')}/{ReleasedIndex(index=staged.index).simple}"
        published = read_published(simple, client, staged.digest)
        checks = tuple(check_published(published, runner, reporter))
    for item in checks:
        for finding in item.findings:
            reporter.finding(finding, item.name)
    return checks


def plan_lines(options: ReleaseOptions) -> Iterator[str]:
    """Yield the lines of a dry run for the steps after the build."""
    bucket = options.bucket.partition("?")[0].rstrip("/")
    corpus = f"{options.corpus} corpus" if options.corpus else "corpus of the policy"
    yield f"stage: the set goes to {bucket}/v2-staging/<index>/<set digest>/"
    if ReleaseStep.GATES in options.steps:
        yield f"gates: {', '.join(GATES)} ({corpus}); evidence goes beside the set"
    if options.device is not None:
        place = "this machine, for the targets that it has"
        if cluster := options.device.cluster:
            place = f"the cluster {cluster.address}"
        yield f"gates: device, on the GPUs of {place}"
    if ReleaseStep.PROMOTE in options.steps:
        yield (
            f"promote: the set is copied to {bucket}/v2/<index>/ if"
            " promotion/policy.toml allows it; ledger, then pages"
        )
    if ReleaseStep.CHECK in options.steps and options.public_url != NO_URL:
        url = options.public_url or "a server of this machine"
        yield f"check: pip and uv install the released set from {url}"
