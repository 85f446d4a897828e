"""Recipes of images; images with the same content are built once."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from ci_build.containers.engine import Engine
from ci_build.images.dockerfile import check_arguments
from ci_build.images.local import LocalImage, find, tag
from core.digests import file_sha256
from core.errors import NoContainerEngineError, ProcessError
from core.model import Progress
from core.process import HostRunner

CONTENT_LABEL = "jax-rocm-release.content"
"""Label of an image: digest of its recipe's content."""
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
        source: returns its path; downloads it if necessary.
        executable: whether it is a program.
    """

    digest: str
    source: Callable[[], Path]
    executable: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A recipe that determines an image.

    Attributes:
        name: name of the image, without tag.
        dockerfile: text of its Dockerfile.
        base: identity of the base image: repository and digest, or id.
        base_image: returns a local name of the base image; pulls it if necessary.
        files: path in the build context -> file.
        arguments: build arguments besides BASE.
        labels: labels of the image.
        network: network of its build steps: none or host.
    """

    name: str
    dockerfile: str
    base: str
    base_image: Callable[[], str]
    files: Mapping[str, ContextFile] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    network: str = "none"

    @property
    def content(self) -> str:
        """The digest of everything but the name, as 64 hexadecimal digits, or UNKNOWN if a part is unknown."""
        if self.base.endswith(UNKNOWN) or any(file.digest == UNKNOWN for file in self.files.values()):
            return UNKNOWN
        parts = {
            "format": _FORMAT,
            "dockerfile": self.dockerfile,
            "base": self.base,
            "files": {path: [file.digest, file.executable] for path, file in self.files.items()},
            "arguments": dict(self.arguments),
            "labels": dict(self.labels),
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def tag(self) -> str:
        """The name with a tag: the first digits of the content's digest."""
        return f"{self.name}:{self.content[:16]}"

    @property
    def identity(self) -> str:
        """The identity as the base of another image."""
        return self.tag if self.content == UNKNOWN else f"content:{self.content}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerImage:
    """An image of the container engine.

    Attributes:
        name: name that the engine knows.
        digest: `sha256:…` of the registry, else the id; recorded in build records.
        built: whether this run built it.
        id: id in the engine.
    """

    name: str
    digest: str
    built: bool
    id: str = ""


def container_image(name: str, image: LocalImage, *, built: bool) -> ContainerImage:
    """Return an existing image under a name."""
    return ContainerImage(name=name, digest=image.digest, built=built, id=image.id)


def text_file(path: Path) -> ContextFile:
    """Return a file of the repository as part of a build context."""
    return ContextFile(digest=file_sha256(path), source=lambda: path, executable=os.access(path, os.X_OK))


def generated_file(text: str, folder: Path) -> ContextFile:
    """Return a generated file as part of a build context; it is stored in `folder` under its digest."""
    digest = hashlib.sha256(text.encode()).hexdigest()

    def write() -> Path:
        path = folder / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return ContextFile(digest=digest, source=write)


def sha256sums(files: Mapping[str, str]) -> str:
    """Return the text of a SHA256SUMS file, from name -> sha256."""
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(files.items()))


def find_built(recipe: Recipe, engine: Engine, host: HostRunner, name: str = "") -> LocalImage | None:
    """Return the image of a recipe if the engine has one with exactly that content."""
    found = find(engine, host, name or recipe.tag)
    return found if found is not None and found.labels.get(CONTENT_LABEL) == recipe.content else None


