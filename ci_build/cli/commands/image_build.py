"""`ci_build images build`: the image in which wheels are compiled, and images of a set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import cloup

from ci_build.cli.common import State, connector, host_runner, print_json, show_plan
from ci_build.cli.options.rocm_options import (
    find_rocm,
    rocm_problems,
    rocm_storage,
)
from ci_build.cli.options.settings import Settings, split_list
from ci_build.cli.options.shared_options import PATH, Values, option
from ci_build.cli.options.table import chosen_options
from ci_build.images import engine_images, manylinux_image, runtime_image
from ci_build.images.engine_images import ContainerImage
from ci_build.images.image_builder import UNKNOWN, ImageBuilder
from ci_build.images.image_pins import PINS, load_pins
from ci_build.rocm.rocm_request import (
    PipIndex,
    RocmRequest,
    check_request,
    planned_steps,
)
from core.errors import RequestError
from core.model import GfxTarget, WheelSet
from core.process import render
from core.report import Reporter
from core.wheelset import read_unchanged

_OF_SET = (
    "python_versions",
    "rocm_version",
    "therock_path",
    "therock",
    "family",
    "therock_listing",
    "therock_sha256",
    "therock_index_url",
    "rocm_build_job",
    "rocm_build_num",
    "rocm_lock",
    "locked",
    "require_checksum",
)
"""Options that have an effect with a set only."""
_SYSTEMS = ("ubu22", "ubu24")
"""Names of pinned base images of a set's image; the last one is the default."""
_COMMON = (
    "base_docker",
    "image_registry",
    "container_engine",
    "cache_dir",
    "dry_run",
    "json",
    "verbose",
    "quiet",
)
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
@click.argument("wheels", metavar="[SET]", required=False, type=PATH)
@chosen_options(*_OF_SET, *_COMMON)
@cloup.option_group(
    "Image",
    option("--tag -t NAME[:TAG]", "Additional name of the image."),
    option("--push", "Push the image to --image-registry."),
    pins_option,
)
@click.pass_obj
def build(state: State, /, **values: Any) -> None:  # noqa: ANN401 - values of options
    """Build the image in which wheels are compiled, or with SET an image of its wheels.

    The image of a set has Ubuntu, Pythons, the ROCm that the options name, and the
    wheels, whose hashes are verified. It is named jax-<Ubuntu>.rocm<version>.
    --base-docker may be ubu22 or ubu24, the default; without a ROCm, it must name an
    image that has one at /opt/rocm.
    """
    settings = state.settings(values)
    reporter = state.reporter(values)
    builder = new_builder(settings, values, reporter)
    if values["push"] and not builder.registry:
        raise RequestError(
            "--push needs a registry.",
            hint="Give --image-registry, or set CI_BUILD_IMAGE_REGISTRY.",
        )
    if values["wheels"] is not None:
        _build_runtime(settings, values, reporter, builder)
        return
    unused = list(filter(settings.typed, _OF_SET))
    if unused:
        objections = settings.objections(unused, "has no effect without SET.")
        raise RequestError(" ".join(objections), hint="Name a set, or omit it.")
    names = [values["tag"]] if values["tag"] else []
    if builder.dry_run:
        image = manylinux_image.planned_image(builder)
        lines = [*manylinux_image.planned_steps(builder)]
        lines += _publication(builder, image, names, push=values["push"])
        show_plan(lines, as_json=values["json"])
        return
    with reporter.group("images build"):
        built = manylinux_image.builder_image(builder)
    _finish(builder, reporter, built, [built.name, *names], values, {})


