"""Recipes of runtime images in three layers: Ubuntu with Pythons, ROCm, and the wheels of a set.

Images have the customary names, such as jax-base-ubu24.rocm720; a layer is reused if
its content is unchanged.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ci_build.images.engine_images import sanitize
from ci_build.images.image_builder import ImageBuilder
from ci_build.images.image_pins import DOCKER
from ci_build.images.image_recipe import (
    BaseImage,
    ContextFile,
    Recipe,
    existing_file,
    layer,
    stand_in,
    text_file,
)
from ci_build.images.manylinux_image import BUILDER, tool_pins
from core.defaults import defaults
from core.digests import file_sha256
from core.errors import InputError, RequestError

OURS = ("com.amdgpu.", "jax-rocm-release.commit.")
"""Prefixes of the labels that an image inherits from its base."""
UBUNTU = "ubu"
"""Prefix of the names of Ubuntu base images, as in ubu24."""
_SYSTEM = re.compile(rf"{UBUNTU}[0-9]+|manylinux_[0-9]+_[0-9]+")
DEFAULT_PYTHON = defaults()["pythons"]["main"]
"""Version that `python3` runs in an image, if this version is among the requested Pythons."""


def ubuntu_releases(builder: ImageBuilder, kind: str, filters: str) -> tuple[str, ...]:
    """Return the Ubuntu releases that --filter selects by the customary names of their Dockerfiles.

    Args:
        kind: base, base-therock or jax.
        filters: comma-separated parts of `Dockerfile.<kind>-<release>`; empty selects
            all.

    Raises:
        RequestError: no name matches.
    """
    releases = sorted(
        pin.name
        for pin in builder.pins.pins
        if (pin.kind, pin.arch) == ("base", builder.arch)
        and re.fullmatch(rf"{UBUNTU}[0-9]+", pin.name)
    )
    words = [word.strip() for word in filters.split(",") if word.strip()]
    names = {release: f"Dockerfile.{kind}-{release}" for release in releases}
    selected = tuple(
        release
        for release in releases
        if not words or any(word in names[release] for word in words)
    )
    if not selected:
        raise RequestError(
            f"--filter {filters} matches none of"
            f" {', '.join(names.values()) or 'nothing'}.",
            hint="Give a part of such a name, for example ubu24.",
        )
    return selected


def ubuntu_recipe(
    builder: ImageBuilder, release: str, pythons: Sequence[str], llvm: str
) -> Recipe:
    """Return the recipe of an Ubuntu image with Pythons, and with clang if requested.

    Raises:
        RequestError: images.toml does not pin the Ubuntu, a Python or the LLVM for this
            architecture.
    """
    pins = {
        f"python-{python}": builder.pins.get(
            "download", f"python-{python}", builder.arch
        )
        for python in pythons
    }
    pins |= tool_pins(builder, llvm)
    return layer(
        builder.base_image(release),
        f"jax-{'dev' if llvm else 'base'}-{release}",
        "base.Dockerfile",
        files={
            **builder.downloads(pins),
            "llvm-members.txt": text_file(DOCKER / "llvm-members.txt"),
        },
        arguments={
            "LLVM_MAJOR": llvm,
            "DEFAULT_PYTHON": (
                DEFAULT_PYTHON if DEFAULT_PYTHON in pythons else pythons[-1]
            ),
        },
        labels={
            "com.amdgpu.python_versions": ",".join(pythons),
            "com.amdgpu.install_llvm": str(int(bool(llvm))),
            "com.amdgpu.llvm_version": llvm or "none",
        },
        network="host" if llvm else "none",
    )


def rocm_recipe(
    base: BaseImage,
    tree: ContextFile,
    version: str,
    labels: Mapping[str, str],
    *,
    name: str = "",
) -> Recipe:
    """Return the recipe of an image with a ROCm tree on a base image."""
    return layer(
        base,
        name or f"{base.name}.{rocm_tag(version)}",
        "rocm.Dockerfile",
        files={"rocm": tree},
        labels={"com.amdgpu.rocm_version": version, **labels},
    )


def packages_recipe(
    base: BaseImage,
    python: str,
    wheels: Mapping[str, ContextFile],
    version: str,
    labels: Mapping[str, str],
) -> Recipe:
    """Return the recipe of an image with ROCm's pip packages on a base image.

    Args:
        python: path of an interpreter with pip in the base image.
        wheels: packages and `requirements.txt` with their hashes, by file name.
        version: version of ROCm.
    """
    return layer(
        base,
        f"{base.name}{'-' if base.name == BUILDER else '.'}therock-{sanitize(version)}".lower(),
        "therock.Dockerfile",
        files={f"rocm-wheels/{name}": file for name, file in wheels.items()},
        arguments={"PYTHON": python},
        labels={"com.amdgpu.therock_version": version, **labels},
    )


def image_contents(name: str, labels: Mapping[str, str]) -> Mapping[str, str]:
    """Return jax, rocm, python and system of an image, for the compatibility tables.

    Unknown values are empty.
    """
    own = {
        key.removeprefix(OURS[0]): text
        for key, text in labels.items()
        if key.startswith(OURS[0])
    }
    system = _SYSTEM.search(name)
    return {
        "jax": own.get("jax_version", ""),
        "rocm": own.get("rocm_version") or own.get("therock_version", ""),
        "python": ", ".join(filter(None, own.get("python_versions", "").split(","))),
        "system": system[0] if system else "",
    }


def find_base(builder: ImageBuilder, name: str) -> BaseImage:
    """Return a base image by its customary name.

    Raises:
        InputError: neither the engine nor the registry has the image.
    """
    image = builder.find(name)
    answer = ""
    if image is None and builder.registry:
        try:
            image = builder.pull_built(name)
        except InputError as error:
            answer = f" {error.message}"
    if image is None:
        raise InputError(
            f"There is no image {name} on this machine.{answer}",
            hint=(
                "Build it with `ci_build images build base`, or give its ROCm with"
                " --therock-path."
            ),
        )
    labels = {key: text for key, text in image.labels.items() if key.startswith(OURS)}
    return BaseImage(
        name=name,
        identity=image.id,
        image=lambda: builder.tag_base(image, image.id),
        labels=labels,
    )


def planned_base(builder: ImageBuilder, name: str) -> BaseImage:
    """Return a stand-in for a base image with a customary name, for a dry run."""
    return stand_in(name, f"{builder.registry}/{name}" if builder.registry else "")


def check_base(base: BaseImage, rocm_version: str, pythons: Sequence[str]) -> None:
    """Check that a base image has the ROCm and the Pythons of a set.

    Raises:
        RequestError: the base image has another ROCm, or lacks a Python.
    """
    held = base.labels.get("com.amdgpu.rocm_version", "")
    lacking = [
        name
        for name in pythons
        if name not in base.labels.get("com.amdgpu.python_versions", "").split(",")
    ]
    if held != rocm_version:
        raise RequestError(
            f"{base.name} has ROCm {held or 'of an unknown version'}, but the set is"
            f" for {rocm_version}.",
            hint="Give the ROCm of the set with --therock-path.",
        )
    if lacking:
        raise RequestError(
            f"{base.name} has no Python {', '.join(lacking)}.",
            hint="Rebuild the image with these --python-versions.",
        )


def rocm_tag(version: str) -> str:
    """Return a ROCm version as a part of image names.

    7.2.0 -> rocm720, 7.10.0.dev0+abc -> rocm7100dev0.abc.
    """
    public, _, local_label = version.partition("+")
    suffix = f".{sanitize(local_label)}" if local_label else ""
    return f"rocm{sanitize(public).replace('.', '')}{suffix}".lower()


def tree_file(root: Path, digest: str) -> ContextFile:
    """Return a ROCm tree as part of a build context; compute its digest if `digest` is empty."""
    if digest:
        return existing_file(root, digest)
    sha256 = hashlib.sha256()
    for folder, names, files in os.walk(root):
        names.sort()
        for name in sorted(
            files + [name for name in names if Path(folder, name).is_symlink()]
        ):
            path = Path(folder, name)
            sha256.update(
                f"{path.relative_to(root)}\0{path.lstat().st_mode:o}\0".encode()
            )
            if path.is_symlink():
                sha256.update(os.fsencode(path.readlink()))
            elif path.is_file():
                sha256.update(bytes.fromhex(file_sha256(path)))
    return existing_file(root, sha256.hexdigest())
