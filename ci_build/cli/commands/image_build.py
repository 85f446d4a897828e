"""`ci_build images build`.

The image in which wheels are compiled, base images, and images with a set's wheels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
import cloup

from ci_build.cli.commands.image_job import ImageJob
from ci_build.cli.common import State, connector
from ci_build.cli.options.environment import connection
from ci_build.cli.options.request_conversion import chosen_pythons
from ci_build.cli.options.rocm_options import (
    build_job_defaults,
    find_rocm,
    rocm_problems,
    rocm_storage,
)
from ci_build.cli.options.settings import Settings
from ci_build.cli.options.table import chosen_options
from ci_build.containers.container import container_argv
from ci_build.images import runtime
from ci_build.images.engine_images import sanitize
from ci_build.images.image_contents import (
    check_pythons,
    download_command,
    packages_container,
    read_checked_set,
    rocm_packages,
    set_contents,
)
from ci_build.images.image_recipe import UNKNOWN, BaseImage, ContextFile, Recipe, layer
from ci_build.images.manylinux_image import (
    BUILDER,
    LLVM,
    builder_image,
    builder_recipe,
    planned_base,
    planned_image,
)
from ci_build.rocm.rocm_request import RocmRequest, check_request, planned_steps
from core.errors import RequestError
from core.process import render

_F = TypeVar("_F", bound=Callable[..., Any])
_ROCM = (
    *(
        "rocm_version",
        "therock_path",
        "therock",
        "family",
        "therock_listing",
        "therock_sha256",
    ),
    *(
        "therock_index_url",
        "therock_version",
        "rocm_build_job",
        "rocm_build_num",
        "rocm_build_url",
    ),
    *("rocm_lock", "locked", "require_checksum"),
)
"""Options that select the ROCm of an image."""
_PACKAGES = ("therock_index_url", "therock_version")
_COMMON = (
    *("base_docker", "image_mirror", "image_registry", "container_engine"),
    *("cache_dir", "dry_run", "json", "verbose", "quiet"),
)
_FILTER = click.option(
    "--filter",
    "-f",
    "filters",
    metavar="PART,…",
    default="",
    help="Build only images whose name contains PART.",
)
_LLVM = (
    click.option(
        "--install-llvm",
        is_flag=True,
        help="Install clang and lld; the image is then a dev image.",
    ),
    click.option(
        "--llvm-version",
        metavar="N",
        type=int,
        help=f"Major version of clang and lld.  [default: {LLVM}]",
    ),
)
_PIP_PACKAGES = click.option(
    "--pip-packages",
    is_flag=True,
    help="Install ROCm's pip packages of --therock-index-url instead of a ROCm tree.",
)


def image_options(
    *more: str, own: Sequence[Callable[[Any], Any]] = ()
) -> Callable[[_F], _F]:
    """Return a decorator that adds image, command and selected build options."""
    decorators = (
        chosen_options(*more, *_COMMON),
        cloup.option_group(
            "Image",
            *own,
            click.option(
                "--tag",
                "-t",
                metavar="NAME[:TAG]",
                help="Additional name of the image.",
            ),
            click.option(
                "--no-cache",
                is_flag=True,
                help="Rebuild every layer without the cache.",
            ),
            click.option(
                "--push", is_flag=True, help="Push the image to --image-registry."
            ),
            click.option(
                "--pins",
                metavar="FILE",
                type=click.Path(path_type=Path),
                help="Pins that replace docker/images.toml.",
            ),
        ),
    )
    return lambda function: reduce(
        lambda decorated, decorator: decorator(decorated), decorators, function
    )


@cloup.group()
def build() -> None:
    """Build images."""


@build.command()
@image_options("builder_image", *_ROCM, own=(_PIP_PACKAGES,))
@click.pass_obj
def manylinux(state: State, /, **values: Any) -> None:  # noqa: ANN401 - values of options
    """Build the image in which wheels are compiled.

    Wheel builds mount a ROCm into this image. If the options name a ROCm, the image
    contains it, for other uses.
    """
    packages = _checked_index(state, values) if values["pip_packages"] else None
    job = ImageJob(state, values, count=1)
    builder = job.builder
    rocm = rocm_of_image(job) if not packages and names_rocm(job.settings) else None
    # A builder image that the user names has no recipe.
    recipes = (
        [] if builder.builder_image and not packages else [builder_recipe(builder)]
    )
    if packages:
        _build_with_packages(
            job, packages, recipes, "/opt/python/cp313-cp313/bin/python3"
        )
    elif rocm is not None:
        _manylinux_with_rocm(job, rocm, recipes)
    else:
        version = job.settings.get("rocm_version").value
        names = (f"{BUILDER}-rocm-{sanitize(str(version)).lower()}",) if version else ()
        if job.dry_run:
            job.show_plan({planned_image(builder): names}, recipes)
            return
        with job.reporter.group("images build manylinux"):
            image = builder_image(builder)
        job.finish([(image, names, {})])


@build.command()
@image_options("python_versions", *_ROCM, own=(_FILTER, *_LLVM, _PIP_PACKAGES))
@click.pass_obj
def base(state: State, /, **values: Any) -> None:  # noqa: ANN401 - values of options
    """Build images with Pythons and a ROCm.

    The images are named jax-base-<Ubuntu>.rocm<version>, or jax-dev-… with
    --install-llvm.
    """
    packages = _checked_index(state, values) if values["pip_packages"] else None
    job = ImageJob(state, values)
    pythons = chosen_pythons(job.settings)
    llvm = ""
    if values["install_llvm"]:
        llvm = LLVM if values["llvm_version"] is None else str(values["llvm_version"])
    elif values["llvm_version"] is not None:
        raise RequestError(
            "--llvm-version has no effect without --install-llvm.",
            hint="Give both, or neither.",
        )
    releases = runtime.ubuntu_releases(
        job.builder, "base-therock" if packages else "base", values["filters"]
    )
    job.check(len(releases))
    rocm = None if packages else rocm_of_image(job)
    recipes = [
        runtime.ubuntu_recipe(job.builder, release, pythons, llvm)
        for release in releases
    ]
    if packages:
        _build_with_packages(job, packages, recipes, "/usr/local/bin/python3")
    elif rocm is not None:
        version, tree, labels = _obtain_rocm(job, rocm)
        with_rocm = [
            runtime.rocm_recipe(job.builder.as_base(recipe), tree, version, labels)
            for recipe in recipes
        ]
        job.build(with_rocm, recipes, title="images build base")


set_options = (
    click.argument(
        "wheels", metavar="[SET]", default="dist", type=click.Path(path_type=Path)
    ),
    image_options("python_versions", *_ROCM, own=(_FILTER,)),
)
"""Argument and options of commands that build the images of the set in directory SET."""


@build.command("runtime")
@set_options[0]
@set_options[1]
@click.pass_obj
def runtime_images(state: State, /, **values: Any) -> None:  # noqa: ANN401 - values of options
    """Build images with the wheels of SET.

    The images are named jax-<Ubuntu>.rocm<version>. Their base images,
    jax-base-<Ubuntu>.rocm<version>, are built if the options name a ROCm. The hashes of
    the wheels are verified during installation.
    """
    build_set_images(state, values)


_Rocm = tuple[str, ContextFile, Mapping[str, str]]
"""Version, tree and labels of the ROCm in an image.

