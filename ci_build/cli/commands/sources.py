"""`ci_build sources`: the pinned sources of jax releases."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import cloup

from ci_build.cli.common import State, host_runner, print_json
from ci_build.wheelset.source import pins, source_updates
from ci_build.wheelset.source.source_updates import (
    JAX_TAG,
    ROCM_JAX_TAG,
    TaggedRepository,
)
from core.errors import RequestError
from core.model import Progress
from core.process import Runner
from core.report import print_line, print_table

_PINS = click.option(
    "--pins",
    "path",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default=pins.PINS,
    help="File that replaces pins.toml.  [default: ci_build/wheelset/source/pins.toml]",
)
_JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON."
)
_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@cloup.group()
def sources() -> None:
    """List and update the pinned sources of jax releases."""


@sources.command("list")
@_PINS
@_JSON
def list_pins(path: Path, *, as_json: bool) -> None:
    """List the commits that a build from source compiles, by release of jax."""
    table = pins.load_pins(path)
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


@sources.command("update")
@_PINS
@click.option(
    "--jax-source-dir",
    metavar="DIR",
    type=_FOLDER,
    help="Checkout of jax-ml/jax with tags.  [default: fetch the tags]",
)
@click.option(
    "--rocm-jax-source-dir",
    metavar="DIR",
    type=_FOLDER,
    help="Checkout of ROCm/rocm-jax with tags.  [default: fetch the tags]",
)
@click.option(
    "--source-mirror", metavar="URL", help="Server or folder that replaces GitHub."
)
@_JSON
@click.option("--dry-run", is_flag=True, help="Print the changes without writing them.")
@click.pass_obj
def update(
    state: State,
    path: Path,
    jax_source_dir: Path | None,
    rocm_jax_source_dir: Path | None,
    source_mirror: str | None,
    *,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Pin every release of jax that has a tag and no pins yet.

    Pins are never changed: a tag that was moved is an error.
    """
    if source_mirror and jax_source_dir and rocm_jax_source_dir:
        raise RequestError(
            "--source-mirror has no effect with both checkouts.",
            hint="Omit it, or omit a checkout.",
        )
    reporter = state.reporter()
    runner = host_runner(reporter)
    before = pins.load_pins(path)
    with (
        tempfile.TemporaryDirectory(prefix="ci_build-sources-") as folder,
        reporter.group("sources update"),
    ):

        def repository(name: str, prefix: str, given: Path | None) -> TaggedRepository:
            return _repository(
                name, prefix, given, source_mirror or "", Path(folder), runner, reporter
            )

        jax = repository("jax", JAX_TAG, jax_source_dir)
        after = source_updates.updated(
            before, jax, repository("rocm-jax", ROCM_JAX_TAG, rocm_jax_source_dir)
        )
    new = [release for release in after.tags if release not in before.tags]
    if after != before and not dry_run:
        source_updates.write(path, after)
    if as_json:
        print_json({"added": new, "table": after})
    for release in new:
        reason = after.unsupported.get(release)
        reporter.line(
            f"{release}:"
            f" {reason or f'jax {after.pins[release].jax}, XLA {after.pins[release].xla}'}"
        )
    count = f"{len(new)} release{'' if len(new) == 1 else 's'}"
    changed = f"{count} {'would be added' if dry_run else 'added'} to {path}"
    reporter.line(changed if new else "nothing changed")


def _repository(
    name: str,
    prefix: str,
    given: Path | None,
    mirror: str,
    folder: Path,
    runner: Runner,
    progress: Progress,
) -> TaggedRepository:
    """Return a checkout of the user, or a fetched repository."""
    if given is not None:
        return TaggedRepository(folder=given, prefix=prefix, runner=runner)
    return source_updates.fetch_tags(
        pins.repository_url(name, mirror), prefix, folder / name, runner, progress
    )
