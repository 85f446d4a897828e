"""`ci_build images`: what images are made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import cloup

from ci_build.cli.common import State, host_runner, print_json

if TYPE_CHECKING:
    from ci_build.images.builder import ImageRequest
    from core.process import HostRunner
    from core.report import Reporter

_F = TypeVar("_F", bound=Callable[..., Any])
_PINS = click.option("--pins", metavar="FILE", type=click.Path(path_type=Path), help="Another images.toml.")
_REGISTRY = click.option("--image-registry", metavar="HOST[/PATH]", help="Registry that base images come from.")
_CACHE = click.option("--cache-dir", metavar="DIR", help="The cache, if it is not the default one.")
_ARCH = click.option("--arch", metavar="ARCH", help="Machine: x86_64, aarch64 or all; this one if nobody says.")
_ARCHES = click.option("--arch", metavar="ARCH", default="all", show_default=True, help="Machine: x86_64 or aarch64.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")


def asked(
    state: State, after: dict[str, Any], pins: Path | None, *, no_cache: bool = False
) -> tuple[ImageRequest, HostRunner, Reporter]:
    """Options -> what was asked for about images, and what it is done with."""
    from ci_build.images.builder import image_request

    reporter = state.reporter(after)
    host = host_runner(reporter)
    return image_request(state.settings(after), host, reporter, "build", pins=pins, no_cache=no_cache), host, reporter


@cloup.group()
def images() -> None:
    """List, update and check the pins of images: docker/images.toml."""


@images.command("list")
@_PINS
@_ARCH
@_JSON
@click.pass_obj
def list_pins(state: State, pins: Path | None, arch: str | None, *, as_json: bool) -> None:
    """Show every base image and file that images are made of, with its digest."""
    from ci_build.images.pin_updates import select_pins
    from core.report import print_table

    request, _, _ = asked(state, {}, pins)
    found = select_pins(request, (), arch or request.arch)
    if as_json:
        print_json(found)
        return
    rows = [(pin.label, pin.version, pin.digest.removeprefix("sha256:")[:16] or "(none)", pin.origin) for pin in found]
    print_table(("what", "version", "sha256", "from"), rows)


@images.command("update")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@_PINS
@_ARCHES
@_REGISTRY
@_CACHE
@_JSON
@click.option("--dry-run", is_flag=True, help="Tell what would change, and write nothing.")
@click.pass_obj
def update(
    state: State,
    names: tuple[str, ...],
    pins: Path | None,
    arch: str,
    image_registry: str | None,
    cache_dir: str | None,
    *,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Write down the digests of today: of tags of base images, and of files that have none or are named."""
    from ci_build.images import pin_updates

    after = {"image_registry": image_registry, "cache_dir": cache_dir}
    request, _, reporter = asked(state, after, pins)
    with reporter.group("images update"):
        changes = pin_updates.update(request, names, arch, reporter, dry_run=dry_run)
    if as_json:
        print_json({label: {"before": before, "now": now} for label, (before, now) in changes.items()})
    for label, (before, now) in changes.items():
        reporter.line(f"{label}: {before or 'nothing'} -> {now}")
    what = "would change" if dry_run else "changed"
    reporter.line(f"{len(changes)} of {request.pins.path} {what}" if changes else "nothing changed")


@images.command("check")
@_PINS
@_ARCHES
@_REGISTRY
@_JSON
@click.option("--online", is_flag=True, help="Also ask the registry and the servers.")
@click.pass_obj
def check(
    state: State,
    pins: Path | None,
    arch: str,
    image_registry: str | None,
    *,
    as_json: bool,
    online: bool,
) -> None:
    """Fail where a digest is missing, a Dockerfile ignores an argument, or, with --online, something is not there."""
    from ci_build.images import pin_updates
    from core.errors import RequestError

    if image_registry and not online:
        raise RequestError("--image-registry has no use without --online.", hint="Give both, or neither.")
    request, _, reporter = asked(state, {"image_registry": image_registry}, pins)
    found = list(pin_updates.problems(request, arch, online=online))
    if as_json:
        print_json(found)
    pin_updates.raise_for_problems(found, request)
    reporter.line(f"{request.pins.path} is in order")
