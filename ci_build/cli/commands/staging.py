"""The command `ci_build set collect`."""

from __future__ import annotations

import click
import cloup

from ci_build.cli.common import State, open_bucket, print_json
from ci_build.cli.options.shared_options import DAYS, bucket_option, json_option, option
from promotion import staged_sets
from promotion.index.upkeep import record_upkeep
from promotion.storage.object_keys import ReleasedIndex


@cloup.command()
@click.argument("index")
@option(
    "--days DAYS",
    "Remove sets that were neither staged nor gated for DAYS days.",
    type=DAYS,
    default=30,
)
@option("--apply", "Remove the sets. Without it, only print them.", name="really")
@bucket_option
@json_option
@click.pass_obj
def collect(
    state: State,
    /,
    index: str,
    days: int,
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
    folders = staged_sets.staged_folders(opened, index, days=days)
    removable = [folder for folder in folders if not folder.kept]
    if really:
        staged_sets.remove(opened, removable)
        record_upkeep(opened, ReleasedIndex(index=index), "collect")
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
