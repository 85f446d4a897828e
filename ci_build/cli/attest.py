"""`ci_build attest`."""

from __future__ import annotations

import click

from ci_build import options
from ci_build.cli.common import State, open_bucket


@click.command()
@click.argument("wheel_set", metavar="SET")
@options.bucket_option
@options.dry_run_option
@click.pass_obj
def attest(state: State, wheel_set: str, bucket: str, *, dry_run: bool) -> None:
    """Sign the wheels of a staged set with the identity of this CI job (PEP 740); promotion publishes that.

    SET is INDEX/DIGEST as `stage` prints it.
    """
    from ci_build import gating
    from promotion.attest import attest as go
    from promotion.attest import with_identity

    reporter = state.reporter()
    staged = gating.parse_staged(wheel_set)
    opened = open_bucket(bucket, reporter, dry_run=dry_run)
    with with_identity() as sign:
        done = go(opened, staged, sign, reporter)
    reporter.line(f"  {len(done)} wheels attested" if done else "  nothing to attest")
