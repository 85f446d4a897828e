"""Gates as a person asks for them: a set in a folder or in a bucket, by name, and a table of what they say.

Part of the command line, as `release` is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ci_build import options
from ci_build.errors import RequestError
from ci_build.model import WHEELS_JSON, Evidence, Finding, Runner, Severity
from ci_build.report import Reporter
from promotion import gates
from promotion import stage as promotion_stage
from promotion.dirbucket import DirBucket
from promotion.gates import Gate, coverage, inspection, install
from promotion.layout import StagedSet

_WARNINGS = 12
"""Warnings that are shown; all are in the evidence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What gates are told.

    Attributes:
        targets: gfx targets or families, as words; None means those of the set.
        redo: run also what passed before.
    """

    targets: str | None = None
    redo: bool = False


def names_of(name: str) -> tuple[str, ...]:
    """The gates that a word stands for."""
    return options.GATES if name == options.STRUCTURE else (name,)


def make_gate(name: str, told: Told) -> Gate:  # noqa: ARG001
    """The gate of that name."""
    match name:
        case "inspection":
            return inspection.GATE
        case "coverage":
            return coverage.GATE
        case "install":
            return install.make_gate()
        case other:
            raise AssertionError(f"options.GATES names {other!r}, which nobody makes")


def parse_staged(text: str) -> StagedSet:
    """Read `<index>/<digest>`, as `ci_build stage` prints it."""
    index, slash, digest = text.rpartition("/")
    if not slash:
        raise RequestError(f"{text!r} is not a staged set.", hint="Write it as `stage` prints it: INDEX/DIGEST.")
    return StagedSet(index=index, digest=digest)


def require(bucket: Path) -> None:
    """Raise RequestError when the bucket's folder is not there."""
    if not bucket.is_dir():
        raise RequestError(f"{bucket} is not a bucket's folder.", hint="Stage a set first, or give its --bucket.")


def find_set(text: str, bucket: Path, reporter: Reporter) -> StagedSet:
    """The staged set that a word means: INDEX/DIGEST, or a folder with wheels.json, which is staged unless it is.

    Raises:
        RequestError: it is neither.
    """
    folder = Path(text)
    if (folder / WHEELS_JSON).is_file():
        return promotion_stage.find_staged(DirBucket(bucket), folder) or promotion_stage.stage(
            DirBucket(bucket), folder, progress=reporter
        )
    if folder.is_dir():
        raise RequestError(
            f"{folder} has no {WHEELS_JSON}.", hint="Make a set with `ci_build dist_wheels` or `ci_build adopt`."
        )
    require(bucket)
    return parse_staged(text)


def run_gates(
    names: Sequence[str], staged: StagedSet, bucket: Path, told: Told, reporter: Reporter, runner: Runner
) -> tuple[Evidence, ...]:
    """Run gates and show what they say, failures included; `raise_for_failures` is for the caller."""
    from ci_build.targets import expand

    began = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    evidences = gates.run_gates(
        DirBucket(bucket),
        staged,
        [make_gate(name, told) for name in names],
        runner,
        reporter,
        targets=None if told.targets is None else [str(target) for target in expand(told.targets)],
        redo=told.redo,
    )
    show(evidences, reporter, began)
    return evidences


def show(evidences: Sequence[Evidence], reporter: Reporter, began: str) -> None:
    """A table of evidence for people, and the first warnings; what is older than `began` (ISO 8601) says from when."""
    columns = ("gate", "target", "result", "passed", "known", "failed", "skipped", "warnings", "took")
    rows = [tuple(_row(evidence, began)) for evidence in evidences]
    reporter.table(columns, rows, numeric=(3, 4, 5, 6, 7, 8))
    warnings = [*dict.fromkeys(_of(evidences, Severity.WARNING))]
    for finding in warnings[:_WARNINGS]:
        reporter.finding(finding)
    if len(warnings) > _WARNINGS:
        reporter.line(f"{len(warnings) - _WARNINGS} more warnings are in the evidence; --json prints it")


def _row(evidence: Evidence, began: str) -> Iterator[str]:
    yield from (evidence.gate, evidence.target, evidence.outcome.value)
    yield from (str(evidence.counts[word]) for word in ("passed", "known", "failed", "skipped"))
    yield str(sum(1 for _ in _of([evidence], Severity.WARNING)))
    seconds = (datetime.fromisoformat(evidence.ended) - datetime.fromisoformat(evidence.started)).seconds
    yield f"{seconds} s" if evidence.started >= began else evidence.started


def _of(evidences: Sequence[Evidence], severity: Severity) -> Iterator[Finding]:
    return (finding for evidence in evidences for finding in evidence.findings if finding.severity is severity)
