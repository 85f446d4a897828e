"""Image with the wheels of a set: Ubuntu, Pythons, a ROCm, and the wheels and dependencies."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from packaging.markers import Marker

from ci_build.images.engine_images import sanitize
from ci_build.images.image_builder import ImageBuild, ImageBuilder
from ci_build.images.image_pins import DOCKER
from core import wheelset
from core.defaults import defaults
from core.errors import RequestError
from core.model import PYLOCK, Wheel, WheelSet
from core.pip import InputStore, Resolved

SET_LABEL = "jax-rocm-release.set"
"""Label with the digest of the set in an image."""
PYTHONS_LABEL = "com.amdgpu.python_versions"
"""Label with the Pythons of an image, comma-separated."""
DEFAULT_PYTHON = defaults()["pythons"]["main"]
"""Version that `python3` runs in an image, if this version is among the requested Pythons."""


def runtime_name(system: str, rocm_version: str) -> str:
    """Return the customary name of an image, such as jax-ubu24.rocm720 for ROCm 7.2.0.

    7.10.0.dev0+abc becomes rocm7100dev0.abc.
    """
    public, _, local_label = rocm_version.partition("+")
    suffix = f".{sanitize(local_label)}" if local_label else ""
    return f"jax-{system}.rocm{sanitize(public).replace('.', '')}{suffix}".lower()


def runtime_image(
    builder: ImageBuilder,
    folder: Path,
    wheel_set: WheelSet,
    system: str,
    pythons: Sequence[str],
    rocm: Path | None,
) -> ImageBuild:
    """Return the inputs of the image of a set.

    Missing dependencies of the wheels are downloaded, but not in a dry run.

    Args:
        folder: folder of the set.
        system: name of the base image in images.toml, such as ubu24.
        rocm: ROCm to copy to /opt/rocm; None if the base image has one.

    Raises:
        RequestError: the set has no pylock.toml or no wheels for a Python, or
            images.toml lacks a pin.
        InputError: a download differs from the lock.
    """
    if missing := [name for name in pythons if name not in wheel_set.python_versions]:
        raise RequestError(
            f"{folder} has no wheels for Python {', '.join(missing)}.",
            hint=f"Give some of {', '.join(wheel_set.python_versions)}.",
        )
    downloads = {}
    texts = {"selftest.py": (DOCKER / "selftest.py").read_text(encoding="utf-8")}
    files = dict[str, Path]()
    for python in pythons:
        pin = builder.pins.get("download", f"python-{python}", builder.arch)
        downloads[f"pythons/{python}"] = pin
        dependencies = tuple(_dependencies(folder, python))
        requirements: list[Wheel | Resolved] = [*dependencies]
        for path in _fetch(builder, wheel_set, python, dependencies):
            files[f"wheels/{path.name}"] = path
        for wheel in wheel_set.wheels:
            if wheelset.serves(wheel.filename, python):
                requirements.append(wheel)
                files[f"wheels/{wheel.filename}"] = folder / wheel.filename
        texts[f"wheels/requirements-{python}.txt"] = _requirements(requirements)
    if rocm is None:
        texts["rocm/.empty"] = ""
    else:
        files["rocm"] = rocm
    main = DEFAULT_PYTHON if DEFAULT_PYTHON in pythons else pythons[-1]
    return ImageBuild(
        name=runtime_name(system, wheel_set.rocm_version),
        dockerfile="runtime.Dockerfile",
        base=builder.base_image(system),
        texts=texts,
        files=files,
        downloads=downloads,
        arguments={"PYTHONS": " ".join(pythons), "DEFAULT_PYTHON": main},
        labels={
            "com.amdgpu.jax_version": wheel_set.jax_version,
            "com.amdgpu.rocm_version": wheel_set.rocm_version,
            PYTHONS_LABEL: ",".join(pythons),
            SET_LABEL: wheel_set.digest,
            "jax-rocm-release.targets": ",".join(wheel_set.targets),
        },
    )


def _fetch(
    builder: ImageBuilder,
    wheel_set: WheelSet,
    python: str,
    dependencies: Sequence[Resolved],
) -> list[Path]:
    """Return the files of dependencies, downloaded if they are missing."""
    store = InputStore(builder.cache / "inputs")
    absent = [item for item in dependencies if not store.has(item)]
    if absent and not builder.dry_run:
        builder.progress.step(f"downloading {len(absent)} wheels for Python {python}")
        links = wheel_set.request.get("find_links", ())
        progress = builder.progress.advance
        store.fetch(absent, python, builder.host, progress, find_links=links)
    return [store.path(item) for item in dependencies]


def _requirements(items: Iterable[Wheel | Resolved]) -> str:
    """Return pip requirements with hashes."""
    lines = [
        f"{item.name}=={item.version} --hash=sha256:{item.sha256}\n" for item in items
    ]
    return "".join(sorted(lines))


def _dependencies(folder: Path, python: str) -> Iterator[Resolved]:
    """Yield the dependencies of a set for one Python, from its lock (PEP 751)."""
    try:
        lock = tomllib.loads((folder / PYLOCK).read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(
            f"{folder} has no {PYLOCK}.",
            hint="Build the set with `ci_build dist_wheels`.",
        ) from error
    environment = {"python_version": python}
    for package in lock["packages"]:
        marker = package.get("marker", "")
        if marker and not Marker(marker).evaluate(environment, context="lock_file"):
            continue
        for wheel in package["wheels"]:
            if "url" not in wheel:
                continue
            yield Resolved(
                name=package["name"],
                version=package["version"],
                filename=wheel["name"],
                url=wheel["url"],
                sha256=wheel["hashes"]["sha256"],
                requires_python=package.get("requires-python", ""),
            )
