"""Images with the wheels of a set, and trying them out: on any machine, with whatever GPUs it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup

from ci_build.cli import options
from ci_build.cli.commands.image_commands import (
    FILTER,
    ROCM,
    check_finish,
    find_rocm,
    finish,
    image_maker,
    image_options,
    names_rocm,
    plan_only,
    rocm_tree,
    with_options,
)
from ci_build.cli.commands.images import asked
from ci_build.cli.common import State, echo_error
from ci_build.cli.options import container_size

if TYPE_CHECKING:
    from ci_build.containers.container import ContainerSpec
    from ci_build.containers.engine import Engine
    from ci_build.images.recipe import Recipe
    from ci_build.images.runtime import BaseImage, ImageBuilder
    from core.report import Reporter

_SHM = "16g"
_CONTAINER = ("container_network", "container_memory", "container_shm_size")
_TRIED_WITH = ("test_cmd", "env_file", "no_gpu", "debugger", *_CONTAINER)
set_image_options = with_options(
    click.argument("wheels", metavar="[SET]", default="dist", type=click.Path(path_type=Path)),
    FILTER,
    image_options("python_versions", *ROCM),
)
"""For commands that make images of a set."""


@cloup.command("build_dockers")
@set_image_options
@click.pass_obj
def build_dockers(state: State, /, **after: Any) -> None:  # noqa: ANN401 - values of options
    """Make images with the wheels of a set, by their hashes: jax-<Ubuntu>.rocm<version>.

    Each is put on jax-base-<Ubuntu>.rocm<version>, which is made if the options name its ROCm.
    """
    make_set_images(state, after)


def make_set_images(state: State, after: dict[str, Any]) -> dict[str, Mapping[str, str]]:
    """What `build_dockers` does; returns the names of the images with their labels, those of a dry run too."""
    from ci_build.images import runtime
    from ci_build.images.contents import check_pythons, read_checked_set, set_contents

    settings, wheels = state.settings(after), after["wheels"]
    builder, reporter, pythons = image_maker(state, after)
    wheel_set = read_checked_set(wheels)
    if not settings.given("python_versions"):
        pythons = tuple(wheel_set.python_versions)
    _refuse_idle(settings, wheel_set.rocm_version)
    check_pythons(wheels, wheel_set, pythons)
    word = runtime.rocm_tag(wheel_set.rocm_version)
    names = {
        release: f"jax-{release}.{word}"
        for release in runtime.ubuntu_releases(builder.request, "jax", after["filters"])
    }
    check_finish(after, builder.request, len(names))
    look_only = after["dry_run"]
    below, planned = _bases(
        state, after, builder, reporter, {release: f"jax-base-{release}.{word}" for release in names}
    )
    with reporter.group("build_dockers"):
        for found in below.values() if not look_only else ():
            runtime.check_base(found, wheel_set.rocm_version, pythons)
        contents = set_contents(builder, wheels, wheel_set, options.cache_dir(settings), pythons, look_only=look_only)
        if "com.amdgpu.jax_commit" not in contents.labels:
            reporter.warning("The wheels do not say which commits they were made of, so the image does not either.")
        recipes = [
            runtime.wheels_recipe(below[release], name, contents.files, pythons, contents.labels)
            for release, name in names.items()
        ]
        labels = {recipe.name: recipe.labels for recipe in recipes}
        if plan_only(after, tuple(labels), reporter, builder.request, [*planned, *recipes]):
            return labels
        made = [(builder.build(recipe), (recipe.name,), recipe.labels) for recipe in recipes]
    finish(made, builder.request, builder.host, reporter, after)
    return labels


def _refuse_idle(settings: options.Settings, rocm_version: str) -> None:
    """Refuse options that would have no effect on the images of a set.

    Raises:
        RequestError: there are such.
    """
    from core.errors import RequestError

    wish = str(settings.get("rocm_version").value or rocm_version)
    if wish != rocm_version:
        raise RequestError(
            f"The set is for ROCm {rocm_version}, and --rocm-version says {wish}.", hint="Name another set."
        )
    if settings.given("base_docker") and not names_rocm(settings):
        raise RequestError(
            "--base-docker has no use without --therock-path or --therock: the images are put on what is there.",
            hint="Name the ROCm too, or leave it out.",
        )


def _bases(
    state: State, after: dict[str, Any], builder: ImageBuilder, reporter: Reporter, names: dict[str, str]
) -> tuple[dict[str, BaseImage], list[Recipe]]:
    """What the images of a set are put on: made of the ROCm that the options name, or found by name.

    Returns:
        It, and what it is made of, by release.
    """
    from ci_build.images import runtime

    settings = state.settings(after)
    if not names_rocm(settings):
        find = runtime.planned_base if after["dry_run"] else partial(runtime.find_base, builder)
        return {release: find(name) for release, name in names.items()}, []
    pythons = options.chosen_pythons(settings, ("build",))
    version, tree, labels = rocm_tree(settings, after, reporter, find_rocm(settings, reporter))
    bases = [runtime.ubuntu_recipe(builder, release, pythons, "") for release in names]
    recipes = [runtime.rocm_recipe(builder.as_base(base), tree, version, labels) for base in bases]
    return dict(zip(names, map(builder.as_base, recipes), strict=True)), [*bases, *recipes]


_TRIAL = with_options(
    click.option("--test-cmd", metavar="COMMAND", default="", help="What to run, in bash; else the image's own test."),
    click.option(
        "--env-file", metavar="FILE", type=click.Path(path_type=Path), help="Variables, a KEY=VALUE each line."
    ),
    click.option("--no-gpu", is_flag=True, help="Run it without GPUs."),
    click.option("--debugger", is_flag=True, help="Let programs look into one another (SYS_PTRACE, no seccomp)."),
    options.chosen_options(*_CONTAINER),
)


@cloup.command("test")
@click.argument("image_name", metavar="IMAGE")
@_TRIAL
@options.chosen_options("image_registry", "container_engine", "dry_run", "verbose")
@click.pass_obj
def trial(state: State, /, **after: Any) -> None:  # noqa: ANN401 - values of options
    """Run a command in IMAGE with the GPUs of this machine and the current folder at /rocm-jax."""
    try_image(state, after["image_name"], after)


def try_image(state: State, image_name: str, after: dict[str, Any]) -> None:
    """What `test` does."""
    from ci_build.containers.container import ContainerRunner
    from ci_build.images import run_image as work

    request, host, reporter = asked(state, after, None)
    spec_for = _planned(state.settings(after), after)
    engine = request.engine()
    # A dry run pulls nothing.
    image = work.find_image(engine, host, image_name, "" if after["dry_run"] else request.registry)
    for line in work.commits(image.labels):
        reporter.line(line)
    spec = replace(spec_for(engine), image=image.id)
    if after["dry_run"]:
        _show(spec, image.labels, after)
        return
    runner = ContainerRunner(host, spec, say=reporter.line)
    for argv in work.commands(image.labels, after["test_cmd"], gpu=bool(spec.devices)):
        runner.run(argv, on_line=click.echo, on_error_line=echo_error)


def _planned(settings: options.Settings, after: dict[str, Any]) -> Callable[[Engine], ContainerSpec]:
    """Check how an image is tried, before an engine is looked for; returns what specifies it, but for the image.

    Raises:
        RequestError, InputError, MachineError: that cannot be, whichever the engine and the image.
    """
    from ci_build.images import run_image as work

    memory, shm_size = (container_size(settings, name) for name in ("container_memory", "container_shm_size"))
    network = str(settings.get("container_network", "build").value)
    env_file = work.check_env_file(after["env_file"])
    gpus = None if after["no_gpu"] else work.find_gpus()
    return lambda engine: replace(
        work.run_spec(engine, "", gpus, debugger=after["debugger"], env_file=env_file),
        network=network,
        memory=memory,
        shm_size=shm_size or _SHM,
    )


def _show(spec: ContainerSpec, labels: Mapping[str, str], after: dict[str, Any]) -> None:
    """Print the commands of a trial."""
    from ci_build.containers.container import container_argv
    from ci_build.images import run_image as work
    from core.process import render

    for argv in work.commands(labels, after["test_cmd"], gpu=bool(spec.devices)):
        click.echo(render(container_argv(spec, argv)))


@cloup.command("test_docker")
@click.option("--docker-build-only", is_flag=True, help="Make the images, and run nothing in them.")
@click.option("--jax-version", metavar="X.Y.Z|latest", default="latest", help="What the set's jax has to be.")
@set_image_options
@_TRIAL
@click.pass_obj
def test_docker(state: State, /, **after: Any) -> None:  # noqa: ANN401 - values of options
    """Make the images of a set, as `build_dockers` does, and run their test, as `test` does."""
    from ci_build.containers.engine import Engine
    from ci_build.images.contents import read_checked_set
    from core.errors import RequestError

    held = read_checked_set(after["wheels"]).jax_version
    if after["jax_version"] not in ("latest", held):
        raise RequestError(
            f"{after['wheels']} is for jax {held}, and --jax-version says {after['jax_version']}.",
            hint="Name another set, or leave it out.",
        )
    idle = [name for name in _TRIED_WITH if after[name]] if after["docker_build_only"] else []
    if idle or (after["json"] and not after["docker_build_only"]):
        words = ", ".join("--" + name.replace("_", "-") for name in idle or ["json"])
        what = "with" if idle else "without"
        raise RequestError(f"{words} has no use {what} --docker-build-only.", hint="Leave one of them out.")
    if after["docker_build_only"]:
        make_set_images(state, after)
        return
    # What keeps an image from being tried is told before one is made.
    spec_for = _planned(state.settings(after), after)
    for name, labels in make_set_images(state, after).items():
        if after["dry_run"]:
            # A dry run asks no engine which one it is.
            _show(replace(spec_for(Engine(program="docker")), image=name), labels, after)
        else:
            try_image(state, name, after)
