"""Commands that make images, under the names that people know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import cloup

from ci_build.cli import options
from ci_build.cli.commands.images import asked
from ci_build.cli.common import State, connector, host_runner, print_json

if TYPE_CHECKING:
    from ci_build.images.builder import ImageRequest
    from ci_build.images.recipe import ContainerImage, ContextFile, Recipe
    from ci_build.images.runtime import ImageBuilder
    from ci_build.rocm.request import Asked
    from core.process import HostRunner
    from core.report import Reporter

_F = TypeVar("_F", bound=Callable[..., Any])
_PLACE = ("base_docker", "image_registry", "container_engine", "cache_dir", "dry_run", "json", "verbose")
"""Options of builds that every one of these commands takes."""


def image_options(*more: str) -> Callable[[_F], _F]:
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
    made: Sequence[tuple[ContainerImage, tuple[str, ...], Mapping[str, str]]],
    request: ImageRequest,
    host: HostRunner,
    reporter: Reporter,
    after: dict[str, Any],
) -> None:
    """Give images their further names, push them if that was asked for, and say what they are.

    Args:
        made: each with the names that people know it by, and its labels.
    """
    from ci_build.images import builder
    from ci_build.images.recipe import add_tags
    from ci_build.images.runtime import image_contents

    told = []
    for image, names, labels in made:
        contents = image_contents(names[0] if names else image.name, labels)
        names = (*names, *([after["tag"]] if after["tag"] else []))
        add_tags(image, names, request.engine(), host)
        pushed = builder.push(request, image, names, host) if after["push"] else ""
        facts = {key: getattr(image, key) for key in image.__slots__}
        told.append({**facts, "tags": names, "pushed": pushed, **contents})
        how = "made" if image.built else "was there"
        reporter.line(f"{image.name} {how}: {image.digest}" + "".join(f", {name}" for name in names))
        if pushed:
            reporter.line(f"pushed {pushed}")
    if after["json"]:
        print_json(told)


def check_finish(after: dict[str, Any], request: ImageRequest, number: int) -> None:
    """Refuse before anything is made what `finish` could not do.

    Args:
        number: of the images that are asked for.

    Raises:
        RequestError: --tag is no name, or one name for several images; --push has no registry; --no-cache has no use.
    """
    from ci_build.images import builder, local
    from core.errors import RequestError

    if after["tag"]:
        local.check_name(after["tag"], "--tag")
        if number != 1:
            raise RequestError(f"--tag is one name, and these are {number} images.", hint="Choose one with --filter.")
    if after["push"]:
        builder.check_push(request)
    if request.builder_image and request.no_cache:
        raise RequestError("--no-cache has no use with --builder-image: nothing is made.", hint="Leave one out.")


def plan_only(
    after: dict[str, Any], names: Sequence[str], reporter: Reporter, request: ImageRequest, recipes: Sequence[Recipe]
) -> bool:
    """With `--dry-run` say which images would be there, and how they are made; True if that was all.

    Args:
        recipes: those of the images and of what they are put on, each after what it is put on.
    """
    from ci_build.images.recipe import describe

    if not after["dry_run"]:
        return False
    if after["json"]:
        print_json([{"name": name} for name in names])
    for name in names:
        reporter.line(f"would {'make' if recipes else 'look in a registry for'} {name}, if it is not there")
    for line in describe(recipes, no_cache=after["no_cache"]):
        reporter.line(f"  {line}")
    if after["tag"]:
        reporter.line(f"would call it {after['tag']} too")
    if after["push"]:
        reporter.line(f"would push what is made to {request.registry}")
    return True


FILTER = click.option("--filter", "-f", "filters", metavar="PART,…", default="", help="Only images with that in them.")
_LLVM = (
    click.option("--install-llvm", is_flag=True, help="Put a clang and an lld in; the image is then a dev image."),
    click.option("--llvm-version", metavar="N", type=int, help="Major of that clang; 18 if nobody says."),
)
ROCM = (
    *("rocm_version", "therock_path", "therock", "family", "therock_listing", "therock_sha256"),
    *("therock_index_url", "therock_version", "rocm_build_job", "rocm_build_num", "rocm_build_url"),
    *("rocm_lock", "locked"),
)
"""Options that say which ROCm goes into an image."""


def names_rocm(settings: options.Settings) -> bool:
    """Whether anybody says which ROCm goes into an image; a version alone does not.

    What only says where ROCms are, or how they are locked, the environment may say for a whole machine.
    """
    naming = ("therock_path", "therock", "therock_index_url", "rocm_build_job")
    said = (name for name in ROCM if name != "rocm_version" and settings.given(name))
    return any(name in naming or settings.get(name).origin.startswith("--") for name in said)


def with_options(*decorators: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """Several options as one decorator."""
    return lambda function: reduce(lambda made, option: option(made), decorators, function)


def _llvm(after: dict[str, Any]) -> str:
    """Major of the clang to put in, or nothing."""
    from ci_build.images.builder import LLVM
    from core.errors import RequestError

    if not after["install_llvm"]:
        if after["llvm_version"] is not None:
            raise RequestError("--llvm-version has no use without --install-llvm.", hint="Give both, or neither.")
        return ""
    return LLVM if after["llvm_version"] is None else str(after["llvm_version"])


def image_maker(state: State, after: dict[str, Any]) -> tuple[ImageBuilder, Reporter, tuple[str, ...]]:
    """What makes images, and the Pythons that go into them."""
    from ci_build.images.runtime import ImageBuilder

    request, host, reporter = asked(state, after, after["pins"], no_cache=after["no_cache"])
    pythons = options.chosen_pythons(state.settings(after), ("build",))
    return ImageBuilder(request=request, host=host, progress=reporter), reporter, pythons


def find_rocm(settings: options.Settings, reporter: Reporter) -> Asked:
    """Return the ROCm that the options name; no container engine is needed to refuse them.

    Raises:
        RequestError: the options name no ROCm, or two.
        InputError: there is no such ROCm.
    """
    from ci_build.rocm import selection
    from ci_build.rocm.request import check_name, check_source
    from core.errors import RequestError

    if problems := options.rocm_problems(settings):
        raise RequestError(" ".join(problems), hint="Name one ROCm.")
    settings = settings.with_defaults(options.build_job_defaults(settings))
    found = options.find_rocm(settings, reporter, host_runner(reporter), connector(reporter), "build")
    if found is None:
        raise RequestError(
            "Nobody says which ROCm goes into the image.",
            hint="Give --therock-path, --therock-index-url, --rocm-build-job, or --therock and --family.",
        )
    wish = str(settings.get("rocm_version").value or "")
    found = replace(found, version=wish or found.version, full=True)
    check_name(found, selection.gfx_names())
    check_source(found)
    return found


def rocm_tree(
    settings: options.Settings, after: dict[str, Any], reporter: Reporter, found: Asked
) -> tuple[str, ContextFile, dict[str, str]]:
    """Return ROCm's version, its tree, of which nothing is known in a dry run, and labels."""
    from ci_build.images.recipe import UNKNOWN, ContextFile
    from ci_build.images.runtime import tree_file
    from ci_build.rocm import selection
    from ci_build.rocm.request import check_name

    if after["dry_run"]:
        version = check_name(found, selection.gfx_names())
        selection.tell_plan(found, reporter)
        return version or "VERSION", ContextFile(digest=UNKNOWN, source=Path), {}
    storage = options.rocm_storage(settings, "build")
    rocm = selection.obtain_rocm(found, storage, reporter, host_runner(reporter), connector(reporter))
    labels = {"com.amdgpu.therock_path": rocm.lock.source, "jax-rocm-release.rocm.sha256": rocm.lock.sha256}
    digest = f"full:{rocm.lock.sha256}" if rocm.lock.sha256 else ""
    return rocm.facts.version, tree_file(rocm.root, digest), {key: text for key, text in labels.items() if text}


