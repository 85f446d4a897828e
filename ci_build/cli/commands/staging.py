"""The command `ci_build set collect`."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, open_bucket, print_json
from ci_build.cli.options.release_options import Duration, bucket_option
from core.wheels_json import load_wheel_set
from promotion import staged_sets


@cloup.command()
@click.argument("index")
@click.option(
    "--days",
    type=Duration(0),
    default=30,
    show_default=True,
    help="Remove sets that were neither staged nor gated for DAYS days.",
)
@click.option(
    "--keep",
    multiple=True,
    metavar="DIGEST|WHEELS_JSON",
    help=(
        "Keep the set with this digest or first digits, or the set of this wheels.json;"
        " may be repeated."
    ),
)
@click.option(
    "--apply",
    "really",
    is_flag=True,
    help="Remove the sets. Without it, only print them.",
)
@bucket_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def collect(
    state: State,
    /,
    index: str,
    days: float,
    keep: tuple[str, ...],
    bucket: str,
    *,
    really: bool,
    as_json: bool,
) -> None:
    """List the staged sets of INDEX, and remove old ones with --apply.

    Released sets have their own files; pinned sets stay.
    """
    reporter = state.reporter()
    opened = open_bucket(bucket, reporter)
    digests = [
        (
            load_wheel_set(Path(word).read_bytes(), word).digest
            if Path(word).is_file()
            else word
        )
        for word in keep
    ]
    folders = staged_sets.staged_folders(opened, index, days=days, keep=digests)
    removable = [folder for folder in folders if not folder.kept]
    if really:
        staged_sets.remove(opened, removable)
    if as_json:
        print_json(folders)
        return
    for folder in folders:
        fate = f"stays: {folder.kept}" if folder.kept else "is removed"
        upload = "" if folder.complete else ", incomplete upload"
        used = f"last used {folder.used:%Y-%m-%d %H:%M}{upload}"
        reporter.line(f"  {folder.staged} {fate}; {used}")
    if not removable:
        reporter.line("nothing to do")
    elif not really:
        reporter.line("nothing was changed; --apply removes the sets")
