"""Builder of container images.

The engine's cache decides which steps of a Dockerfile run again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ci_build.containers.engine import Engine, find_engine, planned_engine
from ci_build.images import engine_images
from ci_build.images.engine_images import ContainerImage
from ci_build.images.image_pins import DOCKER, ImagePins, Pin
from core.errors import InputError, ProcessError
from core.frozen import frozen
from core.model import Progress
from core.process import HostRunner, render, without_credentials

if TYPE_CHECKING:
    from core.http.client import Connect

UNKNOWN = "DIGEST"
"""Stand-in for a digest that a dry run cannot know, such as that of a ROCm tree."""
UNKNOWN_NOTE = (
    f"{UNKNOWN} stands for the digest of content that is not known before its download"
)
_BASE = "BASE"
"""Build argument of every Dockerfile: the name of the base image."""


@frozen
class ImageBuild:
    """Inputs of one image.

    Attributes:
        name: name of the image, without tag.
        dockerfile: name of its Dockerfile.
        base: name of the base image.
        texts: path in the build context -> text of a file.
        files: path in the build context -> file or folder of this machine.
        downloads: path in the build context -> pin of a file that is downloaded.
        arguments: build arguments besides the base image.
        labels: labels of the image.
        network: network of the build steps: none or host.
    """

    name: str
    dockerfile: str
    base: str
    texts: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Path] = field(default_factory=dict)
    downloads: Mapping[str, Pin] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    network: str = "none"

    @property
    def tag(self) -> str:
        """The name with a digest of the Dockerfile, the base, the texts and the pins as tag."""
        parts = [
            (DOCKER / self.dockerfile).read_text(encoding="utf-8"),
            self.base,
            dict(self.texts),
            {path: pin.digest for path, pin in self.downloads.items()},
            dict(self.arguments),
        ]
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        return f"{self.name}:{digest[:16]}"


@dataclass(kw_only=True)
class ImageBuilder:
    """Builder of images.

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
        rocm: build arguments of dnf.Dockerfile, which adds a ROCm to the builder image;
            empty for no ROCm.
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
    rocm: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False
    arch: str = field(default_factory=platform.machine)

    @cached_property
    def engine(self) -> Engine:
        """The container engine; raises NoContainerEngineError if none answers.

        In a dry run, no engine is asked.
        """
        if self.dry_run:
            return planned_engine(self.engine_name)
        return find_engine(self.engine_name or None, self.host)

    def base_image(self, name: str) -> str:
        """Return the name of a base image: that of --base-docker, or the pinned one.

        Raises:
            RequestError: the base image is not pinned.
        """
        return self.base or self.pins.get("base", name, self.arch).reference

    def find(self, name: str) -> ContainerImage | None:
        """Return the local image of a name or id, or None."""
        return engine_images.find(self.engine, self.host, name)

    def pull(self, name: str) -> ContainerImage:
        """Pull an image.

        Raises:
            InputError: the registry refuses the pull or lacks the image.
        """
        self.progress.step(f"pulling {name}")
        return engine_images.pull(self.engine, self.host, name)

    def build(self, image: ImageBuild, name: str) -> ContainerImage:
        """Build an image under a name; the engine pulls its base image.

        Raises:
            InputError: a download fails, or a file differs from its pin.
            ProcessError: a step of the Dockerfile failed.
        """
        contexts = self.cache / "images" / "contexts"
        contexts.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="context-", dir=contexts) as folder:
            self._fill(image, Path(folder))
            self.progress.step(f"building {name}")
            self.host.run(
                self.build_argv(image, name, folder),
                # Attestations would change the digest of an unchanged image.
                env={"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"},
            )
        if (built := self.find(name)) is None:
            # A buildx builder with another driver does not load images into the engine.
            raise ProcessError(
                f"{name} was built, but the engine does not list it.",
                hint="Select the engine's own builder with `docker buildx use default`.",
            )
        return built

    def build_argv(self, image: ImageBuild, name: str, folder: str) -> tuple[str, ...]:
        """Return the command that builds an image from the build context in a folder."""
        argv = [self.engine.program, "build", "--tag", name]
        argv += ["--file", str(DOCKER / image.dockerfile), "--network", image.network]
        for key, value in sorted(image.labels.items()):
            argv += ["--label", f"{key}={value}"]
        arguments = {**image.arguments, _BASE: image.base}
        for key, value in sorted(arguments.items()):
            argv += ["--build-arg", f"{key}={value}"]
        return (*argv, folder)

    def describe(self, image: ImageBuild, name: str) -> Iterator[str]:
        """Yield the lines of a dry run about the build of an image."""
        for path, pin in image.downloads.items():
            yield f"download {pin.origin} as {path}, sha256 {pin.digest}, unless cached"
        for path, source in image.files.items():
            yield f"copy {source} to {path}"
        yield f"  $ {render(self.build_argv(image, name, 'CONTEXT'))}"

    def _fill(self, image: ImageBuild, folder: Path) -> None:
        """Fill a build context, with hard links if possible."""
        sources = dict(image.files)
        for path, pin in image.downloads.items():
            sources[path] = self.fetch(pin)
        for path, source in sources.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, symlinks=True, copy_function=_link)
            else:
                _link(source, target)
        for path, text in image.texts.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")

    def fetch(self, pin: Pin) -> Path:
        """Return the file of a pin, downloaded if it is not in the cache.

        Raises:
            InputError: the download fails, or the file has another digest than its pin.
        """
        folder = self.cache / "images" / "files" / pin.digest
        path = folder / "file"
        folder.mkdir(parents=True, exist_ok=True)
        # Mark the entry as used, for `ci_build cache`.
        os.utime(folder)
        if path.exists():
            return path
        self.progress.step(f"fetching {pin.name} {pin.version} for {pin.arch}")
        with TemporaryDirectory(prefix=".part-", dir=folder) as part:
            download = Path(part, "file")
            with download.open("wb") as file:
                digest = self.download(pin.origin, file.write)
            if digest != pin.digest:
                raise InputError(
                    f"{without_credentials(pin.origin)} has sha256 {digest}, but"
                    f" {pin.label} is pinned to {pin.digest}.",
                    hint="Do not use the file: find out why it changed.",
                )
            download.rename(path)
        return path

    def download(
        self, url: str, write: Callable[[memoryview], object] = lambda _: None
    ) -> str:
        """Download a URL and return its sha256; without `write`, nothing is stored."""
        # Start-up time: requests takes 0.1 s of CPU, and a dry run opens no connection.
        from core.http.download import RemoteFile

        sha256 = hashlib.sha256()
        remote = RemoteFile(self.connect(), url)
        done = 0
        for chunk in remote.chunks(0, sha256):
            write(chunk)
            done += len(chunk)
            self.progress.advance(done, remote.version.size or 0)
        return sha256.hexdigest()


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
