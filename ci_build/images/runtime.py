"""Images to run JAX in: an Ubuntu with Pythons, a ROCm on it, the wheels of a set on that. Each is made once.

Names are those that people know, such as jax-base-ubu24.rocm720; what decides is the content of each layer.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ci_build.images import local
from ci_build.images.builder import BUILDER, ImageRequest, base_recipe, download_files, tag_base, tool_pins
from ci_build.images.local import sanitize
from ci_build.images.pins import DOCKER
from ci_build.images.recipe import UNKNOWN, ContainerImage, ContextFile, Recipe, ensure_image, text_file
from core.digests import file_sha256
from core.errors import InputError, RequestError
from core.model import Progress
from core.process import HostRunner

OURS = ("com.amdgpu.", "jax-rocm-release.commit.")
"""How labels begin that an image hands on to those that are put on it."""
UBUNTU = "ubu"
"""Bases of runtime images begin with it, as in ubu24."""
_SYSTEM = re.compile(rf"{UBUNTU}[0-9]+|manylinux_[0-9]+_[0-9]+")
DEFAULT_PYTHON = "3.12"
"""The Python of an image that is called python, where it is among those asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseImage:
    """An image that others are put on.

    Attributes:
        name: what the names of those begin with.
        identity: what it is made of, or its id.
        image: gives a name that the engine knows; makes the image if it has to.
        labels: its labels, as far as they are ours.
    """

    name: str
    identity: str
    image: Callable[[], str]
    labels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageBuilder:
    """Makes images, one on top of another.

    Attributes:
        request: where everything comes from.
        built: content -> image, of the recipes that were built so far.
    """

    request: ImageRequest
    host: HostRunner
    progress: Progress
    built: dict[str, ContainerImage] = field(default_factory=dict)

    def build(self, recipe: Recipe) -> ContainerImage:
        """The image of a recipe; made anew once where everything has to be."""
        if recipe.content not in self.built:
            request = self.request
            self.built[recipe.content] = ensure_image(
                recipe, request.engine(), self.host, self.progress, cache=request.cache, no_cache=request.no_cache
            )
        return self.built[recipe.content]

    def as_base(self, recipe: Recipe) -> BaseImage:
        """The image of a recipe, to put another one on; it is made when it is needed."""
        return BaseImage(
            name=recipe.name,
            identity=recipe.identity,
            image=lambda: self.build(recipe).name,
            labels=recipe.labels,
        )

    def find(self, name: str) -> BaseImage | None:
        """An image that is here, or in the registry, under a name that people know."""
        engine, registry = self.request.engine(), self.request.registry
        image = local.find(engine, self.host, name)
        if image is None and registry:
            with suppress(InputError):
                image = local.pull(engine, self.host, f"{registry}/{name}")
        if image is None:
            return None
        labels = {key: text for key, text in image.labels.items() if key.startswith(OURS)}
        return BaseImage(
            name=name, identity=image.id, image=lambda: tag_base(image, self.request, self.host), labels=labels
        )


def _layer(
    base: BaseImage,
    name: str,
    dockerfile: str,
    *,
    files: Mapping[str, ContextFile],
    labels: Mapping[str, str],
    arguments: Mapping[str, str] | None = None,
) -> Recipe:
    return Recipe(
        name=name,
        dockerfile=(DOCKER / dockerfile).read_text(encoding="utf-8"),
        base=base.identity,
        base_image=base.image,
        files=files,
        arguments=arguments or {},
        labels={**base.labels, **labels},
    )


def ubuntu_releases(request: ImageRequest, kind: str, filters: str) -> tuple[str, ...]:
    """The Ubuntu releases to make images for: those whose file name holds one of the words, as it always was.

    Args:
        kind: base, base-therock or jax: what stands before the release in that name.
        filters: comma-separated parts of `Dockerfile.<kind>-<release>`; empty takes all.

    Raises:
        RequestError: none of them holds any.
    """
    known = sorted(
        pin.name for pin in request.pins.pins if (pin.kind, pin.arch) == ("base", request.arch) and _is_ubuntu(pin.name)
    )
    words = [word.strip() for word in filters.split(",") if word.strip()]
    names = {release: f"Dockerfile.{kind}-{release}" for release in known}
    found = tuple(release for release in known if not words or any(word in names[release] for word in words))
    if not found:
        raise RequestError(
            f"--filter {filters} is in none of {', '.join(names.values()) or 'nothing'}.",
            hint="Give a part of such a name, for example ubu24.",
        )
    return found


def _is_ubuntu(name: str) -> bool:
    return name.startswith(UBUNTU) and name.removeprefix(UBUNTU).isdecimal()


def base(builder: ImageBuilder, release: str, pythons: Sequence[str], llvm: str) -> Recipe:
    """An Ubuntu with Pythons, and with a clang where `llvm` names its major.

    Raises:
        RequestError: images.toml lacks the Ubuntu, a Python, or that LLVM for this machine.
    """
    request = builder.request
    pins = {f"python-{python}": request.pins.get("download", f"python-{python}", request.arch) for python in pythons}
    pins |= tool_pins(request, llvm, bazel=False)
    default = DEFAULT_PYTHON if DEFAULT_PYTHON in pythons else pythons[-1]
    files = {**download_files(request, pins, builder.progress)}
    return base_recipe(
        request,
        builder.host,
        name=f"jax-{'dev' if llvm else 'base'}-{release}",
        dockerfile=DOCKER / "base.Dockerfile",
        base=release,
        files={**files, "llvm-members.txt": text_file(DOCKER / "llvm-members.txt")},
        arguments={"LLVM_MAJOR": llvm, "DEFAULT_PYTHON": default},
        labels={
            "com.amdgpu.python_versions": ",".join(pythons),
            "com.amdgpu.install_llvm": str(int(bool(llvm))),
            "com.amdgpu.llvm_version": llvm or "none",
        },
        network="host" if llvm else "none",
    )


