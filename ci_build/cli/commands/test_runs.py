"""`ci_build history INDEX --tests`: outcomes of tests, and summaries of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ci_build.cli.common import State, open_bucket, print_json
from core.errors import RequestError

if TYPE_CHECKING:
    from promotion.evidence.test_runs import RunTally


def print_history(
    state: State,
    index: str,
    bucket: str,
    pattern: str,
    family: str | None,
    limit: int,
    *,
    trend: bool,
    rebuild: bool,
    as_json: bool,
) -> None:
    """Print outcomes of tests whose names match a pattern, or summaries of runs, newest first."""
    from promotion.evidence.test_runs import read_runs

    store = open_bucket(bucket, state.reporter())
    if rebuild:
        from promotion.gates.device.run_record import rebuild_history

        state.reporter().line(f"{rebuild_history(store, index)} runs were recorded")
    with read_runs(store, index) as history:
        if family is not None and family not in (known := history.families()):
            hint = f"There are runs on {', '.join(sorted(known))}." if known else "All runs were on CPUs or CUDA."
            raise RequestError(f"{index} has no runs on {family!r}.", hint=hint)
        if trend:
            _print_trend([*history.tallies(family=family, limit=limit)], as_json=as_json)
            return
        outcomes = [*history.outcomes(pattern, family=family, limit=limit)]
    if as_json:
        print_json(outcomes)
        return
    from core.report import print_table

    rows = [
        (
            item.run.finished,
            item.test,
            item.verdict.value,
            f"{item.seconds:.1f} s",
            " ".join(filter(None, (item.run.platform, item.run.family))),
            f"jax {item.run.jax}, ROCm {item.run.rocm}",
            item.run.set_digest[:12],
        )
        for item in outcomes
    ]
    print_table(("finished", "test", "verdict", "time", "on", "of", "set"), rows)


def _print_trend(tallies: Sequence[RunTally], *, as_json: bool) -> None:
    """Print a line for each run, which shows trends of failures, flakes, skips and durations."""
    if as_json:
        print_json(tallies)
        return
    from core.report import print_table
    from promotion.evidence.test_results import TestVerdict

    rows = [
        (
            tally.run.finished,
            " ".join(filter(None, (tally.run.platform, tally.run.family))),
            f"jax {tally.run.jax}, ROCm {tally.run.rocm}, {tally.run.suite}",
            *(str(tally.verdicts.get(verdict, 0)) for verdict in TestVerdict),
            f"{tally.seconds:.0f} s",
            "; ".join(
                f"{count} {why or 'without a reason'}"
                for why, count in sorted(tally.skipped.items(), key=lambda item: (-item[1], item[0]))
            ),
        )
        for tally in tallies
    ]
    verdicts = tuple(verdict.value for verdict in TestVerdict)
    print_table(("finished", "on", "of", *verdicts, "time", "skipped for"), rows)
