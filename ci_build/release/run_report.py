"""The end of a run: the summaries of its sets as JSON, Markdown and lines, and its error."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci_build.release.pipeline import Pipeline, SetOutcome, SetState
from ci_build.release.release_request import ReleaseOptions
from ci_build.release.run_summary import RunSummary, SetSummary, summarize
from core.errors import CiBuildError
from core.frozen import frozen
from core.report import Reporter
from promotion.evidence.evidence import now
from promotion.index.pages import tiers_text
from promotion.policy.promotion_policy import LOCAL

_EXIT_ORDER = (SetState.FAILED, SetState.BLOCKED, SetState.PENDING)
"""States whose errors end a run, the most severe first."""
_TEMPLATE = Path(__file__).with_name("summary.md.jinja")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~])")


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