def rocm_recipe(
    base: BaseImage, tree: ContextFile, version: str, labels: Mapping[str, str], *, name: str = ""
) -> Recipe:
    """A ROCm's tree on top.

    Args:
        name: of the image; by default made of that of the one base.
    """
    return _layer(
        base,
        name or f"{base.name}.{rocm_tag(version)}",
        "rocm.Dockerfile",
        files={"rocm": tree},
        labels={"com.amdgpu.rocm_version": version, **labels},
    )


def packages_recipe(
    base: BaseImage, python: str, wheels: Mapping[str, ContextFile], version: str, labels: Mapping[str, str]
) -> Recipe:
    """ROCm's pip packages on top.

    Args:
        python: an interpreter with pip inside the image base.
        wheels: the packages, and `requirements.txt` with their hashes, by name.
        version: that of ROCm.
    """
    return _layer(
        base,
        f"{base.name}{separator(base.name)}therock-{sanitize(version)}".lower(),
        "therock.Dockerfile",
        files={f"rocm-wheels/{name}": file for name, file in wheels.items()},
        arguments={"PYTHON": python},
        labels={"com.amdgpu.therock_version": version, **labels},
    )


def wheels_recipe(
    base: BaseImage,
    name: str,
    files: Mapping[str, ContextFile],
    pythons: Sequence[str],
    labels: Mapping[str, str],
) -> Recipe:
    """The wheels of a set on top.

    Args:
        files: wheels, and `requirements-<Python>.txt` with their hashes, by name.
    """
    return _layer(
        base,
        name,
        "jax.Dockerfile",
        files={
            **{f"wheels/{file}": what for file, what in files.items()},
            "selftest.py": text_file(DOCKER / "selftest.py"),
        },
        arguments={"PYTHONS": " ".join(pythons)},
        labels={**labels},
    )


def image_contents(name: str, labels: Mapping[str, str]) -> Mapping[str, str]:
    """What is inside an image, as the compatibility tables want it: jax, rocm, python, system; empty is not known.

    Args:
        name: as people know it.
        labels: its labels.
    """
    own = {key.removeprefix(OURS[0]): text for key, text in labels.items() if key.startswith(OURS[0])}
    system = _SYSTEM.search(name)
    return {
        "jax": own.get("jax_version", ""),
        "rocm": own.get("rocm_version") or own.get("therock_version", ""),
        "python": ", ".join(filter(None, own.get("python_versions", "").split(","))),
        "system": system[0] if system else "",
    }


def separator(name: str) -> str:
    """What stands between an image's name and that of the ROCm on it."""
    return "-" if name == BUILDER else "."


def find_base(builder: ImageBuilder, name: str) -> BaseImage:
    """A base image by the name that people know.

    Raises:
        InputError: it is neither here nor in the registry.
    """
    found = builder.find(name)
    if found is None:
        raise InputError(
            f"There is no {name}{'' if builder.request.registry else ' on this machine'}.",
            hint="Make it with `ci_build build_base_dockers`, or name its ROCm with --therock-path.",
        )
    return found


def planned_base(name: str, labels: Mapping[str, str] | None = None) -> BaseImage:
    """A base image that nobody has asked for yet, for a dry run."""
    return BaseImage(name=name, identity=f"{name}@{UNKNOWN}", image=str, labels=labels or {})


def check_base(base: BaseImage, rocm_version: str, pythons: Sequence[str]) -> None:
    """Refuse a base image that does not go with a set.

    Raises:
        RequestError: it has another ROCm, or lacks a Python.
    """
    held = base.labels.get("com.amdgpu.rocm_version", "")
    lacking = [name for name in pythons if name not in base.labels.get("com.amdgpu.python_versions", "").split(",")]
    if held != rocm_version:
        raise RequestError(
            f"{base.name} has ROCm {held or 'of an unknown version'}, and the set is for {rocm_version}.",
            hint="Name the right ROCm.",
        )
    if lacking:
        raise RequestError(
            f"{base.name} has no Python {', '.join(lacking)}.", hint="Make it anew with those --python-versions."
        )


def rocm_tag(version: str) -> str:
    """A ROCm's version in the name of an image: 7.2.0 -> rocm720, 7.10.0.dev0+abc -> rocm7100dev0.abc."""
    return ("rocm" + sanitize(version.partition("+")[0]).replace(".", "") + _local(version)).lower()


def _local(version: str) -> str:
    local = version.partition("+")[2]
    return f".{sanitize(local)}" if local else ""


def tree_file(root: Path, digest: str) -> ContextFile:
    """A ROCm's tree as part of a context.

    Args:
        digest: what is known of its content; a folder of somebody's, of which nothing is known, is read.
    """
    return ContextFile(digest=digest or _folder_digest(root), source=lambda: root)


def _folder_digest(root: Path) -> str:
    sha256 = hashlib.sha256()
    for folder, names, files in os.walk(root):
        names.sort()
        for name in sorted(files + [name for name in names if Path(folder, name).is_symlink()]):
            path = Path(folder, name)
            sha256.update(f"{path.relative_to(root)}\0{path.lstat().st_mode:o}\0".encode())
            if path.is_symlink():
                sha256.update(os.fsencode(path.readlink()))
            elif path.is_file():
                sha256.update(bytes.fromhex(file_sha256(path)))
    return sha256.hexdigest()
