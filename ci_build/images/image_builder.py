"""Image in which wheels are compiled.

A named image, one from a registry, or one built from docker/images.toml. The engine's
cache decides which steps of a Dockerfile run again.
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
from core.store import ContentStore, mark_used

if TYPE_CHECKING:
    from core.http.client import Connect

SEARCH = "search"
"""Value of `--builder-image` that finds an image without building one."""
UNKNOWN = "DIGEST"
"""Stand-in for a digest that a dry run cannot know, such as that of a ROCm tree."""
UNKNOWN_NOTE = (
    f"{UNKNOWN} stands for the digest of content that is not known before its download"
)
_BASE = "BASE"
"""Build argument of every Dockerfile: the name of the base image."""
_MANYLINUX = "manylinux_2_28"
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


@frozen
class ImageBuild:
    """Inputs of one image.

    Attributes:
        name: name of the image, without tag.
        dockerfile: name of its Dockerfile.
        base: name of the base image.
        texts: path in the build context -> text of a file.
        downloads: path in the build context -> pin of a file that is downloaded.
        arguments: build arguments besides the base image.
        network: network of the build steps: none or host.
    """

    name: str
    dockerfile: str
    base: str
    texts: Mapping[str, str] = field(default_factory=dict)
    downloads: Mapping[str, Pin] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
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
    """Builder of the image in which wheels are compiled.

    The container engine is detected at its first use. A dry run uses no engine; it only
    prints commands.

    Attributes:
        cache: cache folder of ci_build.
        connect: function that returns the HTTP client for downloads.
        engine_name: docker, podman or the path of a client; empty to detect the engine.
        image: name of an existing image, or `search`; empty to build the image.
        base: name of a base image that replaces the pinned one, or empty.
        registry: registry of built images, for pushes and searches, or empty.
        rocm: build arguments of dnf.Dockerfile, which adds a ROCm to the image; empty
            for no ROCm.
        dry_run: whether only commands are printed.
    """

    pins: ImagePins
    cache: Path
    host: HostRunner
    progress: Progress
    connect: Connect
    engine_name: str = ""
    image: str = ""
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

    def obtain(self) -> ContainerImage:
        """Return the image to compile in.

        A named image is pulled if it is missing. With `search`, the image of the
        current Dockerfile and pins is used from the engine or the registry. Without a
        name, it is built if it is missing.

        Raises:
            InputError: the image does not exist.
            NoContainerEngineError: no engine answers.
            RequestError: images.toml lacks a pin.
        """
        if self.image and self.image != SEARCH:
            return self._find(self.image) or self._pull(self.image)
        builds = self.builds()
        tag = builds[-1].tag
        # The tag of an image is a digest of its content, unless the user names its base.
        if not self.base and (found := self._find(tag)):
            return found
        if self.image != SEARCH:
            return [self.build(image) for image in builds][-1]
        if not self.registry:
            raise InputError(
                f"Image {tag} is not on this machine, and no registry is configured.",
                hint="Give --image-registry, or omit --builder-image to build it.",
            )
        return self._pull(f"{self.registry}/{tag}")

    def planned(self) -> str:
        """Return the name of the image to compile in; in a dry run, no engine is asked."""
        named = self.image and self.image != SEARCH
        return self.image if named else self.builds()[-1].tag

    def planned_steps(self) -> Iterator[str]:
        """Yield the lines of a dry run."""
        image = self.planned()
        yield f"look for {image} on this machine"
        yield f"  $ {render(engine_images.find_argv(self.engine, image))}"
        if not self.image:
            for build in self.builds():
                yield f"build {build.tag} if it is missing"
                for path, pin in build.downloads.items():
                    yield (
                        f"  download {pin.origin} as {path}, sha256 {pin.digest},"
                        " unless cached"
                    )
                yield f"    $ {render(self._build_argv(build, 'CONTEXT'))}"
        elif self.image != SEARCH or self.registry:
            name = f"{self.registry}/{image}" if self.image == SEARCH else image
            yield f"pull {name} if it is missing"
            yield f"  $ {render(engine_images.pull_argv(self.engine, name))}"
        else:
            yield "stop if it is missing: no --image-registry is given"

    def builds(self) -> list[ImageBuild]:
        """Return the inputs of the image's parts: its tools, then the ROCm that dnf installs.

        Raises:
            RequestError: images.toml lacks a pin.
        """
        downloads = {}
        for name, pin in _DOWNLOADS.items():
            downloads[f"downloads/{name}"] = self.pins.get("download", pin, self.arch)
        # Only LLVM's archive for x86_64 was linked with this library.
        if library := self.pins.find("download", "libtinfo5", self.arch):
            downloads["downloads/libtinfo5"] = library
        base = self.base or self.pins.get("base", _MANYLINUX, self.arch).reference
        tools = ImageBuild(
            name=f"jax-{_MANYLINUX}",
            dockerfile="manylinux_2_28.Dockerfile",
            base=base,
            texts={
                name: (DOCKER / name).read_text(encoding="utf-8") for name in _TEXTS
            },
            downloads=dict(sorted(downloads.items())),
            arguments={"LLVM_MAJOR": _LLVM},
        )
        if not self.rocm:
            return [tools]
        rocm = ImageBuild(
            name=f"{tools.name}-rocm",
            dockerfile="dnf.Dockerfile",
            base=tools.tag,
            arguments=self.rocm,
            network="host",
        )
        return [tools, rocm]

    def build(self, image: ImageBuild) -> ContainerImage:
        """Build an image; the engine pulls its base image.

        Raises:
            InputError: a download fails, or a file differs from its pin.
            ProcessError: a step of the Dockerfile failed.
        """
        contexts = self.cache / "images" / "contexts"
        contexts.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="context-", dir=contexts) as folder:
            self._fill(image, Path(folder))
            self.progress.step(f"building {image.tag}")
            self.host.run(
                self._build_argv(image, folder),
                # Attestations would change the digest of an unchanged image.
                env={"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"},
            )
        if (built := self._find(image.tag)) is None:
            # A buildx builder with another driver does not load images into the engine.
            raise ProcessError(
                f"{image.tag} was built, but the engine does not list it.",
                hint="Select the engine's own builder with `docker buildx use default`.",
            )
        return built

    def _build_argv(self, image: ImageBuild, folder: str) -> tuple[str, ...]:
        """Return the command that builds an image from the build context in a folder."""
        argv = [self.engine.program, "build", "--tag", image.tag]
        argv += ["--file", str(DOCKER / image.dockerfile), "--network", image.network]
        arguments = {**image.arguments, _BASE: image.base}
        for key, value in sorted(arguments.items()):
            argv += ["--build-arg", f"{key}={value}"]
        return (*argv, folder)

    def _fill(self, image: ImageBuild, folder: Path) -> None:
        """Fill a build context, with hard links if possible."""
        for path in (*image.texts, *image.downloads):
            (folder / path).parent.mkdir(exist_ok=True)
        for path, text in image.texts.items():
            (folder / path).write_text(text, encoding="utf-8")
        for path, pin in image.downloads.items():
            file = self.fetch(pin)
            try:
                os.link(file, folder / path)
            except OSError:
                shutil.copy2(file, folder / path)

    def _find(self, name: str) -> ContainerImage | None:
        """Return the local image of a name or id, or None."""
        return engine_images.find(self.engine, self.host, name)

    def _pull(self, name: str) -> ContainerImage:
        self.progress.step(f"pulling {name}")
        return engine_images.pull(self.engine, self.host, name)

    def fetch(self, pin: Pin) -> Path:
        """Return the file of a pin, downloaded if it is not in the cache.

        Raises:
            InputError: the download fails, or the file has another digest than its pin.
        """
        store = ContentStore(self.cache / "images" / "files")
        folder = store.folder(pin.digest)
        if not folder.is_dir():
            self.progress.step(f"fetching {pin.name} {pin.version} for {pin.arch}")
            store.sweep()
            with store.scratch() as work:
                with (work / "file").open("wb") as file:
                    digest = self.download(pin.origin, file.write)
                if digest != pin.digest:
                    raise InputError(
                        f"{without_credentials(pin.origin)} has sha256 {digest}, but"
                        f" {pin.label} is pinned to {pin.digest}.",
                        hint="Do not use the file: find out why it changed.",
                    )
                store.publish(work, pin.digest)
        mark_used(folder)
        return folder / "file"

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
