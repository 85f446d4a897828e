"""Recipes of images: the inputs that determine an image, and the command that builds the image. Nothing is run."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ci_build.images.pins import DOCKER
from core.digests import file_sha256

CONTENT_LABEL = "jax-rocm-release.content"
"""Label with the digest of the content of an image's recipe."""
BASE_LABEL = "jax-rocm-release.base"
_FORMAT = "1"
"""Version of the content digest; a change rebuilds all images."""
UNKNOWN = "CONTENT"
"""Stand-in for a digest that a dry run cannot know, such as that of a ROCm tree."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextFile:
    """A file or directory of a build context.

    Attributes:
        digest: digest of its content, known before the file exists.
        source: function that returns its path, after a download if necessary.
        executable: whether the file is a program.
    """

    digest: str
    source: Callable[[], Path]
    executable: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseImage:
    """A base of other images.

    Attributes:
        identity: digest of its recipe's content, its repository with digest, or its id.
        image: function that returns its name in the engine, after building or pulling the image if necessary.
        name: prefix of the names of images built on it.
        labels: labels that images built on it inherit.
    """

    identity: str
    image: Callable[[], str]
    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


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
        """The digest of all parts but name and network, as 64 hexadecimal digits; UNKNOWN if a part is unknown."""
        if self.base.identity.endswith(UNKNOWN) or any(file.digest == UNKNOWN for file in self.files.values()):
            return UNKNOWN
        parts = {
            "format": _FORMAT,
            "dockerfile": self.dockerfile,
            "base": self.base.identity,
            "files": {path: [file.digest, file.executable] for path, file in self.files.items()},
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
    """Return the recipe of an image on a base image, with the labels of the base and a Dockerfile of docker/."""
    return Recipe(
        name=name,
        dockerfile=(DOCKER / dockerfile).read_text(encoding="utf-8"),
        base=base,
        files=files,
        arguments=arguments or {},
        labels={**base.labels, **labels},
        network=network,
    )


def existing_file(path: Path, digest: str) -> ContextFile:
    """Return an existing file or directory as part of a build context."""
    return ContextFile(digest=digest, source=lambda: path)


def text_file(path: Path) -> ContextFile:
    """Return a file of the repository as part of a build context."""
    return ContextFile(digest=file_sha256(path), source=lambda: path, executable=os.access(path, os.X_OK))


def build_argv(recipe: Recipe, engine: str, folder: Path, base: str, *, no_cache: bool = False) -> tuple[str, ...]:
    """Return the command that builds an image.

    Args:
        engine: path of the engine's client.
        folder: directory with the Dockerfile and the build context `context`.
        base: name of the base image in the engine.
    """
    labels = {**recipe.labels, CONTENT_LABEL: recipe.content, BASE_LABEL: recipe.base.identity}
    argv = [engine, "build", "--file", str(folder / "Dockerfile"), "--tag", recipe.tag]
    argv += ["--network", recipe.network, *(["--no-cache"] if no_cache else [])]
    # Without --force-rm, a failed step would leave its container behind.
    argv += ["--force-rm"]
    argv += [word for key, value in sorted(labels.items()) for word in ("--label", f"{key}={value}")]
    arguments = {**recipe.arguments, "BASE": base}
    argv += [word for key, value in sorted(arguments.items()) for word in ("--build-arg", f"{key}={value}")]
    return (*argv, str(folder / "context"))


def describe(recipes: Sequence[Recipe], *, no_cache: bool = False) -> Iterator[str]:
    """Yield lines that describe images, bases first, and the commands that build them."""
    tags = {recipe.identity: recipe.tag for recipe in recipes}
    for recipe in recipes:
        base = tags.get(recipe.base.identity, recipe.base.identity)
        yield f"{recipe.tag} on {base}, with"
        for path, file in sorted(recipe.files.items()):
            yield f"  {path} ({file.digest[:16]})"
        yield f"  $ {shlex.join(build_argv(recipe, 'docker', Path(), base, no_cache=no_cache))}"
