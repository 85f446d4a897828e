"""Image in which wheels are compiled.

A named image, one from a registry, or one built from docker/images.toml.
"""

from __future__ import annotations

from collections.abc import Iterator

from ci_build.images import engine_images
from ci_build.images.engine_images import ContainerImage
from ci_build.images.image_builder import ImageBuild, ImageBuilder
from ci_build.images.image_pins import DOCKER
from core.errors import InputError
from core.process import render

SEARCH = "search"
"""Value of `--builder-image` that finds an image without building one."""
MANYLINUX = "manylinux_2_28"
BUILDER = f"jax-{MANYLINUX}"
_LLVM = "18"
"""Major version of the clang that compiles wheels; images.toml gives the reason."""
_DOWNLOADS = {
    "bazel": "bazel",
    "llvm": f"llvm-{_LLVM}",
    "numactl": "numactl",
    "xxd": "xxd",
}
"""Name in the build context -> name of the pin."""
_TEXTS = ("check-tools.sh", "clang.cfg", "llvm-members.txt")


def builder_image(builder: ImageBuilder) -> ContainerImage:
    """Return the image to compile in.

    A named image is pulled if it is missing. With `search`, the image of the current
    Dockerfile and pins is used from the engine or the registry. Without a name, it is
    built if it is missing.

    Raises:
        InputError: the image does not exist.
        NoContainerEngineError: no engine answers.
        RequestError: images.toml lacks a pin.
    """
    name = builder.builder_image
    if name and name != SEARCH:
        return builder.find(name) or builder.pull(name)
    images = builder_images(builder)
    tag = images[-1].tag
    # The tag of an image is a digest of its content, unless the user names its base.
    if not builder.base and (found := builder.find(tag)):
        return found
    if name != SEARCH:
        return [builder.build(image, image.tag) for image in images][-1]
    if not builder.registry:
        raise InputError(
            f"Image {tag} is not on this machine, and no registry is configured.",
            hint="Give --image-registry, or omit --builder-image to build it.",
        )
    return builder.pull(f"{builder.registry}/{tag}")


def planned_image(builder: ImageBuilder) -> str:
    """Return the name of the image that a build will run in; in a dry run, no engine is asked."""
    name = builder.builder_image
    return name if name and name != SEARCH else builder_images(builder)[-1].tag


def planned_steps(builder: ImageBuilder) -> Iterator[str]:
    """Yield the lines of a dry run about the builder image."""
    image = planned_image(builder)
    yield f"look for {image} on this machine"
    yield f"  $ {render(engine_images.find_argv(builder.engine, image))}"
    if not builder.builder_image:
        for step in builder_images(builder):
            yield f"build {step.tag} if it is missing"
            for line in builder.describe(step, step.tag):
                yield f"  {line}"
    elif builder.builder_image != SEARCH or builder.registry:
        search = builder.builder_image == SEARCH
        name = f"{builder.registry}/{image}" if search else image
        yield f"pull {name} if it is missing"
        yield f"  $ {render(engine_images.pull_argv(builder.engine, name))}"
    else:
        yield "stop if it is missing: no --image-registry is given"


def builder_images(builder: ImageBuilder) -> list[ImageBuild]:
    """Return the inputs of the builder image: its tools, then the ROCm that dnf installs.

    Raises:
        RequestError: images.toml lacks a pin.
    """
    downloads = {}
    for name, pin in _DOWNLOADS.items():
        downloads[f"downloads/{name}"] = builder.pins.get("download", pin, builder.arch)
    # Only LLVM's archive for x86_64 was linked with this library.
    if library := builder.pins.find("download", "libtinfo5", builder.arch):
        downloads["downloads/libtinfo5"] = library
    tools = ImageBuild(
        name=BUILDER,
        dockerfile="manylinux_2_28.Dockerfile",
        base=builder.base_image(MANYLINUX),
        texts={name: (DOCKER / name).read_text(encoding="utf-8") for name in _TEXTS},
        downloads=dict(sorted(downloads.items())),
        arguments={"LLVM_MAJOR": _LLVM},
    )
    if not builder.rocm:
        return [tools]
    rocm = ImageBuild(
        name=f"{BUILDER}-rocm",
        dockerfile="dnf.Dockerfile",
        base=tools.tag,
        arguments=builder.rocm,
        network="host",
    )
    return [tools, rocm]
