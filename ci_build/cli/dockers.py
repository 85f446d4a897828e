"""Commands that make images, under the names that people know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ci_build import options
from ci_build.cli.common import State, print_json
from ci_build.cli.images import asked

if TYPE_CHECKING:
    from ci_build.images.builder import ImageRequest
    from ci_build.images.recipe import BuilderImage
    from ci_build.report import Reporter
    from ci_build.runner import HostRunner

_F = TypeVar("_F", bound=Callable[..., Any])
_PLACE = ("base_docker", "image_registry", "container_engine", "cache_dir", "dry_run", "json", "verbose")
"""Options of builds that every one of these commands takes."""


def _image_options(*more: str) -> Callable[[_F], _F]:
    """Options of one of these commands: those of builds that it takes, and its own."""
    own = (
        click.option("--tag", "-t", metavar="NAME[:TAG]", help="A further name for the image."),
        click.option("--no-cache", is_flag=True, help="Make it anew, and every layer of it."),
        click.option("--push", is_flag=True, help="Give it to --image-registry."),
        click.option("--pins", metavar="FILE", type=click.Path(path_type=Path), help="Another images.toml."),
        options.chosen_options(*more, *_PLACE),
    )
    return lambda function: reduce(lambda made, option: option(made), own, function)


def finish(
    made: Sequence[tuple[BuilderImage, tuple[str, ...]]],
    request: ImageRequest,
    host: HostRunner,
    reporter: Reporter,
    after: dict[str, Any],
) -> None:
    """Give images their further names, push them if that was asked for, and say what they are.

    Args:
        made: each with the names that people know it by.
    """
    from ci_build.errors import RequestError
    from ci_build.images import builder, local
    from ci_build.images.recipe import also_known_as

    if after["tag"] and len(made) != 1:
        raise RequestError(f"--tag is one name, and these are {len(made)} images.", hint="Choose one with --filter.")
    told = []
    for image, names in made:
        names = (*names, *([local.check_name(after["tag"], "--tag")] if after["tag"] else []))
        also_known_as(image, names, request.engine(), host)
        pushed = builder.push(request, image, host) if after["push"] else ""
        told.append({**{key: getattr(image, key) for key in image.__slots__}, "tags": names, "pushed": pushed})
        how = "made" if image.built else "was there"
        reporter.line(f"{image.name} {how}: {image.digest}" + "".join(f", {name}" for name in names))
        if pushed:
            reporter.line(f"pushed {pushed}")
    if after["json"]:
        print_json(told)


def plan_only(after: dict[str, Any], names: Sequence[str], reporter: Reporter) -> bool:
    """With `--dry-run` say which images would be there; True if that was all."""
    if not after["dry_run"]:
        return False
    if after["json"]:
        print_json([{"name": name} for name in names])
    for name in names:
        reporter.line(f"would make {name}, if it is not there")
    return True


@click.command("build_manylinux_dockers")
@_image_options("builder_image", "rocm_version")
@click.pass_obj
def build_manylinux_dockers(state: State, /, **after: Any) -> None:  # noqa: ANN401 - values of options
    """Make the image that wheels are compiled in, if it is not there; ROCm is mounted into it and not part of it."""
    from ci_build.images import local
    from ci_build.images.builder import BUILDER, builder_image, planned_image

    request, host, reporter = asked(state, after, after["pins"], no_cache=after["no_cache"])
    version = state.settings(after).get("rocm_version").value
    if plan_only(after, [planned_image(request, host, reporter)] if after["dry_run"] else (), reporter):
        return
    with reporter.group("build_manylinux_dockers"):
        made = builder_image(request, host, reporter)
    names = (f"{BUILDER}-rocm-{local.sanitised(str(version)).lower()}",) if version else ()
    finish([(made, names)], request, host, reporter, after)
