"""`ci_build bundle`."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli import options
from ci_build.cli.common import State, host_runner, open_bucket


@cloup.command()
@click.argument("wheel_set", metavar="SET")
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), help="The archive; SET's name by default.")
@options.bucket_option
@click.pass_obj
def bundle(state: State, wheel_set: str, out: Path | None, bucket: str) -> None:
    """Make one archive of a staged or released set and all it needs, for machines without a network.

    SET is INDEX/DIGEST as `stage` prints it, or the set's folder, which is staged first.
    """
    from ci_build.release import gating
    from promotion.index.bundle import bundle as make

    reporter = state.reporter()
    opened = open_bucket(bucket, reporter, existing=not Path(wheel_set).is_dir())
    staged = gating.find_set(wheel_set, opened, reporter)
    out = out or Path(f"{staged.index}-{staged.digest[:12]}.tar")
    click.echo(make(opened, staged, out, host_runner(reporter), reporter))
