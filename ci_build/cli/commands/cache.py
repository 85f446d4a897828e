"""`ci_build cache`: list and clean the cache."""

from __future__ import annotations

import time

import click
import cloup

from ci_build.cli.common import State, print_json
from core.cache_entries import collect, entries
from core.defaults import defaults
from core.report import print_line, print_table
from core.units import human, parse_size

_CACHE_DIR = click.option(
    "--cache-dir", metavar="DIR", help="Cache directory.  [default: user's cache]"
)


@cloup.group()
def cache() -> None:
    """List and clean the cache of downloads, ROCm trees and finished steps."""


@cache.command("ls")
@_CACHE_DIR
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def ls(state: State, cache_dir: str | None, *, as_json: bool) -> None:
    """List the entries of the cache, most recently used first."""
    root = state.settings({"cache_dir": cache_dir}).cache_dir
    found = entries(root)
    if as_json:
        print_json(
            [
                {"name": e.name, "path": str(e.path), "size": e.size, "used": e.used}
                for e in found
            ]
        )
        return
    rows = [
        (
            entry.name,
            human(entry.size),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used)),
        )
        for entry in found
    ]
    print_table(("entry", "size", "last used"), rows, numeric=(1,))
    print_line(
        f"{len(found)} entries, {human(sum(entry.size for entry in found))}, in {root}"
    )


@cache.command("gc")
@_CACHE_DIR
@click.option(
    "--limit",
    metavar="SIZE",
    help=f"Maximum size of the cache afterwards.  [default: {defaults()['build']['cache_limit']}]",
)
@click.option(
    "--dry-run", is_flag=True, help="Print what would be removed without removing it."
)
@click.pass_obj
def gc(
    state: State, cache_dir: str | None, limit: str | None, *, dry_run: bool
) -> None:
    """Remove the least recently used entries.

    Entries that are in use or were used within the last hour are always kept, even with
    --limit=0.
    """
    settings = state.settings({"cache_dir": cache_dir, "cache_limit": limit})
    setting = settings.get("cache_limit")
    origin = setting.origin if limit is None else "--limit"
    most = parse_size(str(setting.value), origin)
    removed = collect(settings.cache_dir, limit=most, dry_run=dry_run)
    for entry in removed:
        print_line(
            f"{'would remove' if dry_run else 'removed'} {entry.name} ({human(entry.size)})"
        )
    summary = f"{len(removed)} entries, {human(sum(entry.size for entry in removed))}"
    print_line(f"{summary}; the limit is {human(most)} ({origin})")