@cloup.command("build_manylinux_dockers")
@image_options("builder_image", *ROCM)
@click.pass_obj
def build_manylinux_dockers(state: State, /, **after: Any) -> None:  # noqa: ANN401 - values of options
    """Make the image that wheels are compiled in, if it is not there.

    Builds mount the ROCm into it. Where the options name one, it is made with that ROCm inside, for other uses.
    """
    from ci_build.images import local
    from ci_build.images.builder import BUILDER, builder_image, planned_image

    request, host, reporter = asked(state, after, after["pins"], no_cache=after["no_cache"])
    check_finish(after, request, 1)
    settings = state.settings(after)
    if names_rocm(settings):
        _builder_with_rocm(state, after, request, host, reporter)
        return
    version = settings.get("rocm_version").value
    if after["dry_run"]:
        name = planned_image(request, host, reporter)
        plan_only(after, [name], reporter, request, _builders(request, host, reporter))
        return
    with reporter.group("build_manylinux_dockers"):
        made = builder_image(request, host, reporter)
    names = (f"{BUILDER}-rocm-{local.sanitize(str(version)).lower()}",) if version else ()
    finish([(made, names, {})], request, host, reporter, after)


def _builders(request: ImageRequest, host: HostRunner, reporter: Reporter) -> list[Recipe]:
    """What the builder is made of; nothing where another image was named."""
    from ci_build.images.builder import builder_recipe

    return [] if request.builder_image else [builder_recipe(request, host, reporter)]


