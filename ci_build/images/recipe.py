"""What an image is made of, and its name: the same content is the same image, and is never made twice."""

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
"""Label of an image: digest of what it was made of."""
BASE_LABEL = "jax-rocm-release.base"
_FORMAT = "1"
"""Changes when the same content has to be made anew."""
UNKNOWN = "CONTENT"
"""Stands, in a dry run, for the digest of what only the work itself makes known, such as a ROCm's tree."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextFile:
    """A file, or a folder, of a build context.

    Attributes:
        digest: of its content, known before it is there.
        source: gives its path, and fetches it if it has to.
        executable: whether it is a program.
    """

    digest: str
    source: Callable[[], Path]
    executable: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """All that decides what an image will be.

    Attributes:
        name: of the image, without tag.
        dockerfile: its text.
        base: identity of the base image: repository and digest, or id.
        base_image: gives a local name of that base; pulls it if it has to.
        files: path in the context -> what is there.
        arguments: build arguments beside BASE.
        labels: what the image says of itself.
        network: what its steps may reach: none, or host.
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
        """Digest of everything above but the name, 64 hexadecimal digits; UNKNOWN while something of it is."""
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
        """Name and tag; the tag is the beginning of the content's digest."""
        return f"{self.name}:{self.content[:16]}"

    @property
    def identity(self) -> str:
        """What it is as the base of another image."""
        return self.tag if self.content == UNKNOWN else f"content:{self.content}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerImage:
    """An image to run something in.

    Attributes:
        name: what the engine knows it by.
        digest: `sha256:…`, that of a registry or else its id; what a record of a build says.
        built: it was made just now.
        id: its id.
    """

    name: str
    digest: str
    built: bool
    id: str = ""


def container_image(name: str, image: LocalImage, *, built: bool) -> ContainerImage:
    """An image that is there."""
    return ContainerImage(name=name, digest=image.digest, built=built, id=image.id)


def text_file(path: Path) -> ContextFile:
    """A file of the repository."""
    return ContextFile(digest=file_sha256(path), source=lambda: path, executable=os.access(path, os.X_OK))


def generated_file(text: str, folder: Path) -> ContextFile:
    """A file that is made for the context; it is kept in `folder` by its digest."""
    digest = hashlib.sha256(text.encode()).hexdigest()

    def write() -> Path:
        path = folder / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return ContextFile(digest=digest, source=write)


def sha256sums(files: Mapping[str, str]) -> str:
    """What `sha256sum --check` reads, from name -> sha256."""
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(files.items()))


def find_built(recipe: Recipe, engine: Engine, host: HostRunner, name: str = "") -> LocalImage | None:
    """The image of a recipe, if the engine has one of exactly that content."""
    found = find(engine, host, name or recipe.tag)
    return found if found is not None and found.labels.get(CONTENT_LABEL) == recipe.content else None


def ensure_image(
    recipe: Recipe, engine: Engine, host: HostRunner, progress: Progress, *, cache: Path, no_cache: bool = False
) -> ContainerImage:
    """The image of a recipe: the one that is there, or a new one.

    Args:
        cache: where the context is put together; the same file system as what it holds saves copies.
        no_cache: make it anew, and every layer of it.

    Raises:
        RequestError: a build argument that its Dockerfile does nothing with.
        NoContainerEngineError: the engine's client cannot build.
    """
    from filelock import FileLock

    check_arguments(recipe.dockerfile, ("BASE", *recipe.arguments), f"The Dockerfile of {recipe.name}")
    contexts = cache / "contexts"
    contexts.mkdir(parents=True, exist_ok=True)
    # The images belong to the engine, but two runs of one user would do the same work twice.
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
        raise ProcessError(f"{recipe.tag} was built and is not there.", hint="Look at the engine's own storage.")
    return container_image(recipe.tag, made, built=True)


def _fill(folder: Path, recipe: Recipe) -> None:
    """Put the context together: links where that is possible, else copies."""
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
    # Attestations would give the same image another digest each time.
    host.run(argv, env={"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"})


def build_argv(recipe: Recipe, engine: str, folder: Path, base: str, *, no_cache: bool = False) -> tuple[str, ...]:
    """The command that makes an image; pure.

    Args:
        engine: the client's program.
        folder: with the Dockerfile, and with the context in `context`.
        base: what the engine knows the base image by.
    """
    labels = {**recipe.labels, CONTENT_LABEL: recipe.content, BASE_LABEL: recipe.base}
    argv = [engine, "build", "--file", str(folder / "Dockerfile"), "--tag", recipe.tag]
    argv += ["--network", recipe.network, *(["--no-cache"] if no_cache else [])]
    # A step that fails would leave its container.
    argv += ["--force-rm"]
    argv += [word for key, value in sorted(labels.items()) for word in ("--label", f"{key}={value}")]
    arguments = {**recipe.arguments, "BASE": base}
    argv += [word for key, value in sorted(arguments.items()) for word in ("--build-arg", f"{key}={value}")]
    return (*argv, str(folder / "context"))


def describe(recipes: Sequence[Recipe], *, no_cache: bool = False) -> Iterator[str]:
    """What images are made of and by which commands, a line each; nothing is fetched, and no engine is asked.

    Args:
        recipes: each after what it is put on.
    """
    tags = {recipe.identity: recipe.tag for recipe in recipes}
    for recipe in recipes:
        base = tags.get(recipe.base, recipe.base)
        yield f"{recipe.tag} on {base}, with"
        for path, file in sorted(recipe.files.items()):
            yield f"  {path} ({file.digest[:16]})"
        yield f"  $ {shlex.join(build_argv(recipe, 'docker', Path(), base, no_cache=no_cache))}"


def add_tags(image: ContainerImage, names: tuple[str, ...], engine: Engine, host: HostRunner) -> None:
    """Give an image further names, such as those that people know."""
    for name in names:
        tag(engine, host, image.id or image.name, name)
