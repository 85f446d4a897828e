"""Files of a set: wheels.json, constraints.txt, pylock.toml (PEP 751), SBOM, SHA256SUMS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w
from packaging.markers import Marker
from packaging.pylock import Package, PackageWheel, Pylock
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from ci_build.rocm.lock import load_lock
from ci_build.wheelset.sbom import sbom
from core.digests import sha256_of
from core.model import (
    CONSTRAINTS,
    PYLOCK,
    ROCM_LOCK,
    SBOM,
    SHA256SUMS,
    WHEELS_JSON,
    Wheel,
    WheelSet,
)
from core.pip import Resolved
from core.versions import KERNELS_PROJECT
from core.wheels_json import dump_wheel_set
from core.wheelset import serves, sha256sums
from promotion.index.rocm_packages import extras_of
from wheelkit.rocm_manifest import ROCM_MANIFEST

CREATED_BY = "jax-rocm-release"
_KERNELS_EXTRA = "kernels"
"""Extra of the lock file that selects the wheel of AITER's kernels."""


def constraints(wheel_set: WheelSet) -> str:
    """Return the exact versions of the set and of its pins, for `pip install -c`."""
    versions = {wheel.name: wheel.version for wheel in wheel_set.wheels}
    versions |= wheel_set.pins
    return "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))


def pylock(wheel_set: WheelSet, resolved: Mapping[str, Sequence[Resolved]]) -> str:
    """Return the lock file of the set (PEP 751).

    Its wheels by path, their dependencies and recorded wheels of ROCm by URL, all with
    hashes. Extras select the latter, as in the metadata of the set's wheels.

    Args:
        resolved: Python version -> pip's resolution; entries that the set replaces are
            omitted.
    """
    own = {wheel.name for wheel in wheel_set.wheels}
    pythons = wheel_set.python_versions
    packages = []
    for wheel in wheel_set.wheels:
        served = [python for python in pythons if serves(wheel.filename, python)]
        location = {"path": f"./{wheel.filename}", "size": wheel.size}
        packages.append(_package(wheel, location, served, pythons))
    foreign: dict[tuple[str, str, str], tuple[Resolved, list[str]]] = {}
    for python, items in resolved.items():
        for item in items:
            if item.name not in own:
                key = (item.name, item.version, item.filename)
                foreign.setdefault(key, (item, []))[1].append(python)
    packages += [
        _package(item, {"url": item.url}, served, pythons)
        for _, (item, served) in sorted(foreign.items())
    ]
    packages += _rocm(wheel_set)
    extras = [*extras_of(wheel_set.wheels)] if wheel_set.rocm_packages else []
    if KERNELS_PROJECT in own:
        extras.append(_KERNELS_EXTRA)
    lock = Pylock(
        lock_version=Version("1.0"),
        requires_python=SpecifierSet(f">={pythons[0]}"),
        environments=[Marker(f"python_version == '{python}'") for python in pythons],
        created_by=CREATED_BY,
        extras=[*map(canonicalize_name, extras)] or None,
        packages=packages,
    )
    lock.validate()
    return tomli_w.dumps(dict(lock.to_dict()))


def _rocm(wheel_set: WheelSet) -> Iterator[Package]:
    extras = extras_of(wheel_set.wheels)
    for item in wheel_set.rocm_packages:
        names = [name for name, needs in extras.items() if item.project in needs]
        markers = " or ".join(f"'{name}' in extras" for name in names)
        wheel = PackageWheel(
            name=item.filename,
            url=item.url,
            size=item.size or None,
            hashes={"sha256": item.sha256},
        )
        yield Package(
            name=canonicalize_name(item.project),
            version=Version(item.version),
            marker=Marker(markers),
            wheels=[wheel],
        )


def _package(
    item: Wheel | Resolved,
    location: Mapping[str, Any],
    served: Sequence[str],
    pythons: Sequence[str],
) -> Package:
    requires = item.requires_python
    hashes = {"sha256": item.sha256}
    return Package(
        name=canonicalize_name(item.name),
        version=Version(item.version),
        marker=_marker(item.name, served, pythons),
        requires_python=SpecifierSet(requires) if requires else None,
        wheels=[PackageWheel(name=item.filename, hashes=hashes, **location)],
    )


def _marker(
    project: str, served: Sequence[str], pythons: Sequence[str]
) -> Marker | None:
    """Return a marker for the extra that selects a package, or for the Pythons that it serves.

    None if always.
    """
    if project == KERNELS_PROJECT:  # its one wheel serves every Python
        return Marker(f"'{_KERNELS_EXTRA}' in extras")
    if list(served) == list(pythons):
        return None
    return Marker(" or ".join(f"python_version == '{python}'" for python in served))


def write_set(
    folder: Path, wheel_set: WheelSet, resolved: Mapping[str, Sequence[Resolved]] | None
) -> WheelSet:
    """Write the set's files beside its wheels, debug files, manifest and rocm.lock.

    Wheels.json is written last.

    Args:
        resolved: as in `pylock`; None omits lock file and SBOM.

    Returns:
        The set with `files` and `file_sizes`. Its digest covers every file except
        SHA256SUMS, which is derived from it.
    """
    texts = {CONSTRAINTS: constraints(wheel_set)}
    if resolved is not None:
        texts[PYLOCK] = pylock(wheel_set, resolved)
        texts[SBOM] = sbom(wheel_set, resolved, load_lock(folder / ROCM_LOCK))
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    names = [*texts, ROCM_MANIFEST, ROCM_LOCK]
    paths = [folder / name for name in names if (folder / name).is_file()]
    digests = {}
    sizes = {}
    for path in [*paths, *folder.glob("debug/**/*.debug")]:
        name = str(path.relative_to(folder))
        digests[name] = sha256_of(path)
        sizes[name] = path.stat().st_size
    wheel_set = replace(wheel_set, files=digests, file_sizes=sizes)
    (folder / SHA256SUMS).write_bytes(sha256sums(wheel_set))
    (folder / WHEELS_JSON).write_text(dump_wheel_set(wheel_set), encoding="utf-8")
    return wheel_set
