"""The command `ci_build sources`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, host_runner, print_json
from ci_build.cli.options.release_options import json_option
from ci_build.cli.options.settings import refuse_typed
from ci_build.wheelset.source import pins, source_updates
from ci_build.wheelset.source.pins import PinTable
from ci_build.wheelset.source.source_updates import (
    JAX_TAG,
    ROCM_JAX_TAG,
    TaggedRepository,
)
from core.report import Reporter, print_line, print_table


@cloup.command()
@click.option("--update", is_flag=True, help="Pin every release that has no pins yet.")
@click.option(
    "--pins",
    "path",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default=pins.PINS,
    help="File that replaces pins.toml.  [default: ci_build/wheelset/source/pins.toml]",
)
@click.option(
    "--source-mirror",
    metavar="URL|DIR",
    help="With --update: server or folder that replaces GitHub.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="With --update: print the changes without writing them.",
)
@json_option
@click.pass_obj
def sources(
    state: State,
    path: Path,
    source_mirror: str | None,
    *,
    update: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """List the commits that a build from source compiles, by release of jax.

    With --update, pin every release of jax that has a tag and no pins yet. Pins are
    never changed: a tag that was moved is an error.
    """
    before = pins.load_pins(path)
    if not update:
        hint = "Give --update, or omit it."
        refuse_typed(("source_mirror", "dry_run"), "without --update", hint)
        _list(before, as_json=as_json)
        return
    reporter = state.reporter()
    after = _updated(before, source_mirror or "", reporter)
    new = [release for release in after.tags if release not in before.tags]
    if after != before and not dry_run:
        source_updates.write(path, after)
    if as_json:
        print_json({"added": new, "table": after})
    for release in new:
        reason = after.unsupported.get(release)
        if reason is None:
            pinned = after.pins[release]
            reason = f"jax {pinned.jax}, XLA {pinned.xla}"
        reporter.line(f"{release}: {reason}")
    count = f"{len(new)} release{'' if len(new) == 1 else 's'}"
    changed = f"{count} {'would be added' if dry_run else 'added'} to {path}"
    reporter.line(changed if new else "nothing changed")


def _list(table: PinTable, *, as_json: bool) -> None:
    if as_json:
        print_json(table)
        return
    rows = [
        (
            release,
            row.jax[:12],
            row.xla[:12],
            row.rocm_jax[:12] or "-",
            pins.interface_for(release).bazel,
        )
        for release, row in table.pins.items()
    ]
    print_table(("jax", "jax commit", "XLA commit", "rocm-jax commit", "Bazel"), rows)
    for release, reason in table.unsupported.items():
        print_line(f"{release} cannot be built: {reason}")


def _updated(before: PinTable, mirror: str, reporter: Reporter) -> PinTable:
    """Return the table with the tags of jax and rocm-jax on the server."""
    runner = host_runner(reporter)
    with (
        tempfile.TemporaryDirectory(prefix="ci_build-sources-") as folder,
        reporter.group("sources update"),
    ):

        def fetch(name: str, prefix: str) -> TaggedRepository:
            url = pins.repository_url(name, mirror)
            return source_updates.fetch_tags(
                url, prefix, Path(folder) / name, runner, reporter
            )

        return source_updates.updated(
            before, fetch("jax", JAX_TAG), fetch("rocm-jax", ROCM_JAX_TAG)
        )
