"""The command `ci_build sources`."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, host_runner, print_json
from ci_build.cli.options.shared_options import PATH, json_option, option, refuse_typed
from ci_build.wheelset.source import pins
from ci_build.wheelset.source.pins import PinTable
from ci_build.wheelset.source.upstream_tables import read_upstream
from core.report import print_line, print_table
from promotion.policy.families import FAMILIES_FILE


@cloup.command()
@option("--update", "Add new releases, AMD's branches and TheRock's runners.")
@option(
    "--pins FILE",
    "File that replaces pins.toml.  [default: ci_build/wheelset/source/pins.toml]",
    name="path",
    type=PATH,
    default=pins.PINS,
    show_default=False,
)
@option(
    "--source-mirror URL|DIR",
    "With --update: server, or folder of checkouts, that replaces GitHub.",
)
@option("--dry-run", "With --update: print the changes without writing them.")
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

    With --update, pin every release of jax that has a tag and no pins yet, and every
    release branch of ROCm/jax; write TheRock's runners into
    promotion/policy/families.toml; and print which of its targets and families
    core/targets.toml lacks. Pins are never changed: a tag that was moved is an error.
    A folder of checkouts has jax-ml/jax, ROCm/rocm-jax, ROCm/jax and ROCm/TheRock, or
    some of them.
    """
    before = pins.load_pins(path)
    if not update:
        hint = "Give --update, or omit it."
        refuse_typed(("source_mirror", "dry_run"), "without --update", hint)
        _list(before, as_json=as_json)
        return
    reporter = state.reporter()
    with reporter.group("sources update"):
        found = read_upstream(
            before, source_mirror or "", host_runner(reporter), reporter
        )
    if not dry_run:
        found.write(before, path)
    if as_json:
        print_json(found)
    for line in found.lines(before):
        reporter.line(line)
    verb = "would be changed" if dry_run else "changed"
    if found.table != before:
        reporter.line(f"{verb}: {path}")
    if found.runners:
        reporter.line(f"{verb}: {FAMILIES_FILE}")
    if found.table == before and not found.runners:
        reporter.line("nothing changed")


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