def _builder_with_rocm(
    state: State, after: dict[str, Any], request: ImageRequest, host: HostRunner, reporter: Reporter
) -> None:
    """The builder with a ROCm at /opt/rocm: jax-manylinux_2_28-therock-<version>, or -rocm-<version>-<job>-<number>."""
    from ci_build.images import runtime
    from ci_build.images.builder import BUILDER, builder_image, planned_image
    from ci_build.images.local import sanitize

    settings = state.settings(after)
    version, tree, labels = rocm_tree(settings, after, reporter, find_rocm(settings, reporter))
    words = ["therock", version]
    if job := settings.get("rocm_build_job").value:
        words = ["rocm", version, job, settings.get("rocm_build_num").value or ""]
    name = "-".join([BUILDER, *(sanitize(str(word)).lower() for word in words if word)])
    below = _builders(request, host, reporter)
    builder = runtime.ImageBuilder(request=request, host=host, progress=reporter)
    if below:
        base = builder.as_base(*below)
    elif after["dry_run"]:
        base = runtime.planned_base(planned_image(request, host, reporter))
    else:
        base = runtime.find_base(builder, builder_image(request, host, reporter).name)
    recipe = runtime.rocm_recipe(base, tree, version, labels, name=name)
    if plan_only(after, [name], reporter, request, [*below, recipe]):
        return
    with reporter.group("build_manylinux_dockers"):
        made = builder.build(recipe)
    finish([(made, (name,), recipe.labels)], request, host, reporter, after)


@cloup.command("build_base_dockers")
@with_options(FILTER, *_LLVM, image_options("python_versions", *ROCM))
@click.pass_obj
def build_base_dockers(state: State, /, **after: Any) -> None:  # noqa: ANN401 - values of options
    """Make images with Pythons and a ROCm: jax-base-<Ubuntu>.rocm<version>, or jax-dev-… with --install-llvm."""
    from ci_build.images import runtime

    builder, reporter, pythons = image_maker(state, after)
    llvm = _llvm(after)
    chosen = runtime.ubuntu_releases(builder.request, "base", after["filters"])
    check_finish(after, builder.request, len(chosen))
    settings = state.settings(after)
    rocm = find_rocm(settings, reporter)
    below = [runtime.ubuntu_recipe(builder, release, pythons, llvm) for release in chosen]
    version, tree, labels = rocm_tree(settings, after, reporter, rocm)
    recipes = [runtime.rocm_recipe(builder.as_base(recipe), tree, version, labels) for recipe in below]
    if plan_only(after, [recipe.name for recipe in recipes], reporter, builder.request, [*below, *recipes]):
        return
    with reporter.group("build_base_dockers"):
        made = [(builder.build(recipe), (recipe.name,), recipe.labels) for recipe in recipes]
    finish(made, builder.request, builder.host, reporter, after)


