"""Recipes of images: the inputs that determine an image, and the command that builds the image.

Nothing is run.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ci_build.containers.engine import Engine
from ci_build.images import engine_images as local
from ci_build.images.image_pins import DOCKER
from core.digests import file_sha256
from core.process import render

CONTENT_LABEL = "jax-rocm-release.content"
"""Label with the digest of the content of an image's recipe."""
BASE_LABEL = "jax-rocm-release.base"
_FORMAT = "1"
"""Version of the content digest; a change rebuilds all images."""
UNKNOWN = "DIGEST"
"""Stand-in for a digest that a dry run cannot know, such as that of a ROCm tree."""
UNKNOWN_NOTE = (
    f"{UNKNOWN} stands for the digest of content that is not known before its download"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextFile:
    """A file or directory of a build context.

    Attributes:
        digest: digest of its content, known before the file exists.
        source: function that returns its path, after a download if necessary.
        executable: whether the file is a program.
        url: origin of a file that is downloaded, or empty.
    """

    digest: str
    source: Callable[[], Path]
    executable: bool = False
    url: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseImage:
    """A base of other images.

    Attributes:
        identity: digest of its recipe's content, its repository with digest, or its id.
        image: function that returns its name in the engine, after building or pulling
            the image if necessary.
        name: its name, which is the prefix of the names of images built on it; empty
            for a pinned image.
        labels: labels that images built on it inherit.
        tag: local name under which builds use an image that is not built; empty for an
            image that is built.
        reference: name in the registry from which a missing image is pulled; empty if
            it is not pulled.
    """

    identity: str
    image: Callable[[], str]
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    tag: str = ""
    reference: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Recipe of an image.

    Attributes:
        name: name of the image, without tag.
        dockerfile: text of its Dockerfile.
        files: path in the build context -> file.
        arguments: build arguments besides BASE.
        labels: labels of the image.
        network: network of its build steps: none or host.
    """

    name: str
    dockerfile: str
    base: BaseImage
    files: Mapping[str, ContextFile] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    network: str = "none"

    @property
    def content(self) -> str:
        """The digest of all parts but name and network, as 64 hexadecimal digits.

        UNKNOWN if a part is unknown.
        """
        if self.base.identity.endswith(UNKNOWN) or any(
            file.digest == UNKNOWN for file in self.files.values()
        ):
            return UNKNOWN
        parts = {
            "format": _FORMAT,
            "dockerfile": self.dockerfile,
            "base": self.base.identity,
            "files": {
                path: [file.digest, file.executable]
                for path, file in self.files.items()
            },
            "arguments": dict(self.arguments),
            "labels": dict(self.labels),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def tag(self) -> str:
        """The name with the first digits of the content digest as tag."""
        return f"{self.name}:{self.content[:16]}"

    @property
    def identity(self) -> str:
        """The identity of the image as the base of another image."""
        return self.tag if self.content == UNKNOWN else f"content:{self.content}"


def layer(
    base: BaseImage,
    name: str,
    dockerfile: str,
    *,
    files: Mapping[str, ContextFile],
    labels: Mapping[str, str],
    arguments: Mapping[str, str] | None = None,
    network: str = "none",
) -> Recipe:
    """Return the recipe of an image on a base image, with the base's labels."""
    return Recipe(
        name=name,
        dockerfile=(DOCKER / dockerfile).read_text(encoding="utf-8"),
        base=base,
        files=files,
        arguments=arguments or {},
        labels={**base.labels, **labels},
        network=network,
    )


def stand_in(name: str, reference: str) -> BaseImage:
    """Return a stand-in for a base image that a dry run does not look for.

    Args:
        reference: name in the registry from which a missing image is pulled; empty if
            it is not pulled.
    """
    return BaseImage(
        identity=f"{name}@{UNKNOWN}",
        image=str,
        name=name,
        tag=base_tag(UNKNOWN),
        reference=reference,
    )


def base_tag(digest: str) -> str:
    """Return the local name of a base image, since engines reject bare ids."""
    return f"jax-rocm-release-base:{digest.removeprefix('sha256:')}"


def existing_file(path: Path, digest: str) -> ContextFile:
    """Return an existing file or directory as part of a build context."""
    return ContextFile(digest=digest, source=lambda: path)


def text_file(path: Path) -> ContextFile:
    """Return a file of the repository as part of a build context."""
    return ContextFile(
        digest=file_sha256(path),
        source=lambda: path,
        executable=os.access(path, os.X_OK),
    )


def build_argv(
    recipe: Recipe, engine: str, folder: Path, base: str, *, no_cache: bool = False
) -> tuple[str, ...]:
    """Return the command that builds an image.

    Args:
        engine: path of the engine's client.
        folder: directory with the Dockerfile and the build context `context`.
        base: name of the base image in the engine.
    """
    labels = {
        **recipe.labels,
        CONTENT_LABEL: recipe.content,
        BASE_LABEL: recipe.base.identity,
    }
    argv = [engine, "build", "--file", str(folder / "Dockerfile"), "--tag", recipe.tag]
    argv += ["--network", recipe.network, *(["--no-cache"] if no_cache else [])]
    # Without --force-rm, a failed step would leave its container behind.
    argv += ["--force-rm"]
    argv += [
        word
        for key, value in sorted(labels.items())
        for word in ("--label", f"{key}={value}")
    ]
    arguments = {**recipe.arguments, "BASE": base}
    argv += [
        word
        for key, value in sorted(arguments.items())
        for word in ("--build-arg", f"{key}={value}")
    ]
    return (*argv, str(folder / "context"))


def look_up_lines(base: BaseImage, engine: Engine) -> Iterator[str]:
    """Yield the lines of a dry run about an image that is not built.

    The look-up, and the pull of a missing image.
    """
    digest = base.reference.partition("@")[2]
    yield (
        "look on this machine for"
        f" {f'an image with digest {digest}' if digest else f'the image {base.name}'}"
    )
    yield (
        f"  $ {render(local.list_argv(engine) if digest else local.find_argv(engine, base.name))}"
    )
    if base.reference:
        yield f"pull {base.reference} if it is missing"
        yield f"  $ {render(local.pull_argv(engine, base.reference))}"
    else:
        yield (
            "stop if it is missing: no registry of built images is given"
            " (--image-registry)"
        )


def describe(
    recipes: Sequence[Recipe], engine: Engine, *, no_cache: bool = False
) -> Iterator[str]:
    """Yield the lines of a dry run about images, bases first."""
    if any(recipe.content == UNKNOWN for recipe in recipes):
        yield UNKNOWN_NOTE
    yield from describe_bases(recipes, engine)
    yield from describe_builds(recipes, engine, no_cache=no_cache)


def describe_bases(recipes: Sequence[Recipe], engine: Engine) -> Iterator[str]:
    """Yield the lines about the base images that are not built: look-ups, pulls and tags."""
    for base in {
        recipe.base.identity: recipe.base for recipe in recipes if recipe.base.tag
    }.values():
        yield from look_up_lines(base, engine)
        yield (
            f"  $ {render(local.tag_argv(engine, base.reference or base.name, base.tag))}"
        )


def describe_builds(
    recipes: Sequence[Recipe], engine: Engine, *, no_cache: bool = False
) -> Iterator[str]:
    """Yield the lines about the builds of images: downloads, contents and commands."""
    downloads = {
        file.url: file.digest
        for recipe in recipes
        for file in recipe.files.values()
        if file.url
    }
    yield from (
        f"download {url}, sha256 {digest}, unless it is in the cache"
        for url, digest in downloads.items()
    )
    tags = {recipe.identity: recipe.tag for recipe in recipes}
    for recipe in recipes:
        below = recipe.base
        tag = tags.get(below.identity) or below.tag or below.identity
        yield (
            f"build {recipe.tag} on"
            f" {tags.get(below.identity) or below.reference or below.name}, unless it"
            " exists"
        )
        yield from (
            f"  contains {path} ({file.digest[:16]})"
            for path, file in sorted(recipe.files.items())
        )
        yield f"  $ {render(local.find_argv(engine, recipe.tag))}"
        yield (
            f"  $ {render(build_argv(recipe, engine.program, Path(), tag, no_cache=no_cache))}"
        )
