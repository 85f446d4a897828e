"""`ci_build images`: the image in which wheels are compiled, and docker/images.toml."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import cloup

from ci_build.cli.common import State, connector, host_runner, print_json, show_plan
from ci_build.cli.options.settings import Settings
from ci_build.cli.options.shared_options import PATH, Values, option
from ci_build.cli.options.table import chosen_options
from ci_build.images import engine_images
from ci_build.images.image_builder import ImageBuilder
from ci_build.images.image_pins import PINS, ImagePins, Pin, load_pins, save
from core.errors import RequestError
from core.report import Reporter

_PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
_pins_option = option(
    "--pins FILE",
    "Pins that replace docker/images.toml.",
    type=PATH,
    default=PINS,
    show_default=False,
)


def _new_builder(
    settings: Settings, values: Values, reporter: Reporter
) -> ImageBuilder:
    """Return the image builder of a command; no process is started.

    Raises:
        RequestError: the file of pins cannot be read.
    """
    return ImageBuilder(
        pins=load_pins(values["pins"]),
        cache=settings.cache_dir,
        host=host_runner(reporter),
        progress=reporter,
        connect=connector(reporter),
        engine_name=settings.text("container_engine"),
        base=settings.text("base_docker"),
        registry=settings.text("image_registry").rstrip("/"),
        dry_run=bool(values.get("dry_run")),
    )


@cloup.command("build")
@chosen_options(
    "base_docker",
    "image_registry",
    "container_engine",
    "cache_dir",
    "dry_run",
    "json",
    "verbose",
    "quiet",
)
@cloup.option_group(
    "Image",
    option("--push", "Push the image to --image-registry."),
    _pins_option,
)
@click.pass_obj
def build(state: State, /, **values: Any) -> None:  # noqa: ANN401 - values of options
    """Build the image in which wheels are compiled, if it is missing."""
    settings = state.settings(values)
    reporter = state.reporter(values)
    builder = _new_builder(settings, values, reporter)
    if values["push"] and not builder.registry:
        raise RequestError(
            "--push needs a registry.",
            hint="Give --image-registry, or set CI_BUILD_IMAGE_REGISTRY.",
        )
    if builder.dry_run:
        lines = [*builder.planned_steps()]
        if values["push"]:
            lines.append(f"push {builder.planned()} to {builder.registry}")
        show_plan(lines, as_json=values["json"])
        return
    with reporter.group("images build"):
        image = builder.obtain()
    pushed = ""
    if values["push"]:
        reference = f"{builder.registry}/{image.name}"
        pushed = engine_images.push(builder.engine, builder.host, image.id, reference)
        reporter.line(f"pushed {pushed}")
    reporter.line(f"{image.name}: {image.digest}")
    if values["json"]:
        receipt = {
            "name": image.name,
            "digest": image.digest,
            "id": image.id,
            "pushed": pushed,
        }
        print_json([receipt])


@cloup.command("update")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@_pins_option
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
    builder = _new_builder(state.settings(values), values, reporter)
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