def _build_runtime(
    settings: Settings,
    values: Values,
    reporter: Reporter,
    builder: ImageBuilder,
) -> None:
    folder = values["wheels"]
    wheel_set = read_unchanged(folder)
    pythons = wheel_set.python_versions
    if settings.given("python_versions"):
        pythons = split_list(settings.text("python_versions"))
    system = _SYSTEMS[-1]
    if builder.base in _SYSTEMS:
        system = builder.base
        builder = replace(builder, base="")
    source = find_image_rocm(settings, reporter, builder, wheel_set)
    lines = list[str]()
    rocm = None
    if source is not None and builder.dry_run:
        lines += planned_steps(source)
        rocm = builder.cache / "rocm" / "trees" / UNKNOWN
    elif source is not None:
        rocm = _obtain_rocm(settings, reporter, builder, source, wheel_set)
    image = runtime_image.runtime_image(
        builder, folder, wheel_set, system, pythons, rocm
    )
    names = [image.name, *([values["tag"]] if values["tag"] else [])]
    if builder.dry_run:
        lines += builder.describe(image, image.name)
        lines += _publication(builder, image.name, names, push=values["push"])
        show_plan(lines, as_json=values["json"])
        return
    with reporter.group("images build"):
        built = builder.build(image, image.name)
    contents = {
        "jax": wheel_set.jax_version,
        "rocm": wheel_set.rocm_version,
        "python": ", ".join(pythons),
        "system": system,
    }
    _finish(builder, reporter, built, names, values, contents)


def find_image_rocm(
    settings: Settings, reporter: Reporter, builder: ImageBuilder, wheel_set: WheelSet
) -> RocmRequest | None:
    """Return the ROCm that the options name; None if the base image of the user has one.

    Of pip packages, it has the device code for the targets of the set.

    Raises:
        RequestError: the options name several ROCms, or neither a ROCm nor a base.
        InputError: the named ROCm does not exist.
    """
    if problems := rocm_problems(settings):
        raise RequestError(" ".join(problems), hint="Name one ROCm.")
    source = find_rocm(settings, reporter, builder.host, connector(reporter))
    if source is None:
        if builder.base:
            return None
        raise RequestError(
            "No ROCm was given for the image.",
            hint=(
                "Give --therock-path, --therock-index-url, --rocm-build-job, or"
                " --therock and --family; or an image with ROCm as --base-docker."
            ),
        )
    version = settings.text("rocm_version") or source.version
    source = replace(source, version=version, full=True)
    if isinstance(source.source, PipIndex):
        targets = tuple(map(GfxTarget.parse, wheel_set.targets))
        source = replace(source, targets=targets)
    check_request(source)
    return source


def _obtain_rocm(
    settings: Settings,
    reporter: Reporter,
    builder: ImageBuilder,
    source: RocmRequest,
    wheel_set: WheelSet,
) -> Path:
    # Start-up time: the store of ROCm trees takes 0.1 s of CPU.
    from ci_build.rocm.source import obtain_rocm

    storage = rocm_storage(settings)
    rocm = obtain_rocm(source, storage, reporter, builder.host, connector(reporter))
    if rocm.facts.version != wheel_set.rocm_version:
        raise RequestError(
            f"The ROCm has version {rocm.facts.version}, but the set is for"
            f" {wheel_set.rocm_version}.",
            hint="Give the ROCm of the set.",
        )
    return rocm.root


def _publication(
    builder: ImageBuilder, image: str, names: Sequence[str], *, push: bool
) -> list[str]:
    """Return the lines of a dry run about the names of an image, and their pushes."""
    engine = builder.engine
    lines = [
        f"  $ {render((engine.program, 'tag', image, name))}"
        for name in names
        if name != image
    ]
    if push:
        lines += [f"push {name} to {builder.registry}" for name in names or [image]]
    return lines


def _finish(
    builder: ImageBuilder,
    reporter: Reporter,
    image: ContainerImage,
    names: Sequence[str],
    values: Values,
    contents: Mapping[str, str],
) -> None:
    """Tag, push and report an image."""
    engine = builder.engine
    pushed = []
    for name in names:
        if name != image.name:
            builder.host.run([engine.program, "tag", image.id, name])
        if values["push"]:
            tagged = name if ":" in name.rpartition("/")[2] else f"{name}:latest"
            reference = f"{builder.registry}/{tagged}"
            pushed.append(engine_images.push(engine, builder.host, image.id, reference))
            reporter.line(f"pushed {pushed[-1]}")
    reporter.line(f"{', '.join(names)}: {image.digest}")
    if values["json"]:
        receipt = {
            "name": image.name,
            "digest": image.digest,
            "id": image.id,
            "tags": names,
            "pushed": pushed[0] if pushed else "",
            **contents,
        }
        print_json([receipt])