In a dry run, the content of the tree is unknown.
"""


def names_rocm(settings: Settings) -> bool:
    """Return whether the options name the ROCm of an image; a version alone is not enough.

    Options that only refine the choice, such as --rocm-lock, count only on the command
    line, since the environment may set them for a whole machine.
    """
    naming = ("therock_path", "therock", "therock_index_url", "rocm_build_job")
    given = (name for name in _ROCM if name != "rocm_version" and settings.given(name))
    return any(name in naming or settings.typed(name) for name in given)


def rocm_of_image(job: ImageJob) -> RocmRequest:
    """Return the ROCm that the options name, without using a container engine.

    Raises:
        RequestError: the options name no ROCm or several.
        InputError: the named ROCm does not exist.
    """
    if problems := rocm_problems(job.settings):
        raise RequestError(" ".join(problems), hint="Name one ROCm.")
    settings = job.settings.with_defaults(build_job_defaults(job.settings))
    request = find_rocm(
        settings, job.reporter, job.builder.host, connector(job.reporter)
    )
    if request is None:
        raise RequestError(
            "No ROCm was given for the image.",
            hint=(
                "Give --therock-path, --therock-index-url, --rocm-build-job, or"
                " --therock and --family."
            ),
        )
    version = settings.text("rocm_version")
    request = replace(request, version=version or request.version, full=True)
    check_request(request)
    return request


def _obtain_rocm(job: ImageJob, found: RocmRequest) -> _Rocm:
    if job.dry_run:
        version = found.full_version
        job.show(*planned_steps(found))
        return version or "VERSION", ContextFile(digest=UNKNOWN, source=Path), {}
    # Start-up time: the store of ROCm trees takes 0.1 s of CPU.
    from ci_build.rocm import source

    storage = rocm_storage(job.settings)
    rocm = source.obtain_rocm(
        found, storage, job.reporter, job.builder.host, connector(job.reporter)
    )
    labels = {
        "com.amdgpu.therock_path": rocm.lock.source,
        "jax-rocm-release.rocm.sha256": rocm.lock.sha256,
    }
    digest = f"full:{rocm.lock.sha256}" if rocm.lock.sha256 else ""
    return (
        rocm.facts.version,
        runtime.tree_file(rocm.root, digest),
        {key: text for key, text in labels.items() if text},
    )


def _manylinux_with_rocm(
    job: ImageJob, rocm: RocmRequest, recipes: Sequence[Recipe]
) -> None:
    """Build the builder image with a ROCm at /opt/rocm.

    The name ends with -therock-<version>, or with -rocm-<version>-<job>-<number> for
    the ROCm of a build job.
    """
    version, tree, labels = _obtain_rocm(job, rocm)
    parts = ["therock", version]
    if build_job := job.settings.get("rocm_build_job").value:
        parts = [
            "rocm",
            version,
            build_job,
            job.settings.get("rocm_build_num").value or "",
        ]
    name = "-".join([BUILDER, *(sanitize(str(part)).lower() for part in parts if part)])
    if recipes:
        below = job.builder.as_base(*recipes)
    elif job.dry_run:
        below = planned_base(job.builder)
    else:
        below = runtime.find_base(job.builder, builder_image(job.builder).name)
    recipe = runtime.rocm_recipe(below, tree, version, labels, name=name)
    job.build([recipe], recipes, title="images build manylinux")


def _checked_index(state: State, values: Mapping[str, Any]) -> tuple[str, str]:
    """Return the pip index with ROCm's packages, and the requested version.

    Empty for the newest version.

    Raises:
        RequestError: the URL of the index is invalid, or an option has no effect on pip
            packages.
    """
    settings = state.settings(values, ("rocm_packages", "build"))
    unused = [
        name
        for name in (*_ROCM, "builder_image")
        if name not in _PACKAGES and settings.given(name)
    ]
    for setting in map(settings.get, unused):
        if setting.origin.startswith("--"):
            raise RequestError(
                f"{setting.origin} has no effect with --pip-packages.",
                hint="Omit one of them.",
            )
    index = settings.text("therock_index_url")
    parts = urlsplit(index)
    # Credentials in the URL would appear in process lists and image labels.
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise RequestError(
            "--therock-index-url"
            f" {parts._replace(netloc=parts.hostname or '').geturl()!r} is invalid.",
            hint="Give an http or https URL without user and password.",
        )
    return index, settings.text("therock_version")


def _build_with_packages(
    job: ImageJob, packages: tuple[str, str], recipes: Sequence[Recipe], python: str
) -> None:
    """Build images with ROCm's pip packages from an index, on top of images with a Python."""
    index, version = packages
    labels = {"com.amdgpu.therock_index_url": index}
    files = dict.fromkeys(
        ("*.whl", "requirements.txt"), ContextFile(digest=UNKNOWN, source=Path)
    )
    bases = [job.builder.as_base(recipe) for recipe in recipes]
    planned = [
        runtime.packages_recipe(base, python, files, version or "latest", labels)
        for base in bases
    ]
    if job.dry_run:
        spec = packages_container(
            job.builder,
            UNKNOWN,
            job.builder.folder / "rocm-packages" / UNKNOWN,
            connection(),
        )
        for recipe in recipes:
            job.show(
                f"download ROCm's packages in a container of {recipe.tag}, after its"
                " build below"
            )
            argv = container_argv(
                replace(spec, image=recipe.tag),
                download_command(python, index, version),
            )
            job.show(f"  $ {render(argv)}")
        job.show_plan(
            {recipe.tag: (recipe.name,) for recipe in planned}, [*recipes, *planned]
        )
        return
    built = []
    with job.reporter.group("ROCm's pip packages"):
        for recipe, base, plan in zip(recipes, bases, planned, strict=True):
            image = job.builder.build(recipe)
            resolved, wheels = rocm_packages(
                job.builder, image.id, python, index, version, connection()
            )
            top = runtime.packages_recipe(base, python, wheels, resolved, labels)
            built.append(
                (
                    job.builder.build(top),
                    tuple(dict.fromkeys((plan.name, top.name))),
                    top.labels,
                )
            )
    job.finish(built)


