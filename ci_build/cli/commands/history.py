"""`ci_build history`: changes of an index, outcomes of its tests, and summaries of test runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from statistics import median

import click
import cloup

from ci_build.cli.common import State, open_bucket, print_json
from ci_build.cli.options.release import bucket_option
from core.errors import RequestError
from core.report import print_line, print_table
from core.units import human
from promotion.evidence.test_changes import ChangeKind, TestTrend, trends_of
from promotion.evidence.test_results import SuiteRun, TestVerdict
from promotion.evidence.test_runs import RunTally, read_runs
from promotion.gates.device.run_record import rebuild_history
from promotion.index import operations
from promotion.index.ledger_state import EntryKind
from promotion.index.pages import tiers_text
from promotion.night_results import NightResult, night_results
from promotion.storage.keys import ReleasedIndex

_SHOWN_TESTS, _SHOWN_RUNS = 20, 30
"""Number of broken and flaky tests, and of the newest runs of a test, that are printed."""
_COUNTED = (TestVerdict.PASSED, TestVerdict.FAILED, TestVerdict.FLAKY)
_LETTERS = {
    TestVerdict.PASSED: ".",
    TestVerdict.FAILED: "F",
    TestVerdict.FLAKY: "~",
    TestVerdict.ENVIRONMENT: "E",
    TestVerdict.CRASHED: "C",
    TestVerdict.SKIPPED: "s",
    TestVerdict.NOT_RUN: "-",
}


@cloup.command()
@click.argument("index")
@click.option(
    "--tests",
    is_flag=False,
    flag_value="*",
    metavar="[PATTERN]",
    help="List results of tests whose names match PATTERN (* and ?).",
)
@click.option("--nights", is_flag=True, help="List nights with sizes, results of gates and tests, and promotions.")
@click.option(
    "--trend",
    is_flag=True,
    help="With --tests: summarize each run, with what changed since the set before and the reasons of skips. With a "
    "pattern: one line per test, with its results over all runs.",
)
@click.option("--rebuild", is_flag=True, help="With --tests: first index the results of all staged and released sets.")
@click.option("--family", metavar="NAME", help="With --tests: only runs on this GPU family.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help="With --tests or --nights: maximum number of lines.  [default: 1000, or 60 nights]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the entries as JSON.")
@bucket_option
@click.pass_obj
def history(
    state: State, /, index: str, bucket: str,
    *, tests: str | None, nights: bool, trend: bool, rebuild: bool, family: str | None, limit: int | None,
    as_json: bool,
) -> None:  # fmt: skip
    """List the changes of INDEX, the results of its tests or its nights, newest first."""
    if nights:
        if tests is not None or trend or rebuild or family is not None:
            text = "--nights excludes --tests, --trend, --rebuild and --family."
            raise RequestError(text, hint="Omit --nights, or omit the other options.")
        _print_nights(night_results(open_bucket(bucket, state.reporter()), index, limit=limit or 60), as_json=as_json)
        return
    if tests is not None:
        _print_tests(state, index, bucket, tests, family, limit or 1000, trend=trend, rebuild=rebuild, as_json=as_json)
        return
    if trend or rebuild or family is not None or limit is not None:
        text = "--trend, --rebuild, --family and --limit have no effect without --tests."
        raise RequestError(text, hint="Add --tests, or omit these options.")
    entries = [*operations.history(open_bucket(bucket, state.reporter()), ReleasedIndex(index=index))]
    if as_json:
        print_json(entries)
        return
    visible = {*entries[0].state.visible}
    rows = [
        (
            str(entry.number),
            entry.time,
            entry.kind.value,
            entry.promoted.set_digest[:12]
            if entry.promoted
            else ", ".join(map(str, entry.sets or (entry.to,) * (entry.kind is EntryKind.ROLLBACK))),
            f"jax {entry.promoted.jax_version}, ROCm {entry.promoted.rocm_version}" if entry.promoted else "",
            "yes" if entry.number in visible else "",
            entry.actor,
            entry.reason,
        )
        for entry in entries
    ]
    print_table(("entry", "time", "what", "set", "of", "offered", "by", "reason"), rows)


def _print_nights(results: Sequence[NightResult], *, as_json: bool) -> None:
    """Print one line per night, or all numbers as JSON."""
    if as_json:
        print_json(results)
        return
    rows = []
    for night in results:
        checks = Counter[str]()
        for gate in night.gates:
            checks.update(gate.counts)
        tests = Counter[TestVerdict]()
        for tally in night.tests:
            tests.update(tally.verdicts)
        rows.append(
            (
                night.time,
                f"jax {night.jax}, ROCm {night.rocm}" if night.jax else night.version,
                night.set.rpartition("/")[2][:12],
                f"entry {night.entry}{'' if night.visible else ', hidden'}" if night.entry else "staged",
                tiers_text(night.tiers),
                human(sum(night.sizes.values())),
                *(str(checks[word]) for word in ("passed", "failed", "skipped")),
                " ".join(f"{verdict.value} {count}" for verdict, count in sorted(tests.items())),
            )
        )
    columns = ("night", "of", "set", "promotion", "tiers", "wheels", "passed", "failed", "skipped", "tests")
    print_table(columns, rows, numeric=(5, 6, 7, 8))


def _print_tests(
    state: State, index: str, bucket: str, pattern: str, family: str | None, limit: int,
    *, trend: bool, rebuild: bool, as_json: bool,
) -> None:  # fmt: skip
    """Print outcomes of tests whose names match a pattern, or summaries of runs, newest first."""
    store = open_bucket(bucket, state.reporter())
    if rebuild:
        state.reporter().line(f"{rebuild_history(store, index)} runs were recorded")
    with read_runs(store, index) as history:
        if family is not None and family not in (known := history.families()):
            hint = f"Give one of {', '.join(sorted(known))}." if known else "Omit --family: all runs used CPUs or CUDA."
            raise RequestError(f"{index} has no runs on {family!r}.", hint=hint)
        if trend and pattern == "*":
            _print_trend([*history.tallies(family=family, limit=limit)], as_json=as_json)
            return
        if trend:
            trends = islice(trends_of(history.outcomes(pattern, family=family, limit=None)), limit)
            _print_tests_trend([*trends], as_json=as_json)
            return
        outcomes = [*history.outcomes(pattern, family=family, limit=limit)]
    if as_json:
        print_json(outcomes)
        return
    rows = [
        (
            item.run.finished,
            item.test,
            item.verdict.value,
            f"{item.seconds:.1f} s",
            _where(item.run),
            f"jax {item.run.jax}, ROCm {item.run.rocm}",
            item.run.set_digest[:12],
        )
        for item in outcomes
    ]
    print_table(("finished", "test", "verdict", "time", "on", "of", "set"), rows)


def _print_trend(tallies: Sequence[RunTally], *, as_json: bool) -> None:
    """Print one line per run with its verdict counts, what changed, its duration and the reasons of its skips."""
    if as_json:
        print_json(tallies)
        return
    rows = [
        (
            tally.run.finished,
            _where(tally.run),
            f"jax {tally.run.jax}, ROCm {tally.run.rocm}, {tally.run.suite}",
            tally.run.set_digest[:12],
            ", ".join(f"{tally.verdicts[verdict]} {verdict}" for verdict in TestVerdict if tally.verdicts.get(verdict)),
            f"{tally.seconds:.0f} s",
            _changes(tally),
            "; ".join(
                f"{count} {why or 'without a reason'}"
                for why, count in sorted(tally.skipped.items(), key=lambda item: (-item[1], item[0]))
            ),
        )
        for tally in tallies
    ]
    print_table(("finished", "on", "of", "set", "results", "time", "changed", "skipped for"), rows)
    bad = [
        f"{tally.run.finished} {change.kind}: {change.test}"
        for tally in tallies
        for change in tally.changes
        if change.kind in (ChangeKind.BROKEN, ChangeKind.FLAKY)
    ]
    for line in bad[:_SHOWN_TESTS]:
        print_line(line)
    if len(bad) > _SHOWN_TESTS:
        print_line(f"... and {len(bad) - _SHOWN_TESTS} more; --json lists all of them.")


def _changes(tally: RunTally) -> str:
    """Return the number of tests of each change since the set before."""
    if not tally.previous:
        return "first run"
    counts = Counter(change.kind for change in tally.changes)
    return ", ".join(f"{counts[kind]} {kind}" for kind in ChangeKind if counts[kind]) or "nothing"


def _print_tests_trend(trends: Sequence[TestTrend], *, as_json: bool) -> None:
    """Print one line per test and kind of run, with a letter for each run."""
    if as_json:
        print_json(trends)
        return
    rows = [
        (
            trend.test,
            f"{_where(trend.runs[-1])} {trend.runs[-1].suite}",
            "".join(_LETTERS[verdict] for verdict in trend.verdicts[-_SHOWN_RUNS:]),
            f"{trend.verdicts[-1]} since {trend.since}",
            *(str(trend.verdicts.count(verdict)) for verdict in _COUNTED),
            f"{median(trend.seconds):.1f} s",
            f"{trend.seconds[-1]:.1f} s",
        )
        for trend in trends
    ]
    counted = (verdict.value for verdict in _COUNTED)
    print_table(("test", "on", "runs", "now", *counted, "median", "last"), rows, numeric=(4, 5, 6, 7, 8))
    if rows:
        print_line("runs, oldest first: " + ", ".join(f"{letter} {verdict}" for verdict, letter in _LETTERS.items()))


def _where(run: SuiteRun) -> str:
    """Return platform, family, Python and passes of a run."""
    python = f"py{run.python}" if run.python else ""
    return " ".join(filter(None, (run.platform, run.family, python, run.passes)))
