"""`ci_build staging`: list the staged sets of an index, and remove old ones."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, open_bucket, print_json
from ci_build.cli.options.release_options import Duration, bucket_option
from core.report import print_table
from core.wheels_json import load_wheel_set
from promotion import staged_sets

_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON."
)


@cloup.group()
def staging() -> None:
    """List staged sets, and remove old ones."""


@staging.command("list")
@click.argument("index")
@bucket_option
@_json_option
@click.pass_obj
def list_sets(state: State, /, index: str, bucket: str, *, as_json: bool) -> None:
    """List the staged sets of INDEX, the least recently used first."""
    folders = staged_sets.staged_folders(
        open_bucket(bucket, state.reporter()), index, days=0
    )
    if as_json:
        print_json(folders)
        return
    rows = [
        (
            str(folder.staged),
            f"{folder.used:%Y-%m-%d %H:%M}",
            "complete" if folder.complete else "incomplete",
        )
        for folder in folders
    ]
    print_table(("set", "last used", "upload"), rows)


@staging.command("gc")
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
@_json_option
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
    """Remove old staged sets of INDEX. Released sets have their own files; pinned sets stay."""
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
        reporter.line(
            f"  {folder.staged}"
            f" {f'stays: {folder.kept}' if folder.kept else 'is removed'}"
        )
    if not removable:
        reporter.line("nothing to do")
    elif not really:
        reporter.line("nothing was changed; --apply removes the sets")