def build_set_images(
    state: State, values: Mapping[str, Any]
) -> Mapping[str, Mapping[str, str]]:
    """Build the images of a set, or print the plan in a dry run.

    Return the names and labels of the images.
    """
    directory = values["wheels"]
    job = ImageJob(state, values)
    pythons = chosen_pythons(job.settings)
    wheel_set = read_checked_set(directory)
    if not job.settings.given("python_versions"):
        pythons = tuple(wheel_set.python_versions)
    _refuse_unused(job.settings, wheel_set.rocm_version)
    check_pythons(directory, wheel_set, pythons)
    suffix = runtime.rocm_tag(wheel_set.rocm_version)
    releases = runtime.ubuntu_releases(job.builder, "jax", values["filters"])
    job.check(len(releases), finds_bases=not names_rocm(job.settings))
    bases, planned = _bases_of_set(
        job, {name: f"jax-base-{name}.{suffix}" for name in releases}
    )
    with job.reporter.group(f"contents of {directory}"):
        for image in bases.values() if not job.dry_run else ():
            runtime.check_base(image, wheel_set.rocm_version, pythons)
        files, labels = set_contents(
            job.builder, directory, wheel_set, pythons, look_only=job.dry_run
        )
        if "com.amdgpu.jax_commit" not in labels:
            job.reporter.warning(
                "The wheels do not record their source commits, so the image has no"
                " commit labels."
            )
        arguments = {"PYTHONS": " ".join(pythons)}
        recipes = [
            layer(
                bases[name],
                f"jax-{name}.{suffix}",
                "jax.Dockerfile",
                files=files,
                arguments=arguments,
                labels=labels,
            )
            for name in releases
        ]
    job.build(recipes, planned, title="images build runtime")
    return {recipe.name: recipe.labels for recipe in recipes}


