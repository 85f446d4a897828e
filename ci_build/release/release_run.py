"""A release of one set from its build to its users, and the end of a run.

Its summary, its output and its error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci_build.release import release_steps as steps
from ci_build.release.chain import SetOutcome, SetState, finish, planned_groups
from ci_build.release.device_step import check_machines
from ci_build.release.index_authority import check_authority
from ci_build.release.release_request import ReleaseOptions, ReleaseStep
from ci_build.release.run_summary import RunSummary, SetSummary, failed, summarize
from ci_build.release.summary_text import write_summary
from ci_build.wheelset.source.source_build import PreparedBuild
from ci_build.wheelset.wheel_request import WheelSetRequest
from core.errors import CiBuildError
from core.process import HostRunner
from core.report import Reporter
from promotion.evidence.evidence import now
from promotion.index.pages import tiers_text
from promotion.storage.bucket import Bucket

_EXIT_ORDER = (SetState.FAILED, SetState.BLOCKED, SetState.PENDING)
"""States whose errors end a run, the most severe first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetRun:
    """One set of a run: its summary, and the error that it ends with."""

    summary: SetSummary
    error: CiBuildError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseReport:
    """The sets of a run, for its summary."""

    command: str
    index: str
    options: ReleaseOptions
    sets: tuple[SetRun, ...]


def release(
    request: WheelSetRequest,
    options: ReleaseOptions,
    bucket: Bucket,
    prepared: PreparedBuild,
    reporter: Reporter,
    runner: HostRunner,
) -> ReleaseReport:
    """Build, stage, gate, promote and check a set; errors are part of the result."""

    def build() -> SetOutcome:
        if ReleaseStep.PROMOTE in options.steps:
            check_authority(prepared.plan.index, options.ledger, runner)
        check_machines(options, reporter, runner)
        reporter.plan(("dist_wheels", "stage", *planned_groups(options)))
        _, staged = steps.build_and_stage(request, bucket, prepared, reporter, runner)
        return finish(staged, bucket, options, reporter, runner)

    done = run_set(build, bucket, options)
    return ReleaseReport(
        command="release", index=prepared.plan.index, options=options, sets=(done,)
    )


def run_set(
    work: Callable[[], SetOutcome],
    bucket: Bucket,
    options: ReleaseOptions,
    *,
    name: str = "",
    lock: str = "",
) -> SetRun:
    """Do the work on one set, and return its summary and its error instead of raising it."""
    error: CiBuildError | None = None
    try:
        outcome = work()
        error = outcome.error
        return SetRun(
            summary=summarize(outcome, bucket, options, name=name, lock=lock),
            error=error,
        )
    except CiBuildError as problem:
        # The summary reads the bucket, which may have caused the error of the outcome.
        error = error or problem
        return SetRun(summary=failed(error, name=name, lock=lock), error=error)


def conclude(
    report: ReleaseReport,
    files: Sequence[Path],
    reporter: Reporter,
    print_json: Callable[[object], None] | None,
) -> None:
    """Write and print the summary of a run, then raise its most severe error.

    Args:
        files: files of the summary.
        print_json: prints the summary as JSON; None prints lines.

    Raises:
        CiBuildError: a set failed or is blocked.
    """
    summary = RunSummary(
        command=report.command,
        index=report.index,
        channel=report.options.channel,
        time=now(),
        actor=report.options.actor,
        sets=tuple(one.summary for one in report.sets),
    )
    for file in files:
        write_summary(summary, file)
    if print_json is not None:
        print_json(summary)
    for one in summary.sets:
        tiers = tiers_text({target.target: target.now for target in one.targets})
        set_of = (
            f" {one.set} (jax {one.jax}, ROCm {one.rocm}; {tiers})" if one.set else ""
        )
        reporter.line(f"{f'{one.name}: ' if one.name else ''}{one.state}{set_of}")
    bad = [one for one in report.sets if one.error is not None]
    bad.sort(key=lambda one: _EXIT_ORDER.index(SetState(one.summary.state)))
    if bad and bad[0].error is not None:
        raise bad[0].error
