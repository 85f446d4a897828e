"""The image that wheels are compiled in: a named one, one of a registry, or one made here of docker/images.toml."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ci_build.containers.engine import Engine, find_engine
from ci_build.images import local
from ci_build.images.fetch import fetch
from ci_build.images.pins import DOCKER, Pin, Pins, load_pins, machine
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
"""What `--builder-image` says when an image has to be found, and none may be made."""
MANYLINUX = "manylinux_2_28"
BUILDER = f"jax-{MANYLINUX}"
LLVM = "18"
"""Major of the clang that compiles wheels; images.toml says why this one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageRequest:
    """What somebody asked for, about images.

    Attributes:
        engine: asked for once it is needed; a dry run needs none.
        builder_image: a name, `search`, or empty.
        base: base image instead of the pinned one, by a name that the engine knows; empty takes the pinned one.
        registry: where images are pulled from and pushed to; empty when nobody says.
        cache: folder for downloads and build contexts.
        arch: machine that images are for.
        connect: connections for downloads.
        no_cache: make images anew.
    """

    engine: Callable[[], Engine]
    pins: Pins
    cache: Path
    connect: Connect
    builder_image: str = ""
    base: str = ""
    registry: str = ""
    arch: str = ""
    no_cache: bool = False


class _LazyEngine:
    """Asks for an engine once."""

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
    """The image to compile in.

    With a name: that image, pulled if it is not here. With `search`: the image of what images.toml and the Dockerfile
    say now, here or in the registry. With nothing: that image, made if it is not here.

    Raises:
        InputError: there is no such image; RequestError: images.toml lacks something.
    """
    if request.builder_image and request.builder_image != SEARCH:
        return _named(request, runner)
    recipe = builder_recipe(request, runner, reporter)
    if request.builder_image == SEARCH:
        return _searched(recipe, request, runner)
    engine = request.engine()
    return ensure_image(recipe, engine, runner, reporter, cache=request.cache, no_cache=request.no_cache)


def check_obtainable(request: ImageRequest, runner: HostRunner, reporter: Progress) -> None:
    """Refuse a builder image that cannot be had, as far as it can be told without making one.

    Raises:
        NoContainerEngineError: no engine answers.
        InputError: there is no image of that name, or no base image here or in a registry that anybody named.
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
    """Name of the image that a build will run in, for a dry run; no engine is asked unless a base was named."""
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
            hint="Give --image-registry, or leave --builder-image out to have it made.",
        )
    reference = f"{request.registry}/{recipe.tag}"
    pulled = local.pull(engine, host, reference)
    if find_built(recipe, engine, host, reference) is None:
        raise InputError(
            f"{reference} is not made of what {request.pins.path} and the Dockerfile say.",
            hint="Push the right one with `ci_build images build manylinux --push`.",
        )
    return container_image(reference, pulled, built=False)


def builder_recipe(request: ImageRequest, host: HostRunner, progress: Progress) -> Recipe:
    """What the builder is made of."""
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
    """Compiler and build tool: name in the context -> pin."""
    pins = {"llvm": request.pins.get("download", f"llvm-{llvm}", request.arch)} if llvm else {}
    if llvm == LLVM and (library := request.pins.find("download", "libtinfo5", request.arch)):
        pins["libtinfo5"] = library
    if bazel:
        pins["bazel"] = request.pins.get("download", "bazel", request.arch)
    return pins


def tool_files(request: ImageRequest, progress: Progress, llvm: str, *, bazel: bool) -> dict[str, ContextFile]:
    """The same as files of a context, with their sums."""
    pins = tool_pins(request, llvm, bazel=bazel)
    return download_files(request, pins, progress)


def download_files(request: ImageRequest, pins: Mapping[str, Pin], progress: Progress) -> dict[str, ContextFile]:
    """Downloads of a context below downloads/, by name, with SHA256SUMS."""

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
    """A recipe on a pinned base, or on the one that the request names.

    Raises:
        RequestError: the base is not pinned; InputError: the one that was named is not here.
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
    """A local name for a pinned base image; it is pulled by its digest if it is not here."""
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
    """A name that means exactly this image: not every builder takes an id, and none a digest without its registry."""
    name = f"jax-rocm-release-base:{image.id.removeprefix('sha256:')}"
    local.tag(request.engine(), host, image.id, name)
    return name


def check_push(request: ImageRequest) -> None:
    """Refuse to push where nobody says to which registry.

    Raises:
        RequestError: no registry is configured.
    """
    if not request.registry:
        raise RequestError("--push needs a registry.", hint="Give --image-registry, or set CI_BUILD_IMAGE_REGISTRY.")


def push(request: ImageRequest, image: ContainerImage, names: Sequence[str], host: HostRunner) -> str:
    """Give an image to the configured registry under the name that its content has; returns it as name@sha256:….

    Args:
        names: further names, under which others ask for it.

    Raises:
        RequestError: no registry is configured.
    """
    check_push(request)
    given = [image.name.removeprefix(f"{request.registry}/")]
    given += [name if ":" in name.rpartition("/")[2] else f"{name}:latest" for name in names]
    engine, content = request.engine(), image.id or image.name
    pushed, *_ = [local.push(engine, host, content, f"{request.registry}/{name}") for name in given]
    return pushed
