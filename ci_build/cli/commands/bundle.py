"""The command `ci_build bundle`."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, host_runner, open_bucket
from ci_build.cli.options.release import bucket_option
from core.errors import RequestError
from promotion.bundle import bundle as write_bundle
from promotion.bundle import staged_for_bundle


@cloup.command()
@click.argument("wheel_set", metavar="SET")
@click.option(
    "--out", metavar="FILE", type=click.Path(path_type=Path), help="Archive to write.  [default: INDEX-DIGEST.tar]"
)
@bucket_option
@click.pass_obj
def bundle(state: State, wheel_set: str, out: Path | None, bucket: str) -> None:
    """Archive a set and its dependencies for machines without a network.

    SET is INDEX/DIGEST as printed by `stage`, or the set's directory. If the bucket has the set, the archive contains
    its evidence.
    """
    from ci_build.release import gating  # Start-up time: the gates load auditwheel.

    beside = (out or Path("bundle")).absolute().parent
    if not os.access(beside, os.W_OK):
        what = "is not writable" if beside.exists() else "does not exist"
        raise RequestError(f"--out: the folder {beside} {what}.", hint="Give another --out.")
    reporter, folder = state.reporter(), Path(wheel_set)
    opened = open_bucket(bucket, reporter, existing=not folder.is_dir())
    with ExitStack() as ended:
        if folder.is_dir():
            gating.check_set_folder(folder)
            opened, staged = ended.enter_context(staged_for_bundle(opened, folder, beside, reporter))
        else:
            staged = gating.parse_staged(wheel_set)
        out = out or Path(f"{staged.index}-{staged.digest[:12]}.tar")
        click.echo(write_bundle(opened, staged, out, host_runner(reporter), reporter))
