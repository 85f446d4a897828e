"""`ci_build images list`, `update` and `check`: the pins of docker/images.toml."""

from __future__ import annotations

from pathlib import Path

import click
import cloup

from ci_build.cli.commands.image_job import ImageJob
from ci_build.cli.common import State, print_json
from ci_build.cli.options.table import chosen_options
from ci_build.images import pin_updates
from core.errors import CiBuildError, RequestError
from core.report import print_table

_PINS = click.option(
    "--pins",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Pins that replace docker/images.toml.",
)
_MIRROR = chosen_options("image_mirror")
_JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON."
)


@cloup.command("list")
@_PINS
@click.option(
    "--arch", metavar="ARCH", help="x86_64, aarch64 or all.  [default: this machine's]"
)
@_JSON
@click.pass_obj
def list_pins(
    state: State, pins: Path | None, arch: str | None, *, as_json: bool
) -> None:
    """List the pinned base images and files, with their digests."""
    builder = ImageJob(state, {"pins": pins}).builder
    selected = pin_updates.select_pins(builder, (), arch or builder.arch)
    if as_json:
        print_json(selected)
        return
    rows = [
        (
            pin.label,
            pin.version,
            pin.digest.removeprefix("sha256:")[:16] or "(none)",
            pin.origin,
        )
        for pin in selected
    ]
    print_table(("name", "version", "sha256", "origin"), rows)


_ARCH = click.option(
    "--arch",
    metavar="ARCH",
    default="all",
    show_default=True,
    help="Architecture: x86_64, aarch64 or all.",
)


@cloup.command("update")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@_PINS
@_ARCH
@_MIRROR
@click.option(
    "--cache-dir", metavar="DIR", help="Cache of downloads.  [default: user's cache]"
)
@_JSON
@click.option("--dry-run", is_flag=True, help="Print the changes without writing them.")
@click.pass_obj
def update(
    state: State,
    names: tuple[str, ...],
    pins: Path | None,
    arch: str,
    image_mirror: str | None,
    cache_dir: str | None,
    *,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Update pinned digests to the current ones.

    Without NAME, update the digests of base images, and add the missing digests of
    files.
    """
    job = ImageJob(
        state, {"pins": pins, "image_mirror": image_mirror, "cache_dir": cache_dir}
    )
    with job.reporter.group("images update"):
        changes = pin_updates.update(job.builder, names, arch, dry_run=dry_run)
    if as_json:
        print_json(
            {
                label: {"before": before, "now": now}
                for label, (before, now) in changes.items()
            }
        )
    for label, (before, now) in changes.items():
        job.reporter.line(f"{label}: {before or 'none'} -> {now}")
    state_of_file = "would change" if dry_run else "changed"
    job.reporter.line(
        f"{len(changes)} pins of {job.builder.pins.path} {state_of_file}"
        if changes
        else "nothing changed"
    )


@cloup.command("check")
@_PINS
@_ARCH
@_MIRROR
@_JSON
@click.option(
    "--online",
    is_flag=True,
    help="Also check that the registry and the servers still have the pinned files.",
)
@click.pass_obj
def check(
    state: State,
    pins: Path | None,
    arch: str,
    image_mirror: str | None,
    *,
    as_json: bool,
    online: bool,
) -> None:
    """Fail on a missing digest, an ignored argument or, with --online, a lost pin."""
    if image_mirror and not online:
        raise RequestError(
            "--image-mirror has no effect without --online.",
            hint="Give both, or neither.",
        )
    job = ImageJob(state, {"pins": pins, "image_mirror": image_mirror})
    problems = list(pin_updates.problems(job.builder, arch, online=online))
    if as_json:
        print_json(problems)
    if problems:
        raise CiBuildError(
            f"{job.builder.pins.path} has problems:"
            + "".join(f"\n  {problem}" for problem in problems)
        )
    job.reporter.line(f"{job.builder.pins.path} has no problems")
