"""`ci_build cache`: what is kept, and what may go."""

from __future__ import annotations

import time

import click
import cloup

from ci_build.cli import options
from ci_build.cli.common import State, print_json

_CACHE_DIR = click.option("--cache-dir", metavar="DIR", help="The cache, if it is not the default one.")


@cloup.group()
def cache() -> None:
    """What is kept of fetched inputs, ROCm trees and finished steps."""


@cache.command("ls")
@_CACHE_DIR
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.pass_obj
def ls(state: State, cache_dir: str | None, *, as_json: bool) -> None:
    """List what the cache holds, used last first."""
    from core.cache import entries
    from core.report import print_table
    from core.units import human

    root = options.cache_dir(state.settings({"cache_dir": cache_dir}))
    found = entries(root)
    if as_json:
        print_json([{"name": e.name, "path": str(e.path), "size": e.size, "used": e.used} for e in found])
        return
    rows = [
        (entry.name, human(entry.size), time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))) for entry in found
    ]
    print_table(("entry", "size", "used last"), rows, numeric=(1,))
    click.echo(f"{len(found)} entries, {human(sum(entry.size for entry in found))}, in {root}")


@cache.command("gc")
@_CACHE_DIR
@click.option("--limit", metavar="SIZE", help="Keep so much, what was used last; if nobody says, as much as builds do.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.pass_obj
def gc(state: State, cache_dir: str | None, limit: str | None, *, dry_run: bool) -> None:
    """Remove what was not used for the longest time; what is in use, or was within the hour, stays.

    `--limit=0` keeps nothing else.
    """
    from core.cache import collect
    from core.units import human, parse_size

    settings = state.settings({"cache_dir": cache_dir, "cache_limit": limit})
    setting = settings.get("cache_limit", "build")
    origin = setting.origin if limit is None else "--limit"
    most = parse_size(str(setting.value), origin)
    removed = collect(options.cache_dir(settings), limit=most, dry_run=dry_run)
    for entry in removed:
        click.echo(f"{'would remove' if dry_run else 'removed'} {entry.name} ({human(entry.size)})")
    summary = f"{len(removed)} entries, {human(sum(entry.size for entry in removed))}"
    click.echo(f"{summary}; the limit is {human(most)} ({origin})")
