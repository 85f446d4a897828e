"""Builder of container images; images with the same content are built once."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from filelock import FileLock

from ci_build.containers.engine import Engine, find_engine, planned_engine
from ci_build.images import engine_images as local
from ci_build.images.dockerfile import check_arguments
from ci_build.images.engine_images import ContainerImage
from ci_build.images.image_pins import ImagePins, Pin
from ci_build.images.image_recipe import (
    CONTENT_LABEL,
    BaseImage,
    ContextFile,
    Recipe,
    base_tag,
    build_argv,
    stand_in,
)
from ci_build.images.mirrors import full_name, mirrored
from core.atomic import write_whole
from core.errors import InputError, NoContainerEngineError, ProcessError
from core.model import Progress
from core.process import HostRunner, without_credentials

if TYPE_CHECKING:
    from core.http.client import Connect
    from core.http.download import Hash


@dataclass(kw_only=True)
class ImageBuilder:
    """Builder of images and of the images below them.

    The container engine is detected at its first use. A dry run uses no engine; it only
    prints commands.

    Attributes:
        cache: cache folder of ci_build.
        connect: function that returns the HTTP client for downloads.
        engine_name: docker, podman or the path of a client; empty to detect the engine.
        builder_image: name of the image to compile in, or `search`; empty to build the
            image.
        base: name of a base image that replaces the pinned one, or empty.
        registry: registry of built images, for pushes and searches, or empty.
        mirrors: registry or repository -> mirror from which images are pulled.
        rocm: build arguments of dnf.Dockerfile, which adds a ROCm to the builder image;
            empty for no ROCm.
        no_cache: whether to rebuild every layer, once per image.
        dry_run: whether only commands are printed.
    """

    pins: ImagePins
    cache: Path
    host: HostRunner
    progress: Progress
    connect: Connect
    engine_name: str = ""
    builder_image: str = ""
    base: str = ""
    registry: str = ""
    mirrors: Mapping[str, str] = field(default_factory=dict)
    rocm: Mapping[str, str] = field(default_factory=dict)
    no_cache: bool = False
    dry_run: bool = False
    arch: str = field(default_factory=platform.machine)
    _built: dict[str, ContainerImage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.registry = self.registry.rstrip("/")

    @cached_property
    def engine(self) -> Engine:
        """The container engine; raises NoContainerEngineError if none answers.

        In a dry run, no engine is asked.
        """
        if self.dry_run:
            return planned_engine(self.engine_name)
        return find_engine(self.engine_name or None, self.host)

    @property
    def folder(self) -> Path:
        """Directory of downloads and build contexts."""
        return self.cache / "images"

    def find(self, name: str) -> ContainerImage | None:
        """Return the local image of a name or id, or None."""
        return local.find(self.engine, self.host, name)

    def pull(self, name: str) -> ContainerImage:
        """Pull an image from its registry, or from the mirror in its place.

        Raises:
            InputError: the registry refuses the pull or lacks the image.
        """
        reference = mirrored(name, self.mirrors)
        self.progress.step(f"pulling {reference}")
        return local.pull(self.engine, self.host, reference)

    def pull_built(self, name: str) -> ContainerImage:
        """Pull a built image from --image-registry.

        Raise InputError if the registry refuses or lacks the image.
        """
        self.progress.step(f"pulling {self.registry}/{name}")
        return local.pull(self.engine, self.host, f"{self.registry}/{name}")

    def obtain(self, name: str, *, registry: str = "") -> ContainerImage:
        """Return the image that a user names, pulled if it is missing, as `docker run` does.

        Args:
            registry: registry of a name without one; empty for Docker Hub.

        Raises:
            InputError: the image is missing, and its registry refuses the pull or lacks
                the image.
        """
        reference = full_name(name, registry)
        return (
            self.find(name)
            or self.find(mirrored(reference, self.mirrors))
            or self.pull(reference)
        )

    def push(self, image: ContainerImage, names: Sequence[str]) -> str:
        """Push an image with its content tag and under further names.

        Return the first name as name@sha256:….
        """
        given = [image.name.removeprefix(f"{self.registry}/")]
        given += [
            name if ":" in name.rpartition("/")[2] else f"{name}:latest"
            for name in names
        ]
        pushed, *_ = [
            local.push(self.engine, self.host, image.id, f"{self.registry}/{name}")
            for name in given
        ]
        return pushed

    def find_built(self, recipe: Recipe) -> ContainerImage | None:
        """Return the local image of a recipe if its content matches the recipe, else None."""
        image = self.find(recipe.tag)
        return (
            image
            if image is not None and image.labels.get(CONTENT_LABEL) == recipe.content
            else None
        )

    def build(self, recipe: Recipe) -> ContainerImage:
        """Return the image of a recipe, built if it is missing.

        Raises:
            RequestError: the Dockerfile does not use a build argument.
            NoContainerEngineError: the engine's client cannot build.
        """
        if recipe.content in self._built:
            return self._built[recipe.content]
        check_arguments(
            recipe.dockerfile,
            ("BASE", *recipe.arguments),
            f"The Dockerfile of {recipe.name}",
        )
        contexts = self.folder / "contexts"
        contexts.mkdir(parents=True, exist_ok=True)
        # Without the lock, parallel runs of one user would build the same image twice.
        with FileLock(contexts / f".{recipe.content}.lock"):
            image = None if self.no_cache else self.find_built(recipe)
            if image is None:
                with TemporaryDirectory(prefix="context-", dir=contexts) as folder:
                    self._build(recipe, Path(folder))
                if (image := self.find_built(recipe)) is None:
                    raise ProcessError(
                        f"{recipe.tag} was built, but the engine does not list it.",
                        hint="Check the engine's storage.",
                    )
                image = replace(image, built=True)
        self._built[recipe.content] = image
        return image

    def _build(self, recipe: Recipe, folder: Path) -> None:
        """Fill a build context, with hard links if possible, and build the image."""
        if not self.engine.builds:
            raise NoContainerEngineError(
                f"{self.engine.program} cannot build images: its buildx plugin is"
                " missing.",
                hint=(
                    "Install docker-buildx, or name another client with"
                    " --container-engine."
                ),
            )
        (folder / "Dockerfile").write_text(recipe.dockerfile, encoding="utf-8")
        (folder / "context").mkdir()
        for path, file in recipe.files.items():
            source = file.source()
            target = folder / "context" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True, copy_function=_link)
            else:
                _link(source, target)
        argv = build_argv(
            recipe,
            self.engine.program,
            folder,
            recipe.base.image(),
            no_cache=self.no_cache,
        )
        self.progress.step(f"building {recipe.tag}")
        # Attestations would change the digest of an unchanged image.
        self.host.run(argv, env={"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"})

    def as_base(self, recipe: Recipe) -> BaseImage:
        """Return the image of a recipe as a base image that is built at its first use."""
        return BaseImage(
            name=recipe.name,
            identity=recipe.identity,
            image=lambda: self.build(recipe).name,
            labels=recipe.labels,
        )

    def base_image(self, name: str) -> BaseImage:
        """Return a base image, pinned or of --base-docker, and pull it if missing.

        Raises:
            RequestError: the base image is not pinned.
            InputError: the image of --base-docker is missing and cannot be pulled.
        """
        if self.base and self.dry_run:
            return stand_in(self.base, mirrored(full_name(self.base), self.mirrors))
        if self.base:
            image = self.obtain(self.base)
            return BaseImage(
                identity=image.id, image=lambda: self.tag_base(image, image.id)
            )
        pin = self.pins.get("base", name, self.arch)
        return BaseImage(
            identity=pin.reference,
            image=lambda: self._pinned_base(pin),
            tag=base_tag(pin.digest),
            reference=mirrored(pin.reference, self.mirrors),
        )

    def _pinned_base(self, pin: Pin) -> str:
        """Return a local name of a pinned base image, pulled by its digest if it is missing."""
        image = local.find_digest(self.engine, self.host, pin.digest) or self.pull(
            pin.reference
        )
        return self.tag_base(image, pin.digest)

    def tag_base(self, image: ContainerImage, digest: str) -> str:
        """Tag an image as a base and return the tag."""
        name = base_tag(digest)
        local.tag(self.engine, self.host, image.id, name)
        return name

    def downloads(self, pins: Mapping[str, Pin]) -> dict[str, ContextFile]:
        """Return pinned downloads and SHA256SUMS as files of a build context."""

        def source(pin: Pin) -> Callable[[], Path]:
            return lambda: self._fetch(pin)

        sums = "".join(f"{pin.digest}  {name}\n" for name, pin in sorted(pins.items()))
        files = {
            f"downloads/{name}": ContextFile(
                digest=pin.digest, source=source(pin), url=pin.origin
            )
            for name, pin in pins.items()
        }
        return {**files, "downloads/SHA256SUMS": self.generated(sums)}

    def generated(self, text: str) -> ContextFile:
        """Return a text as a file of a build context; the file is stored under its digest."""
        path = self.folder / "made" / hashlib.sha256(text.encode()).hexdigest()

        def write() -> Path:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Build contexts of other runs may have hard links to an existing file.
            write_whole(path, text.encode())
            return path

        return ContextFile(digest=path.name, source=write)

    def _fetch(self, pin: Pin) -> Path:
        """Return the file of a pin; an interrupted download resumes.

        Raises:
            InputError: the download fails, or the file has another digest than its pin.
        """
        folder = self.folder / "files" / pin.digest
        path = folder / "file"
        part = folder / "part"
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            if path.exists():
                # Mark the entry as used, for `cache gc`.
                os.utime(folder)
                return path
            self.progress.step(f"fetching {pin.name} {pin.version} for {pin.arch}")
            resumed = part.exists()
            found = self._download(pin.origin, part)
            if (
                found != pin.digest and resumed
            ):  # the stored part may have lost bytes in a crash
                part.unlink()
                found = self._download(pin.origin, part)
            if found != pin.digest:
                part.unlink()
                origin = without_credentials(pin.origin)
                raise InputError(
                    f"{origin} has sha256 {found}, but {pin.label} is pinned to"
                    f" {pin.digest}.",
                    hint="Do not use the file: find out why it changed.",
                )
            part.rename(path)
        return path

    def _download(self, url: str, part: Path) -> str:
        """Append the missing bytes of a URL to a file, and return the file's sha256."""
        with part.open("ab+") as file:
            file.seek(0)
            sha256 = hashlib.file_digest(file, "sha256")
            for chunk in self._chunks(url, sha256, file.tell()):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        return sha256.hexdigest()

    def digest_of(self, url: str) -> str:
        """Download a URL and return its sha256; nothing is stored."""
        sha256 = hashlib.sha256()
        for _ in self._chunks(url, sha256, 0):
            pass
        return sha256.hexdigest()

    def _chunks(self, url: str, sha256: Hash, done: int) -> Iterator[memoryview]:
        """Yield the bytes of a URL from offset `done` on, and add them to the digest."""
        # Start-up time: requests takes 0.1 s of CPU, and a dry run opens no connection.
        from core.http.download import RemoteFile

        remote = RemoteFile(self.connect(), url)
        for chunk in remote.chunks(done, sha256):
            yield chunk
            done += len(chunk)
            self.progress.advance(done, remote.version.size or 0)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
