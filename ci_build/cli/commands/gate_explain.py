"""`ci_build gate explain TEST`: ledger entries and history of a test."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from ci_build.cli.common import State, open_bucket, print_json
from ci_build.cli.options.release import bucket_option
from core.defaults import defaults

_PLATFORMS = ("rocm", "cpu", "cuda")
_RUNS = 20


@click.command()
@click.argument("test")
@click.option("--family", default="", metavar="NAME", help="GPU family of the run, such as gfx94X-dcgpu.")
@click.option(
    "--platform", type=click.Choice(_PLATFORMS), default=_PLATFORMS[0], show_default=True, help="Platform of the run."
)
@click.option(
    "--jax-version",
    default=defaults()["build"]["jax_version"],
    metavar="X.Y.Z",
    show_default=True,
    help="Version of jax in the set.",
)
@click.option("--index", metavar="NAME", help="Also print the test's outcomes on sets of this index.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@bucket_option
@click.pass_obj
def explain(
    state: State, /, test: str, family: str, platform: str, jax_version: str, index: str | None, bucket: str,
    *, as_json: bool,
) -> None:  # fmt: skip
    """Print the ledger entries that match TEST, a node id of pytest, and why they apply or not."""
    from promotion.evidence.known_tests import check_run, inapplicable_reason, load_entries
    from promotion.evidence.test_runs import read_runs

    check_run(jax=jax_version, family=family)
    today = datetime.now(UTC).date()
    matches = [
        (entry, inapplicable_reason(entry, jax=jax_version, family=family, platform=platform, today=today))
        for entry in load_entries()
        if entry.matches(test)
    ]
    runs = []
    if index:
        with read_runs(open_bucket(bucket, state.reporter()), index) as history:
            runs = [*history.outcomes_of(test, limit=_RUNS)]
    if as_json:
        entries = [{"entry": entry.as_written(), "why_not": why} for entry, why in matches]
        print_json({"test": test, "entries": entries, "runs": runs})
        return
    for entry, why in matches:
        click.echo(f"{'applies' if not why else f'does not apply ({why})'}: {entry}; see {entry.link}")
    if not matches:
        click.echo(f"No ledger entry matches {test}: it runs, and its failures count.")
    for run in runs:
        click.echo(f"{run.run.finished}: {run.verdict} in {run.seconds:.1f} s on {run.run.family or run.run.platform}")
