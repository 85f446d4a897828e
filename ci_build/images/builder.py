"""The image that wheels are compiled in: a named one, one of a registry, or one built from docker/images.toml."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ci_build.containers.engine import Engine, find_engine
from ci_build.images import local
from ci_build.images.fetch import fetch
from ci_build.images.pins import DOCKER, ImagePins, Pin, load_pins, machine
from ci_build.images.recipe import (
    ContainerImage,
    ContextFile,
    Recipe,
    container_image,
    ensure_image,
    find_built,
    generated_file,
    sha256sums,
    text_file,
)
from core.errors import InputError, RequestError
from core.model import Progress
from core.process import HostRunner

if TYPE_CHECKING:
    from core.http.client import Connect

SEARCH = "search"
"""Value of `--builder-image` that finds an image without building one."""
MANYLINUX = "manylinux_2_28"
BUILDER = f"jax-{MANYLINUX}"
LLVM = "18"
"""Major version of the clang that compiles wheels; images.toml gives the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageRequest:
    """A request for images.

    Attributes:
        engine: returns the container engine; called when it is needed, which a dry run never does.
        builder_image: name of an image, `search`, or empty.
        base: name of a base image that replaces the pinned one, or empty.
        registry: registry to pull from and push to, or empty.
        cache: directory of downloads and build contexts.
        arch: architecture of the images.
        connect: opens connections for downloads.
        no_cache: rebuild every layer.
    """

    engine: Callable[[], Engine]
    pins: ImagePins
    cache: Path
    connect: Connect
    builder_image: str = ""
    base: str = ""
    registry: str = ""
    arch: str = ""
    no_cache: bool = False


class _LazyEngine:
    """A container engine that is looked for once, when it is needed."""

    def __init__(self, name: str | None, host: HostRunner) -> None:
        self._name, self._host = name, host

    @cached_property
    def engine(self) -> Engine:
        return find_engine(self._name, self._host)

    def __call__(self) -> Engine:
        return self.engine


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageSettings:
    """Options about images.

    Attributes:
        engine: docker, podman or a file; empty detects the engine.
        builder_image, base, registry, no_cache: as in `ImageRequest`.
        cache: cache folder of the whole program.
        pins: another images.toml; None uses docker/images.toml.
    """

    engine: str = ""
    builder_image: str = ""
    base: str = ""
    registry: str = ""
    cache: Path
    pins: Path | None = None
    no_cache: bool = False


def image_request(settings: ImageSettings, host: HostRunner, connect: Connect) -> ImageRequest:
    """Return the request for images; no container engine is started.

    Raises:
        RequestError: images.toml cannot be read.
    """
    pins = load_pins(settings.pins) if settings.pins else load_pins()
    return ImageRequest(
        engine=_LazyEngine(settings.engine or None, host),
        pins=pins,
        cache=settings.cache / "images",
        connect=connect,
        builder_image=settings.builder_image,
        base=settings.base,
        registry=(settings.registry or pins.registry).rstrip("/"),
        arch=machine(),
        no_cache=settings.no_cache,
    )


def builder_image(request: ImageRequest, runner: HostRunner, reporter: Progress) -> ContainerImage:
    """Return the image to compile in.

    A named image is pulled if it is missing. With `search`, the image of the current recipe is found locally or in the
    registry. Otherwise it is built if it is missing.

    Raises:
        InputError: there is no such image.
        RequestError: images.toml lacks a pin.
    """
    if request.builder_image and request.builder_image != SEARCH:
        return _named(request, runner)
    recipe = builder_recipe(request, runner, reporter)
    if request.builder_image == SEARCH:
        return _searched(recipe, request, runner)
    engine = request.engine()
    return ensure_image(recipe, engine, runner, reporter, cache=request.cache, no_cache=request.no_cache)


def check_obtainable(request: ImageRequest, runner: HostRunner, reporter: Progress) -> None:
    """Check that a builder image can be obtained, without building one.

    Raises:
        NoContainerEngineError: no engine answers.
        InputError: the named image does not exist, or the base image is neither local nor in a configured registry.
    """
    engine = request.engine()
    if request.builder_image:
        builder_image(request, runner, reporter)
        return
    if request.registry:
        return
    recipe = builder_recipe(request, runner, reporter)
    if not request.base and find_built(recipe, engine, runner) is None:
        recipe.base_image()


def planned_image(request: ImageRequest, runner: HostRunner, reporter: Progress) -> str:
    """Return the name of the image that a build will run in; the engine is used only for a named base image."""
    if request.builder_image and request.builder_image != SEARCH:
        return request.builder_image
    return builder_recipe(request, runner, reporter).tag


def _named(request: ImageRequest, host: HostRunner) -> ContainerImage:
    engine, name = request.engine(), request.builder_image
    found = local.find(engine, host, name) or local.pull(engine, host, name)
    return container_image(name, found, built=False)


def _searched(recipe: Recipe, request: ImageRequest, host: HostRunner) -> ContainerImage:
    engine = request.engine()
    if found := find_built(recipe, engine, host):
        return container_image(recipe.tag, found, built=False)
    if not request.registry:
        raise InputError(
            f"There is no {recipe.tag} on this machine, and no registry is configured.",
            hint="Give --image-registry, or omit --builder-image to build it.",
        )
    reference = f"{request.registry}/{recipe.tag}"
    pulled = local.pull(engine, host, reference)
    if find_built(recipe, engine, host, reference) is None:
        raise InputError(
            f"{reference} was not built from the current {request.pins.path} and Dockerfile.",
            hint="Push the right one with `ci_build images build manylinux --push`.",
        )
    return container_image(reference, pulled, built=False)


