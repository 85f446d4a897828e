"""`ci_build gate`."""

from __future__ import annotations

from pathlib import Path

import click

from ci_build import options
from ci_build.cli.common import State, host_runner


@click.command()
@click.argument("name", metavar="GATE", type=click.Choice([*options.GATES, "all"]))
@click.argument("staged", metavar="INDEX/DIGEST")
@options.bucket_option
@click.pass_obj
def gate(state: State, name: str, staged: str, bucket: Path) -> None:
    """Run a gate, or all, on a staged set and keep the evidence beside it."""
    from ci_build import release as way

    reporter = state.reporter()
    way.gate(name, way.parse_staged(staged), bucket, reporter, host_runner(reporter))
