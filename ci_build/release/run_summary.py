"""The summary of a run: tiers of each target, what blocks, and the numbers of the gates."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from ci_build.release.pipeline import SetOutcome, SetState
from ci_build.release.policy_report import MissingEvidence
from ci_build.release.release_request import NO_URL, SERVE_PORT, ReleaseOptions
from core.frozen import frozen
from core.model import Verdict
from core.process import render
from promotion.evidence.evidence import latest, read_all
from promotion.index.ledger import PromotedSet
from promotion.index.publish import read_head
from promotion.index.upkeep import last_upkeep
from promotion.policy.recorded_promotion import recorded_evidence
from promotion.promote import install_line
from promotion.set_report import seconds_of
from promotion.storage.bucket import Bucket
from promotion.storage.bucket_url import is_url
from promotion.storage.object_keys import ReleasedIndex, StagedSet

SCHEMA = 1
_LAUNCHER = Path(__file__).parents[2] / "build" / "ci_build"
NO_TIER = "none"
"""Tier of a target that no set was tested for."""


@frozen
class TargetSummary:
    """A gfx target of a set.

    Its tier in the last promoted set and now, the programs that fail, and the reasons
    that block the set.
    """

    target: str
    before: str
    now: str
    failing: str
    blocked_by: tuple[str, ...]


@frozen
class GateCounts:
    """Numbers of checks or tests of a gate for a target."""

    gate: str
    target: str
    outcome: str
    seconds: float
    counts: Mapping[str, int]


@frozen
class SetSummary:
    """A set at the end of a run; only state and error are known if its build failed.

    Attributes:
        set: INDEX/DIGEST.
        lock: digest of the exact inputs of a night.
        error: reason why the run fails, or empty.
        entry: number of the ledger entry that promoted the set; 0 if there is none.
        baseline: digest of the last promoted set, which the set is compared with; empty
            if there is none.
        missing: evidence to produce.
        checks: check of the released index -> outcome.
        install: commands that install the set; empty if users do not see it.
        upkeep: work that keeps the index in order -> time of its last recorded run;
            empty if none is recorded.
    """

    state: str
    error: str = ""
    lock: str = ""
    set: str = ""
    jax: str = ""
    rocm: str = ""
    pythons: tuple[str, ...] = ()
    entry: int = 0
    baseline: str = ""
    targets: tuple[TargetSummary, ...] = ()
    blocked_by: tuple[str, ...] = ()
    missing: tuple[MissingEvidence, ...] = ()
    counts: tuple[GateCounts, ...] = ()
    checks: Mapping[str, str] = field(default_factory=dict)
    upkeep: Mapping[str, str] = field(default_factory=dict)
    install: tuple[str, ...] = ()


@frozen
class RunSummary:
    """All sets of a release or a night, for JSON; `command` is `release` or `nightly`."""

    command: str
    index: str
    channel: str
    time: str
    actor: str
    sets: tuple[SetSummary, ...]
    schema: int = SCHEMA


def summarize(
    outcome: SetOutcome, bucket: Bucket, options: ReleaseOptions
) -> SetSummary:
    """Return the summary of a set, compared with the visible set promoted before."""
    staged = outcome.staged
    wheel_set = outcome.wheel_set
    report = outcome.report
    verdict = report.verdict if report else None
    released = ReleasedIndex(index=staged.index)
    promoted = outcome.entry.promoted if outcome.entry else None
    old = _baseline(bucket, released, outcome)
    return SetSummary(
        state=outcome.state.value,
        error=str(outcome.error or ""),
        set=str(staged),
        jax=wheel_set.jax_version,
        rocm=wheel_set.rocm_version,
        pythons=wheel_set.python_versions,
        entry=outcome.entry.number if outcome.entry else 0,
        baseline=old.set_digest if old else "",
        targets=tuple(_targets(wheel_set.targets, old, promoted, verdict)),
        blocked_by=verdict.blocked_by if verdict else (),
        missing=report.missing if report else (),
        counts=tuple(_counts(bucket, staged, promoted)),
        checks={item.name: item.outcome for item in outcome.checks},
        upkeep=last_upkeep(bucket, released),
        install=tuple(_install_commands(outcome, options)),
    )


def _install_commands(outcome: SetOutcome, options: ReleaseOptions) -> Iterator[str]:
    """Yield the commands that serve a local index and install a visible set from it."""
    if outcome.state not in (SetState.PROMOTED, SetState.UNCHANGED):
        return
    url = options.public_url
    if url in ("", NO_URL):
        # Only the owner of the bucket knows its public URL.
        url = "https://<public URL of the bucket>"
        if not is_url(options.bucket):
            url = f"http://127.0.0.1:{SERVE_PORT}"
            launcher = Path(os.path.relpath(_LAUNCHER))
            words = ("index", "serve", str(SERVE_PORT), "--bucket", options.bucket)
            yield render(("python3", str(launcher), *words))
    simple = ReleasedIndex(index=outcome.staged.index).simple
    yield install_line(outcome.wheel_set, f"{url.rstrip('/')}/{simple}")


def _baseline(
    bucket: Bucket, released: ReleasedIndex, outcome: SetOutcome
) -> PromotedSet | None:
    """Return the newest visible set that was promoted before the set of an outcome."""
    head, entries = read_head(bucket, released)
    for number in sorted(head.state.visible, reverse=True):
        promoted = entries.set(number)
        older = outcome.entry is None or number < outcome.entry.number
        if older and promoted.set_digest != outcome.staged.digest:
            return promoted
    return None


def _targets(
    targets: Sequence[str],
    old: PromotedSet | None,
    promoted: PromotedSet | None,
    verdict: Verdict | None,
) -> Iterator[TargetSummary]:
    """Yield the targets of both sets.

    A target that only the last promoted set has is reported as gone.
    """
    before = old.tiers if old else {}
    now = dict.fromkeys(targets, NO_TIER)
    if judged := verdict or promoted:
        now.update(judged.tiers)
    failing = promoted.policy.get("failing", {}) if promoted else {}
    reasons: tuple[str, ...] = ()
    if verdict:
        failing = verdict.failing
        reasons = verdict.blocked_by
    for target in sorted({*targets, *before}):
        yield TargetSummary(
            target=target,
            before=before.get(target, NO_TIER),
            now=now.get(target, "not in this set"),
            failing=failing.get(target, ""),
            blocked_by=tuple(text for text in reasons if target in text.split()),
        )


def _counts(
    bucket: Bucket, staged: StagedSet, promoted: PromotedSet | None
) -> Iterator[GateCounts]:
    """Yield the numbers of each gate's latest evidence."""
    if promoted:
        released = ReleasedIndex(index=staged.index)
        files = recorded_evidence(bucket, released, promoted)
    else:
        files = read_all(bucket, staged).values()
    found = latest(file.evidence for file in files)
    for (gate, target), evidence in sorted(found.items()):
        yield GateCounts(
            gate=gate,
            target=target,
            outcome=evidence.outcome.value,
            seconds=seconds_of(evidence),
            counts=evidence.counts,
        )