def _refuse_unused(settings: Settings, rocm_version: str) -> None:
    """Raise RequestError for options that have no effect on the images of a set."""
    version = str(settings.get("rocm_version").value or rocm_version)
    if version != rocm_version:
        raise RequestError(
            f"The set is for ROCm {rocm_version}, but --rocm-version is {version}.",
            hint="Name another set or version.",
        )
    if settings.given("base_docker") and not names_rocm(settings):
        raise RequestError(
            "--base-docker has no effect without --therock-path or --therock: existing"
            " base images are used.",
            hint="Name the ROCm too, or omit --base-docker.",
        )


def _bases_of_set(
    job: ImageJob, names: Mapping[str, str]
) -> tuple[Mapping[str, BaseImage], list[Recipe]]:
    """Return a set's base images by Ubuntu release, with recipes if a ROCm is named."""
    if not names_rocm(job.settings):
        find = partial(
            runtime.planned_base if job.dry_run else runtime.find_base, job.builder
        )
        return {release: find(name) for release, name in names.items()}, []
    pythons = chosen_pythons(job.settings)
    version, tree, labels = _obtain_rocm(job, rocm_of_image(job))
    recipes = [
        runtime.ubuntu_recipe(job.builder, release, pythons, "") for release in names
    ]
    with_rocm = [
        runtime.rocm_recipe(job.builder.as_base(recipe), tree, version, labels)
        for recipe in recipes
    ]
    return dict(zip(names, map(job.builder.as_base, with_rocm), strict=True)), [
        *recipes,
        *with_rocm,
    ]
