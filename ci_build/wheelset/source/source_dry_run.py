"""Dry run of a build from source.

The steps before the plan, and the container of the plan's commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ci_build.containers.container import ContainerSpec, container_argv
from ci_build.containers.engine import Engine, info_argv
from ci_build.images.image_builder import UNKNOWN, UNKNOWN_NOTE, ImageBuilder
from ci_build.rocm.rocm_request import DnfRepository, Folder, planned_steps
from ci_build.wheelset.source.build_py import IN_CONTAINER, SourceLayout, source_of
from ci_build.wheelset.source.source_container import (
    TOOLS_SCRIPT,
    WORK,
    build_container,
    build_mounts,
    rocm_container,
    tools_argv,
)
from ci_build.wheelset.wheel_request import WheelSetRequest
from core.process import render
from core.source_request import SourceInputs

ROCM_CLANG = "lib/llvm/bin/clang"
"""The first of `compiler.programs` in parts.toml, whose module takes 0.1 s to import."""


def environment_lines(
    request: WheelSetRequest, images: ImageBuilder | None
) -> Iterator[str]:
    """Yield the lines about the container engine, the images and the ROCm, in the order of a build.

    Args:
        images: builder of the builder image; None for a build on this machine.
    """
    assert request.rocm is not None
    tree = planned_rocm(request)
    image = images.planned() if images is not None else ""
    rocm = [
        "rocm:",
        *(f"  {line}" for line in planned_steps(request.rocm)),
        f"  its tree is {tree}",
    ]
    if UNKNOWN in f"{tree} {image}":
        yield UNKNOWN_NOTE
    if images is None:
        yield from (
            "machine:",
            "  build on this machine, without a container, after a check of its tools",
            *rocm,
        )
        return
    engine = images.engine
    yield f"container engine: {engine.name}, whose daemon is assumed to run as root"
    yield f"  $ {render(info_argv(engine.program))}"
    yield f"builder image: {image}"
    for line in images.planned_steps():
        yield f"  {line}"
    yield from rocm
    yield "container:"
    yield "  remove containers of killed runs; each container has a name of its run"
    if isinstance(request.rocm.source, DnfRepository):
        yield from _copy_lines(engine, image, request.cache)
    yield "  check that the image has the tools of the build"
    bare = build_container(
        engine, image, source_of(request.build).container, (TOOLS_SCRIPT,)
    )
    yield (
        f"    $ {render(container_argv(bare, tools_argv(request.build, IN_CONTAINER)))}"
    )


def _copy_lines(engine: Engine, image: str, cache: Path) -> Iterator[str]:
    """Yield the lines about the ROCm that dnf installed in the builder image."""
    # Start-up time: a dry run of another ROCm loads no decompressors.
    from ci_build.rocm.installed import COPY_COMMAND, LIST_COMMAND

    container = rocm_container(engine, image, cache / "rocm" / "trees" / UNKNOWN)
    yield "  list the packages of the ROCm, and copy the ROCm unless it is in the cache"
    yield f"    $ {render(container_argv(container, LIST_COMMAND))}"
    yield f"    $ {render(container_argv(container, COPY_COMMAND))}"


def clang_lines(container: ContainerSpec | None, rocm: str) -> Iterator[str]:
    """Yield lines about the ROCm's clang, its version being read before compilation."""
    argv = (f"{rocm}/{ROCM_CLANG}", "--version")
    yield "  read the version of the ROCm's clang"
    yield f"    $ {render(container_argv(container, argv) if container else argv)}"


def planned_container(
    request: WheelSetRequest,
    images: ImageBuilder | None,
    inputs: SourceInputs,
    layout: SourceLayout,
) -> ContainerSpec | None:
    """Return the container of the build's commands; None for a build on this machine."""
    if images is None:
        return None
    source = source_of(request.build)
    built = request.built
    rocm = planned_rocm(request)
    mounts = build_mounts(source, inputs.sources, layout, rocm, built, built / WORK)
    return build_container(images.engine, images.planned(), source.container, mounts)


def planned_rocm(request: WheelSetRequest) -> Path:
    """Return the path of the ROCm; the name of a tree that is not unpacked yet is not known."""
    assert request.rocm is not None
    if isinstance(request.rocm.source, Folder):
        return request.rocm.source.path.resolve()
    return request.cache / "rocm" / "trees" / UNKNOWN / "rocm"