def ensure_image(
    recipe: Recipe, engine: Engine, host: HostRunner, progress: Progress, *, cache: Path, no_cache: bool = False
) -> ContainerImage:
    """Return the image of a recipe, built if it is missing.

    Args:
        cache: directory of build contexts; files on its file system are linked instead of copied.
        no_cache: rebuild every layer.

    Raises:
        RequestError: the Dockerfile does not use a build argument.
        NoContainerEngineError: the engine's client cannot build.
    """
    from filelock import FileLock  # a dry run needs no lock

    check_arguments(recipe.dockerfile, ("BASE", *recipe.arguments), f"The Dockerfile of {recipe.name}")
    contexts = cache / "contexts"
    contexts.mkdir(parents=True, exist_ok=True)
    # Parallel runs of one user would build the same image twice.
    with FileLock(contexts / f".{recipe.content}.lock"):
        if not no_cache and (found := find_built(recipe, engine, host)):
            return container_image(recipe.tag, found, built=False)
        if not engine.builds:
            raise NoContainerEngineError(
                f"{engine.program} cannot build images: its buildx plugin is missing.",
                hint="Install docker-buildx, or name another client with --container-engine.",
            )
        with TemporaryDirectory(prefix="context-", dir=contexts) as folder:
            _fill(Path(folder), recipe)
            _build(Path(folder), recipe, engine, host, progress, no_cache=no_cache)
    made = find_built(recipe, engine, host)
    if made is None:
        raise ProcessError(f"{recipe.tag} was built but is missing.", hint="Check the engine's storage.")
    return container_image(recipe.tag, made, built=True)


def _fill(folder: Path, recipe: Recipe) -> None:
    """Fill the build context with links where possible, else with copies."""
    (folder / "Dockerfile").write_text(recipe.dockerfile, encoding="utf-8")
    (folder / "context").mkdir()
    for path, file in recipe.files.items():
        source, target = file.source(), folder / "context" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, copy_function=_link)
        else:
            _link(source, target)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _build(
    folder: Path, recipe: Recipe, engine: Engine, host: HostRunner, progress: Progress, *, no_cache: bool
) -> None:
    argv = build_argv(recipe, engine.program, folder, recipe.base_image(), no_cache=no_cache)
    progress.step(f"building {recipe.tag}")
    # Attestations would change the digest of an unchanged image.
    host.run(argv, env={"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"})


def build_argv(recipe: Recipe, engine: str, folder: Path, base: str, *, no_cache: bool = False) -> tuple[str, ...]:
    """Return the command that builds an image.

    Args:
        engine: program of the engine's client.
        folder: directory with the Dockerfile and the build context `context`.
        base: name of the base image that the engine knows.
    """
    labels = {**recipe.labels, CONTENT_LABEL: recipe.content, BASE_LABEL: recipe.base}
    argv = [engine, "build", "--file", str(folder / "Dockerfile"), "--tag", recipe.tag]
    argv += ["--network", recipe.network, *(["--no-cache"] if no_cache else [])]
    # A failed step would leave its container behind.
    argv += ["--force-rm"]
    argv += [word for key, value in sorted(labels.items()) for word in ("--label", f"{key}={value}")]
    arguments = {**recipe.arguments, "BASE": base}
    argv += [word for key, value in sorted(arguments.items()) for word in ("--build-arg", f"{key}={value}")]
    return (*argv, str(folder / "context"))


def describe(recipes: Sequence[Recipe], *, no_cache: bool = False) -> Iterator[str]:
    """Yield lines that describe images and the commands that build them; nothing is downloaded or started.

    Args:
        recipes: recipes, bases first.
    """
    tags = {recipe.identity: recipe.tag for recipe in recipes}
    for recipe in recipes:
        base = tags.get(recipe.base, recipe.base)
        yield f"{recipe.tag} on {base}, with"
        for path, file in sorted(recipe.files.items()):
            yield f"  {path} ({file.digest[:16]})"
        yield f"  $ {shlex.join(build_argv(recipe, 'docker', Path(), base, no_cache=no_cache))}"


def add_tags(image: ContainerImage, names: tuple[str, ...], engine: Engine, host: HostRunner) -> None:
    """Tag an image with further names, such as the customary one."""
    for name in names:
        tag(engine, host, image.id or image.name, name)