def builder_recipe(request: ImageRequest, host: HostRunner, progress: Progress) -> Recipe:
    """Return the recipe of the builder image."""
    files = tool_files(request, progress, LLVM, bazel=True)
    labels = {f"jax-rocm-release.{name}": pin.version for name, pin in tool_pins(request, LLVM, bazel=True).items()}
    return base_recipe(
        request,
        host,
        name=BUILDER,
        dockerfile=DOCKER / "manylinux_2_28.Dockerfile",
        base=MANYLINUX,
        files={**files, **{name: text_file(DOCKER / name) for name in ("clang.cfg", "llvm-members.txt")}},
        arguments={"LLVM_MAJOR": LLVM},
        labels=labels,
    )


def tool_pins(request: ImageRequest, llvm: str, *, bazel: bool) -> dict[str, Pin]:
    """Return the pins of compiler and build tool, by name in the build context."""
    pins = {"llvm": request.pins.get("download", f"llvm-{llvm}", request.arch)} if llvm else {}
    if llvm == LLVM and (library := request.pins.find("download", "libtinfo5", request.arch)):
        pins["libtinfo5"] = library
    if bazel:
        pins["bazel"] = request.pins.get("download", "bazel", request.arch)
    return pins


def tool_files(request: ImageRequest, progress: Progress, llvm: str, *, bazel: bool) -> dict[str, ContextFile]:
    """Return compiler and build tool as files of a build context, with their SHA256SUMS."""
    return download_files(request, tool_pins(request, llvm, bazel=bazel), progress)


def download_files(request: ImageRequest, pins: Mapping[str, Pin], progress: Progress) -> dict[str, ContextFile]:
    """Return downloads as files of a build context, below downloads/, with their SHA256SUMS."""

    def getter(pin: Pin) -> Callable[[], Path]:
        return lambda: fetch(pin, request.connect, request.cache, progress)

    listed = sha256sums({name: pin.digest for name, pin in pins.items()})
    files = {f"downloads/{name}": ContextFile(digest=pin.digest, source=getter(pin)) for name, pin in pins.items()}
    return {**files, "downloads/SHA256SUMS": generated_file(listed, request.cache / "made")}


def base_recipe(
    request: ImageRequest,
    host: HostRunner,
    *,
    name: str,
    dockerfile: Path,
    base: str,
    files: Mapping[str, ContextFile],
    arguments: Mapping[str, str],
    labels: Mapping[str, str],
    network: str = "none",
) -> Recipe:
    """Return a recipe on a pinned base image, or on the one that the request names.

    Raises:
        RequestError: the base image is not pinned.
        InputError: the named base image is missing.
    """
    made = Recipe(
        name=name,
        dockerfile=dockerfile.read_text(encoding="utf-8"),
        base="",
        base_image=str,
        files=files,
        arguments=arguments,
        labels=labels,
        network=network,
    )
    if request.base:
        found = local.find(request.engine(), host, request.base)
        if found is None:
            raise InputError(f"--base-docker {request.base} is not on this machine.", hint="Pull or import it first.")
        return replace(made, base=found.id, base_image=lambda: tag_base(found, request, host))
    pin = request.pins.get("base", base, request.arch)
    return replace(made, base=pin.reference, base_image=lambda: _pinned_base(pin, request, host))


def _pinned_base(pin: Pin, request: ImageRequest, host: HostRunner) -> str:
    """Return a local name of a pinned base image, pulled by its digest if it is missing."""
    engine = request.engine()
    found = local.find_digest(engine, host, pin.digest)
    if found is None and not request.registry:
        raise InputError(
            f"The base image {pin.reference} is not on this machine, and no registry is configured.",
            hint="Give --image-registry HOST, set CI_BUILD_IMAGE_REGISTRY, or name an image with --base-docker.",
        )
    if found is None:
        found = local.pull(engine, host, f"{request.registry}/{pin.reference}")
    return tag_base(found, request, host)


def tag_base(image: local.LocalImage, request: ImageRequest, host: HostRunner) -> str:
    """Tag an image and return the tag: builders accept neither every id nor a digest without its registry."""
    name = f"jax-rocm-release-base:{image.id.removeprefix('sha256:')}"
    local.tag(request.engine(), host, image.id, name)
    return name


def check_push(request: ImageRequest) -> None:
    """Check that a registry to push to is configured.

    Raises:
        RequestError: none is.
    """
    if not request.registry:
        raise RequestError("--push needs a registry.", hint="Give --image-registry, or set CI_BUILD_IMAGE_REGISTRY.")


def push(request: ImageRequest, image: ContainerImage, names: Sequence[str], host: HostRunner) -> str:
    """Push an image under its content's tag, and return it as name@sha256:….

    Args:
        names: further names to push it under.

    Raises:
        RequestError: no registry is configured.
    """
    check_push(request)
    given = [image.name.removeprefix(f"{request.registry}/")]
    given += [name if ":" in name.rpartition("/")[2] else f"{name}:latest" for name in names]
    engine, content = request.engine(), image.id or image.name
    pushed, *_ = [local.push(engine, host, content, f"{request.registry}/{name}") for name in given]
    return pushed
