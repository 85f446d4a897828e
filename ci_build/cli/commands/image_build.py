"""`ci_build images build`: the image in which wheels are compiled."""

from __future__ import annotations

from typing import Any

import click
import cloup

from ci_build.cli.common import State, connector, host_runner, print_json, show_plan
from ci_build.cli.options.settings import Settings
from ci_build.cli.options.shared_options import PATH, Values, option
from ci_build.cli.options.table import chosen_options
from ci_build.images import engine_images
from ci_build.images.image_builder import ImageBuilder
from ci_build.images.image_pins import PINS, load_pins
from core.errors import RequestError
from core.report import Reporter

pins_option = option(
    "--pins FILE",
    "Pins that replace docker/images.toml.",
    type=PATH,
    default=PINS,
    show_default=False,
)


def new_builder(settings: Settings, values: Values, reporter: Reporter) -> ImageBuilder:
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
    pins_option,
)
@click.pass_obj
def build(state: State, /, **values: Any) -> None:  # noqa: ANN401 - values of options
    """Build the image in which wheels are compiled, if it is missing."""
    settings = state.settings(values)
    reporter = state.reporter(values)
    builder = new_builder(settings, values, reporter)
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
