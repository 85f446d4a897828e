"""`ci_build images update`: the digests in docker/images.toml."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import cloup

from ci_build.cli.commands.image_build import new_builder, pins_option
from ci_build.cli.common import State
from ci_build.cli.options.shared_options import option
from ci_build.cli.options.table import chosen_options
from ci_build.images import engine_images
from ci_build.images.image_builder import ImageBuilder
from ci_build.images.image_pins import ImagePins, Pin, save
from core.errors import RequestError

_PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}


@cloup.command("update")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@pins_option
@chosen_options("container_engine", "verbose")
@option("--dry-run", "Print the changes without writing them.")
@click.pass_obj
def update(
    state: State,
    /,
    names: tuple[str, ...],
    *,
    dry_run: bool,
    **values: Any,  # noqa: ANN401 - values of options
) -> None:
    """Pull the tags of base images, and write their current digests.

    Without NAME, update the digests of all base images, and add the missing digests of
    files. A named file is downloaded.
    """
    reporter = state.reporter(values)
    builder = new_builder(state.settings(values), values, reporter)
    changes = dict[str, str]()
    with reporter.group("images update"):
        for pin in select_pins(builder.pins, names):
            if pin.kind == "download" and pin.digest and not names:
                continue
            reporter.step(f"looking up {pin.label} {pin.version}")
            digest = current_digest(builder, pin)
            if digest != pin.digest:
                reporter.line(f"{pin.label}: {pin.digest or 'none'} -> {digest}")
                changes[pin.label] = digest
    if changes and not dry_run:
        save(builder.pins.path, changes)
    would = "would change" if dry_run else "changed"
    reporter.line(f"{len(changes)} pins of {builder.pins.path} {would}")


def select_pins(pins: ImagePins, names: Sequence[str]) -> list[Pin]:
    """Return the pins with the given names, or all pins.

    Raises:
        RequestError: a name has no pin.
    """
    known = {pin.name for pin in pins.pins}
    if unknown := sorted(set(names) - known):
        raise RequestError(
            f"{pins.path} has no {', '.join(unknown)}.",
            hint=f"Pinned names: {', '.join(sorted(known))}.",
        )
    return [pin for pin in pins.pins if not names or pin.name in names]


def current_digest(builder: ImageBuilder, pin: Pin) -> str:
    """Return the digest of a tag in its registry, or of a file on its server.

    Raises:
        InputError: the registry lacks the tag, or the download fails.
    """
    if pin.kind == "download":
        return builder.download(pin.origin)
    reference = f"{pin.origin}:{pin.version}"
    image = engine_images.pull(
        builder.engine, builder.host, reference, platform=_PLATFORMS[pin.arch]
    )
    digests = [
        name.removeprefix(f"{pin.origin}@")
        for name in image.digests
        if name.startswith(f"{pin.origin}@")
    ]
    # An engine may list the digests of several manifests: that of the index, and those
    # of its architectures.
    return pin.digest if pin.digest in digests else digests[0]
