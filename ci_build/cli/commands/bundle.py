"""The command `ci_build bundle`."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, host_runner, open_bucket
from ci_build.cli.options.release import bucket_option
from promotion.bundle import bundle as write_bundle


@cloup.command()
@click.argument("wheel_set", metavar="SET")
@click.option(
    "--out", metavar="FILE", type=click.Path(path_type=Path), help="Archive to write.  [default: INDEX-DIGEST.tar]"
)
@bucket_option
@click.pass_obj
def bundle(state: State, wheel_set: str, out: Path | None, bucket: str) -> None:
    """Archive a set and its dependencies for machines without a network.

    SET is INDEX/DIGEST as printed by `stage`, or the set's directory, which is staged first.
    """
    from ci_build.release import gating  # Start-up time: the gates load auditwheel.

    reporter = state.reporter()
    opened = open_bucket(bucket, reporter, existing=not Path(wheel_set).is_dir())
    staged = gating.find_set(wheel_set, opened, reporter)
    out = out or Path(f"{staged.index}-{staged.digest[:12]}.tar")
    click.echo(write_bundle(opened, staged, out, host_runner(reporter), reporter))
