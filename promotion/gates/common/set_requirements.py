"""Wheels, dependencies and importable modules of a set for one Python version."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

from packaging.pylock import Package, Pylock, PylockValidationError
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from core.errors import GateError
from core.model import PYLOCK, RocmVersion, Wheel, WheelSet
from promotion.storage.object_keys import is_digest


def wheels_for(wheel_set: WheelSet, version: str) -> tuple[Wheel, ...]:
    """Return the wheels of a set that a CPython such as 3.12 accepts by their tags (PEP 425)."""
    major, minor = map(int, version.split("."))

    def fits(wheel: Wheel) -> bool:
        tags = parse_wheel_filename(wheel.filename)[3]
        platforms = sorted({tag.platform for tag in tags})
        own = cpython_tags((major, minor), platforms=platforms)
        others = compatible_tags((major, minor), platforms=platforms)
        return not tags.isdisjoint(chain(own, others))

    return tuple(wheel for wheel in wheel_set.wheels if fits(wheel))


def modules(wheel_set: WheelSet) -> list[str]:
    """Return the modules that users of the set import.

    Jax, jaxlib, the plugin and the pjrt package.
    """
    major = RocmVersion(text=wheel_set.rocm_version).major
    names = {
        f"jax-rocm{major}-pjrt": f"jax_plugins.xla_rocm{major}",
        f"jax-rocm{major}-plugin": f"jax_rocm{major}_plugin",
    }
    projects = dict.fromkeys(
        (*wheel_set.pins, *(wheel.name for wheel in wheel_set.wheels))
    )
    return [names.get(project, project.replace("-", "_")) for project in projects]


def hashed(wheels: Iterable[Wheel]) -> list[str]:
    """Return a requirement for each project with the hashes of all its wheels."""
    lines: dict[str, str] = {}
    for wheel in wheels:
        line = lines.get(wheel.name, f"{wheel.name}=={wheel.version}")
        lines[wheel.name] = f"{line} --hash=sha256:{wheel.sha256}"
    return [*lines.values()]


def for_pythons(lines: Mapping[str, Iterable[str]]) -> list[str]:
    """Return one list of hash-locked requirements for several Pythons.

    Args:
        lines: Python version -> its requirements.
    """
    pythons: dict[str, list[str]] = {}
    for python, of_python in lines.items():
        for line in of_python:
            pythons.setdefault(line, []).append(python)
    result = []
    for line, served in pythons.items():
        if len(served) < len(lines):
            marker = " or ".join(f"python_version == '{python}'" for python in served)
            line = line.replace(" --hash", f" ; {marker} --hash", 1)
        result.append(line)
    return result


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    """Write a file of requirements and return its path."""
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def sha256_of_wheels(package: Package) -> frozenset[str]:
    """Return the digests of the wheels of a package in a lock file."""
    return frozenset(
        wheel.hashes["sha256"]
        for wheel in package.wheels or ()
        if is_digest(wheel.hashes.get("sha256", ""))
    )


def locked(pylock: str, version: str, own: Iterable[str]) -> list[str]:
    """Return one Python's hash-locked requirements without the set's own projects."""
    try:
        lock = Pylock.from_dict(tomllib.loads(pylock))
    except (tomllib.TOMLDecodeError, PylockValidationError) as problem:
        raise GateError(
            f"{PYLOCK} cannot be read: {problem}.", hint="Build the set again."
        ) from problem
    environment = {"python_version": version, "python_full_version": f"{version}.0"}
    lines = []
    for package in lock.packages:
        if package.name in own or (
            package.marker
            and not package.marker.evaluate(environment, context="lock_file")
        ):
            continue
        hashes = sorted(sha256_of_wheels(package))
        if not hashes or package.version is None:
            raise GateError(
                f"{PYLOCK} has no wheel with a sha256 for {package.name}.",
                hint="Build the set again.",
            )
        options = "".join(f" --hash=sha256:{digest}" for digest in hashes)
        lines.append(f"{package.name}=={package.version}{options}")
    return lines
