"""The end of a run: the summaries of its sets as JSON, Markdown and lines, and its error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci_build.release.pipeline import Pipeline, SetOutcome, SetState
from ci_build.release.promotion_steps import receipt_of
from ci_build.release.release_request import SERVE_PORT, ReleaseOptions
from ci_build.release.run_summary import RunSummary, SetSummary, summarize
from ci_build.wheelset import set_build as dist_wheels
from core.errors import CiBuildError, PromotionBlockedError
from core.frozen import frozen
from core.model import to_json
from core.process import render
from core.report import Reporter
from core.units import human
from promotion.evidence.evidence import now
from promotion.index.pages import tiers_text
from promotion.promote import install_line
from promotion.storage.bucket_url import is_url
from promotion.storage.object_keys import ReleasedIndex

_EXIT_ORDER = (SetState.FAILED, SetState.BLOCKED, SetState.PENDING)
"""States whose errors end a run, the most severe first."""
_TEMPLATE = Path(__file__).with_name("summary.md.jinja")
_LONGEST = 100
"""Characters of a value that are shown."""
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~])")
_LAUNCHER = Path(__file__).parents[2] / "build" / "ci_build"


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
        summary = summarize(outcome, pipeline.bucket)
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
        actor=options.actor,
        sets=tuple(one.summary for one in sets),
    )
    if file is not None:
        with file.open("a", encoding="utf-8") as stream:
            stream.write(as_markdown(summary))
    if print_json is not None:
        print_json(summary)
    for one in summary.sets:
        tiers = tiers_text({target.target: target.now for target in one.targets})
        known = f" {one.set} (jax {one.jax}, ROCm {one.rocm}; {tiers})"
        reporter.line(f"{one.state}{known if one.set else ''}")
        if one.upkeep:
            reporter.line(f"  {upkeep_line(one.upkeep)}")
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
        "value": _value,
        "human": human,
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


def _value(value: object) -> str:
    """Return the start of a value of wheels.json."""
    if value is None:
        return ""
    text = value
    if not isinstance(text, str):
        text = json.dumps(to_json(value), sort_keys=True)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def show_receipt(
    outcome: SetOutcome,
    bucket: str,
    reporter: Reporter,
    print_json: Callable[[object], None] | None,
) -> None:
    """Print the wheels of a released set, and the command that installs them.

    Raises:
        CiBuildError: the set was not promoted, or is withdrawn.
    """
    if outcome.error is not None:
        raise outcome.error
    if outcome.state is SetState.WITHDRAWN:
        raise PromotionBlockedError(
            f"Set {outcome.staged} was promoted before and then withdrawn.",
            hint="Build another version, such as with --wheel-post-release.",
        )
    assert outcome.built is not None
    assert outcome.entry is not None
    lines = _install_lines(outcome, bucket)
    receipt = receipt_of(outcome.staged, outcome.entry)
    if print_json is not None:
        made = dist_wheels.receipt(outcome.built)
        print_json({**made, **receipt, "install": lines})
        return
    dist_wheels.show_receipt(outcome.built, reporter)
    reporter.line(
        f"targets: {tiers_text(receipt['tiers'], receipt['failing'])}; serve the index"
        " and install from it:"
    )
    for line in lines:
        reporter.command(f"  {line}")


def _install_lines(outcome: SetOutcome, bucket: str) -> tuple[str, ...]:
    """Return the commands that serve a local index and install a set from it."""
    simple = ReleasedIndex(index=outcome.staged.index).simple
    if is_url(bucket):
        # Only the owner of the bucket knows its public URL.
        url = f"https://<public URL of the bucket>/{simple}"
        return (install_line(outcome.wheel_set, url),)
    here = Path.cwd()
    launcher = _LAUNCHER
    if launcher.is_relative_to(here):
        launcher = launcher.relative_to(here)
    words = ("index", "serve", str(SERVE_PORT), "--bucket", bucket)
    url = f"http://127.0.0.1:{SERVE_PORT}/{simple}"
    return (
        render(("python3", str(launcher), *words)),
        install_line(outcome.wheel_set, url),
    )