@cloup.command("build_base_therock_dockers")
@with_options(FILTER, *_LLVM, image_options("python_versions", "therock_index_url", "therock_version"))
@click.pass_obj
def build_base_therock_dockers(state: State, /, **after: Any) -> None:  # noqa: ANN401 - values of options
    """Make images with Pythons and the ROCm of a pip index: jax-base-<Ubuntu>.therock-<version>."""
    from ci_build.images import runtime

    index = _checked_index(state.settings(after))
    builder, reporter, pythons = image_maker(state, after)
    llvm = _llvm(after)
    chosen = runtime.ubuntu_releases(builder.request, "base-therock", after["filters"] or "therock")
    check_finish(after, builder.request, len(chosen))
    below = [runtime.ubuntu_recipe(builder, release, pythons, llvm) for release in chosen]
    _on_index(index, builder, reporter, after, below, "/usr/local/bin/python3")


@cloup.command("build_manylinux_therock_dockers")
@with_options(image_options("therock_index_url", "therock_version"))
@click.pass_obj
def build_manylinux_therock_dockers(state: State, /, **after: Any) -> None:  # noqa: ANN401 - values of options
    """Make the image that wheels are compiled in with the ROCm of a pip index: jax-manylinux_2_28-therock-<version>."""
    from ci_build.images.builder import builder_recipe
    from ci_build.images.runtime import ImageBuilder

    index = _checked_index(state.settings(after))
    request, host, reporter = asked(state, after, after["pins"], no_cache=after["no_cache"])
    check_finish(after, request, 1)
    builder = ImageBuilder(request=request, host=host, progress=reporter)
    below = builder_recipe(request, host, reporter)
    _on_index(index, builder, reporter, after, [below], "/opt/python/cp313-cp313/bin/python3")


def _checked_index(settings: options.Settings) -> tuple[str, str]:
    """Return the pip index that has ROCm's packages, and the version to take; empty takes the newest.

    Raises:
        RequestError: it is no index.
    """
    from ci_build.images.contents import check_index

    index = str(settings.get("therock_index_url", "rocm_packages").value)
    check_index(index)
    return index, str(settings.get("therock_version").value or "")


def _on_index(
    packages_of: tuple[str, str],
    builder: ImageBuilder,
    reporter: Reporter,
    after: dict[str, Any],
    below: Sequence[Recipe],
    python: str,
) -> None:
    """Put ROCm's packages of an index on images."""
    from ci_build.images import runtime
    from ci_build.images.contents import download_command, rocm_packages
    from ci_build.images.local import sanitize
    from ci_build.images.recipe import UNKNOWN, ContextFile
    from core.process import render

    index, version = packages_of
    labels = {"com.amdgpu.therock_index_url": index}
    word = sanitize(version or "latest").lower()
    names = [f"{recipe.name}{runtime.separator(recipe.name)}therock-{word}" for recipe in below]
    files = dict.fromkeys(("*.whl", "requirements.txt"), ContextFile(digest=UNKNOWN, source=Path))
    planned = [
        runtime.packages_recipe(builder.as_base(recipe), python, files, version or "latest", labels) for recipe in below
    ]
    if plan_only(after, names, reporter, builder.request, [*below, *planned]):
        for recipe in below:
            asking = render(download_command(python, index, version))
            reporter.line(f"would ask for these wheels in a container of {recipe.tag}: {asking}")
        return
    made = []
    with reporter.group("ROCm of a pip index"):
        for recipe, name in zip(below, names, strict=True):
            image = builder.build(recipe)
            packages = rocm_packages(builder, image.id, python, index, version)
            recipe = runtime.packages_recipe(builder.as_base(recipe), python, packages.files, packages.version, labels)
            made.append((builder.build(recipe), tuple(dict.fromkeys((name, recipe.name))), recipe.labels))
    finish(made, builder.request, builder.host, reporter, after)
