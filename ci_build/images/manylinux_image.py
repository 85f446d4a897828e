"""Image in which wheels are compiled.

A named image, one from a registry, or one built from docker/images.toml.
"""

from __future__ import annotations

from collections.abc import Iterator

from ci_build.images.engine_images import ContainerImage
from ci_build.images.image_builder import ImageBuilder
from ci_build.images.image_pins import DOCKER, Pin
from ci_build.images.image_recipe import (
    CONTENT_LABEL,
    BaseImage,
    Recipe,
    describe_bases,
    describe_builds,
    layer,
    look_up_lines,
    stand_in,
    text_file,
)
from ci_build.images.mirrors import full_name, mirrored
from core.errors import InputError

SEARCH = "search"
"""Value of `--builder-image` that finds an image without building one."""
MANYLINUX = "manylinux_2_28"
BUILDER = f"jax-{MANYLINUX}"
LLVM = "18"
"""Major version of the clang that compiles wheels; images.toml gives the reason."""


def builder_image(builder: ImageBuilder) -> ContainerImage:
    """Return the image to compile in.

    A named image is pulled if it is missing. With `search`, the image of the current
    recipe is used from the engine or the registry. Without a name, the image of the
    current recipe is built if it is missing.

    Raises:
        InputError: the image does not exist, or was not built from the current recipe.
        RequestError: images.toml lacks a pin.
    """
    if (name := builder.builder_image) and name != SEARCH:
        return builder.obtain(name)
    *_, recipe = builder_recipes(builder)
    if name != SEARCH:
        return builder.build(recipe)
    if image := builder.find_built(recipe):
        return image
    if not builder.registry:
        raise InputError(
            f"Image {recipe.tag} is not on this machine, and no registry is"
            " configured.",
            hint="Give --image-registry, or omit --builder-image to build it.",
        )
    pulled = builder.pull_built(recipe.tag)
    if pulled.labels.get(CONTENT_LABEL) != recipe.content:
        raise InputError(
            f"{pulled.name} was not built from the current {builder.pins.path} and"
            " Dockerfile.",
            hint=(
                "Push the current image with `ci_build images build manylinux --push`."
            ),
        )
    return pulled


def check_obtainable(builder: ImageBuilder) -> None:
    """Check that a builder image can be obtained, and pull missing images.

    Raises:
        NoContainerEngineError: no engine answers.
        InputError: the named image or the base image is neither on this machine nor in
            its registry.
    """
    _ = builder.engine
    if builder.builder_image:
        builder_image(builder)
        return
    recipes = builder_recipes(builder)
    if not any(builder.find_built(recipe) for recipe in recipes):
        recipes[0].base.image()


def planned_image(builder: ImageBuilder) -> str:
    """Return the name of the image that a build will run in; in a dry run, no engine is asked."""
    name = builder.builder_image
    return name if name and name != SEARCH else builder_recipes(builder)[-1].tag


def planned_base(builder: ImageBuilder) -> BaseImage:
    """Return a stand-in for the builder image of --builder-image, for a dry run."""
    name = planned_image(builder)
    reference = ""
    if builder.builder_image != SEARCH:
        reference = mirrored(full_name(name), builder.mirrors)
    elif builder.registry:
        reference = f"{builder.registry}/{name}"
    return stand_in(name, reference)


def planned_look_ups(builder: ImageBuilder) -> Iterator[str]:
    """Yield the lines of a dry run about look-ups and pulls.

    Of the base image, or of a builder image.
    """
    if builder.builder_image:
        return look_up_lines(planned_base(builder), builder.engine)
    return describe_bases([builder_recipe(builder)], builder.engine)


def planned_build(builder: ImageBuilder) -> Iterator[str]:
    """Yield the lines of a dry run about the build of the builder image.

    None if it is not built.
    """
    recipes = [] if builder.builder_image else builder_recipes(builder)
    return describe_builds(recipes, builder.engine, no_cache=builder.no_cache)


def builder_recipes(builder: ImageBuilder) -> list[Recipe]:
    """Return the recipes of the builder image, bases first.

    Its tools, and the ROCm that dnf installs.
    """
    tools = builder_recipe(builder)
    if not builder.rocm:
        return [tools]
    rocm = layer(
        builder.as_base(tools),
        f"{BUILDER}-rocm",
        "dnf.Dockerfile",
        files={},
        arguments=builder.rocm,
        labels={},
        network="host",
    )
    return [tools, rocm]


def builder_recipe(builder: ImageBuilder) -> Recipe:
    """Return the recipe of the builder image with its tools."""
    pins = tool_pins(builder, LLVM)
    pins |= {
        name: builder.pins.get("download", name, builder.arch)
        for name in ("bazel", "numactl", "xxd")
    }
    return layer(
        builder.base_image(MANYLINUX),
        BUILDER,
        "manylinux_2_28.Dockerfile",
        files={
            **builder.downloads(pins),
            **{
                name: text_file(DOCKER / name)
                for name in ("check-tools.sh", "clang.cfg", "llvm-members.txt")
            },
        },
        arguments={"LLVM_MAJOR": LLVM},
        labels={f"jax-rocm-release.{name}": pin.version for name, pin in pins.items()},
    )


def tool_pins(builder: ImageBuilder, llvm: str) -> dict[str, Pin]:
    """Return the pins of clang by file name in the build context.

    Empty if `llvm`, the major version, is empty.
    """
    pins = (
        {"llvm": builder.pins.get("download", f"llvm-{llvm}", builder.arch)}
        if llvm
        else {}
    )
    if llvm == LLVM and (
        library := builder.pins.find("download", "libtinfo5", builder.arch)
    ):
        pins["libtinfo5"] = library
    return pins
