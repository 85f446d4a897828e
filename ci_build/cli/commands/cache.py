"""The command `ci_build cache`."""

from __future__ import annotations

import time

import click
import cloup

from ci_build.cli.common import State, print_json
from ci_build.cli.options.shared_options import json_option, option, refuse_typed
from ci_build.cli.options.table import chosen_options
from core.cache_entries import collect, entries
from core.report import print_line, print_table
from core.units import human, parse_size


@cloup.command()
@option(
    "--cache-limit SIZE",
    "Remove the least recently used entries until the cache has this size.",
)
@chosen_options("cache_dir")
@option(
    "--dry-run", "With --cache-limit: print what would be removed without removing it."
)
@json_option
@click.pass_obj
def cache(
    state: State,
    cache_limit: str | None,
    cache_dir: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """List the cache of downloads, ROCm trees and finished steps, or clean it.

    With --cache-limit, entries that are in use or were used within the last hour are kept,
    even with --cache-limit=0.
    """
    root = state.settings({"cache_dir": cache_dir}).cache_dir
    if cache_limit is None:
        hint = "Give --cache-limit, or omit it."
        refuse_typed(("dry_run",), "without --cache-limit", hint)
        found = entries(root)
    else:
        found = collect(
            root, limit=parse_size(cache_limit, "--cache-limit"), dry_run=dry_run
        )
    size = human(sum(entry.size for entry in found))
    if as_json:
        rows = [
            {"name": e.name, "path": str(e.path), "size": e.size, "used": e.used}
            for e in found
        ]
        print_json(rows)
    elif cache_limit is None:
        cells = []
        for entry in found:
            used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
            cells.append((entry.name, human(entry.size), used))
        print_table(("entry", "size", "last used"), cells, numeric=(1,))
        print_line(f"{len(found)} entries, {size}, in {root}")
    else:
        word = "would remove" if dry_run else "removed"
        for entry in found:
            print_line(f"{word} {entry.name} ({human(entry.size)})")
        print_line(f"{len(found)} entries, {size}; the limit is {cache_limit}")
