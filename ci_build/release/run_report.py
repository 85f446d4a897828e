"""The end of a run: the summaries of its sets as JSON, Markdown and lines, and its error."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from ci_build.release.pipeline import Pipeline, SetOutcome, SetState
from ci_build.release.policy_report import MissingEvidence
from ci_build.release.release_request import NO_URL, SERVE_PORT, ReleaseOptions
from core.errors import CiBuildError
from core.frozen import frozen
from core.model import Verdict
from core.process import render
from core.report import Reporter
from promotion.evidence.evidence import latest, now, read_all
from promotion.index.ledger import PromotedSet
from promotion.index.pages import tiers_text
from promotion.index.publish import read_head
from promotion.index.upkeep import last_upkeep
from promotion.policy.promotion_policy import LOCAL
from promotion.policy.recorded_promotion import recorded_evidence
from promotion.promote import install_line
from promotion.set_report import seconds_of
from promotion.storage.bucket import Bucket
from promotion.storage.bucket_url import is_url
from promotion.storage.object_keys import ReleasedIndex, StagedSet

_LAUNCHER = Path(__file__).parents[2] / "build" / "ci_build"
NO_TIER = "none"
"""Tier of a target that no set was tested for."""
_EXIT_ORDER = (SetState.FAILED, SetState.BLOCKED, SetState.PENDING)
"""States whose errors end a run, the most severe first."""
_TEMPLATE = Path(__file__).with_name("summary.md.jinja")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~])")


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
    schema: int = 1


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
    tiers = dict.fromkeys(targets, NO_TIER)
    if judged := verdict or promoted:
        tiers.update(judged.tiers)
    failing = promoted.policy.get("failing", {}) if promoted else {}
    reasons: tuple[str, ...] = ()
    if verdict:
        failing = verdict.failing
        reasons = verdict.blocked_by
    for target in sorted({*targets, *before}):
        yield TargetSummary(
            target=target,
            before=before.get(target, NO_TIER),
            now=tiers.get(target, "not in this set"),
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


@frozen
class SetRun:
    """One set of a run: its summary, and the error that it ends with."""

    summary: SetSummary
    error: CiBuildError | None = None


def run_set(
    pipeline: Pipeline,
    work: Callable[[], SetOutcome],
    *,
    lock: str = "",
) -> SetRun:
    """Do the work on one set, and return its summary and its error instead of raising it."""
    error: CiBuildError | None = None
    try:
        outcome = work()
        error = outcome.error
        summary = summarize(outcome, pipeline.bucket, pipeline.options)
    except CiBuildError as problem:
        # The summary reads the bucket, which may have caused the error of the outcome.
        error = error or problem
        summary = SetSummary(state=SetState.FAILED.value, error=str(error))
    return SetRun(summary=replace(summary, lock=lock), error=error)


def conclude(
    sets: Sequence[SetRun],
    options: ReleaseOptions,
    file: Path | None,
    reporter: Reporter,
    print_json: Callable[[object], None] | None,
    *,
    command: str,
    index: str,
) -> None:
    """Write and print the summary of a run, then raise its most severe error.

    Args:
        file: file to which the summary is appended as Markdown.
        print_json: prints the summary as JSON; None prints lines.

    Raises:
        CiBuildError: a set failed or is blocked.
    """
    summary = RunSummary(
        command=command,
        index=index,
        channel=options.channel,
        time=now(),
        actor=options.ledger.actor,
        sets=tuple(one.summary for one in sets),
    )
    if file is not None:
        with file.open("a", encoding="utf-8") as stream:
            stream.write(as_markdown(summary))
    if print_json is not None:
        print_json(summary)
    reporter.close()  # warnings before the last lines
    for one in summary.sets:
        tiers = tiers_text(
            {target.target: target.now for target in one.targets},
            {target.target: target.failing for target in one.targets if target.failing},
        )
        parts = f"jax {one.jax}, ROCm {one.rocm}, Python {', '.join(one.pythons)}"
        known = f" {one.set} ({parts}; {tiers})"
        state = one.state
        if one.entry and state == SetState.FAILED:
            state = f"promoted as ledger entry {one.entry}, but its check failed:"
        reporter.line(f"{state}{known if one.set else ''}")
        if one.upkeep and summary.channel != LOCAL:
            reporter.line(f"  {upkeep_line(one.upkeep)}")
        for line in one.install:
            reporter.command(f"  {line}")
    errors = [(one.summary.state, one.error) for one in sets if one.error is not None]
    for state in _EXIT_ORDER:
        for found, error in errors:
            if found == state:
                raise error


def as_markdown(summary: RunSummary) -> str:
    """Return a summary as Markdown (GitHub Flavored Markdown, tables)."""
    # Start-up time: only a release in GitHub Actions writes a summary.
    import jinja2

    environment = jinja2.Environment(  # noqa: S701 - Markdown, escaped by `shown`
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "shown": _shown,
        "upkeep": upkeep_line,
    }
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(run=summary)


def upkeep_line(upkeep: Mapping[str, str]) -> str:
    """Return a sentence about the last upkeep of an index."""
    times = [f"{work} {time or 'not recorded'}" for work, time in upkeep.items()]
    return f"Last upkeep of the index: {', '.join(times)}."


def _shown(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line."""
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split())) or "-"
