"""Choice of the packages for this machine.

A wheel set of the given index, or compatible published wheels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ci_build.doctor.examined import gpus
from ci_build.doctor.packages import Package
from core import targets
from core.defaults import defaults
from core.errors import CiBuildError, InputError
from core.rocm_releases import load_releases
from promotion.index.index_reader import find_indexes

_DEFAULTS = defaults()
SUPPORTED: tuple[str, ...] = tuple(_DEFAULTS["pythons"]["supported"])
"""Python versions that wheels exist for."""
JAX: str = _DEFAULTS["build"]["jax_version"]
"""Version of jax to install by default."""
ROCM_MAJOR = load_releases().published_major
"""ROCm major of the published wheels."""
BEST_PYTHON: str = _DEFAULTS["pythons"]["main"]
"""Python to propose instead of an unsupported one.

Neither the oldest nor one that many wheels do not support yet.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageChoice:
    """Packages to install.

    Attributes:
        packages: name -> specifier; ==0.10.2.* is the newest post-release of 0.10.2.
        index: URL of the index with the set; empty for other packages.
        own: whether they fit an installed wheel of this project, whose loader gives the
            same advice.
        about: description for users, one line.
        major: ROCm major that the packages need.
    """

    packages: Mapping[str, str]
    index: str
    about: str
    major: int
    own: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedSet:
    """A wheel set of an index.

    Attributes:
        simple: URL for pip's `--extra-index-url`.
        tiers: gfx target -> tier of its tests.
        packages: name -> version of the wheels and pins of the set.
    """

    digest: str
    simple: str
    jax: str
    rocm: str
    pythons: tuple[str, ...]
    tiers: Mapping[str, str]
    packages: Mapping[str, str]

    @property
    def major(self) -> int:
        """The ROCm major of the set."""
        return int(self.rocm.partition(".")[0])


def read_sets(place: str) -> tuple[OfferedSet, ...]:
    """Return the visible sets of the indexes at a place, newest first.

    Args:
        place: see `promotion.index.index_reader.find_indexes`.

    Raises:
        InputError: the place has no index of this project, or the index cannot be read.
    """
    offered: list[OfferedSet] = []
    try:
        for index in find_indexes(place):
            for row in index.status()["sets"]:
                wheel_set = index.wheel_set(row["digest"])
                offered.append(
                    OfferedSet(
                        digest=row["digest"],
                        simple=index.simple,
                        jax=row["jax"],
                        rocm=row["rocm"],
                        pythons=tuple(row["pythons"]),
                        tiers=dict(row["tiers"]),
                        packages={
                            wheel.name: wheel.version for wheel in wheel_set.wheels
                        }
                        | dict(wheel_set.pins),
                    )
                )
    except InputError as error:
        raise InputError(
            f"The index {place} cannot be read: {error.message}", hint="Check --index."
        ) from error
    except (OSError, ValueError, KeyError, TypeError, CiBuildError) as error:
        raise InputError(
            f"{place} is not an index of this project: {error}.", hint="Check --index."
        ) from error
    return tuple(offered)


def accepted() -> tuple[str, ...]:
    """Return the gfx processors that XLA accepts."""
    return tuple(
        row.name for row in targets.table() if row.xla and row.covers == (row.name,)
    )


def fitting(
    offers: Iterable[OfferedSet], python: str, names: Sequence[str], major: int
) -> tuple[OfferedSet, ...]:
    """Return the sets that support a Python and all given GPUs.

    Sets for the installed ROCm come first.

    Args:
        offers: sets, newest first.
        python: minor version, such as 3.12.
        names: gfx targets of the GPUs, without unknown targets.
        major: major of the installed ROCm; 0 if no ROCm is installed.
    """
    covers = targets.covers()
    fits = [
        offer
        for offer in offers
        if python in offer.pythons
        and all(gpus.has_code(name, offer.tiers, covers) for name in names)
    ]
    return tuple(sorted(fits, key=lambda offer: bool(major) and offer.major != major))


def rocm_index(major: int) -> str:
    """Return the index with the stable packages of a ROCm major."""
    key = "stable_index_url" if major >= 10 else "stable_index_url_before_10"
    index: str = _DEFAULTS["rocm_packages"][key]
    return index


def wanted_major(installed: Iterable[Package], found: Iterable[int]) -> int:
    """Return the ROCm major to keep.

    That of the installed packages, else that of the installed ROCm, else 0.

    Majors older than the published wheels' major are ignored, since they get no new
    wheels.
    """
    majors = {package.major for package in installed if package.major >= ROCM_MAJOR}
    return (
        next(iter(majors))
        if len(majors) == 1
        else next((m for m in found if m >= ROCM_MAJOR), 0)
    )


def choose(
    offers: Sequence[OfferedSet],
    installed: Mapping[str, Package],
    names: Sequence[str],
    major: int,
) -> PackageChoice:
    """Choose an index's first fitting set, else packages that fit an installed wheel.

    Without both, choose the published wheels of the installed jax, else those of the
    default jax.
    """
    if offers:
        offer = offers[0]
        tiers = ", ".join(
            f"{name} {offer.tiers[name]}" for name in names if name in offer.tiers
        )
        about = f"set {offer.digest[:12]}: jax {offer.jax}, ROCm {offer.rocm}" + (
            f"; {tiers}" if tiers else ""
        )
        packages = {name: f"=={version}" for name, version in offer.packages.items()}
        return PackageChoice(
            packages=packages, index=offer.simple, about=about, major=offer.major
        )
    for part in ("pjrt", "plugin"):
        for own in (
            package
            for package in installed.values()
            if package.part == part and package.fitting
        ):
            if major in (0, own.major):
                about = (
                    f"jax {own.fitting['jax'].removeprefix('==')} with {own.name}"
                    f" {own.version}, which is installed"
                )
                return PackageChoice(
                    packages=own.fitting,
                    index="",
                    about=about,
                    major=own.major,
                    own=True,
                )
    jax = installed.get("jax")
    match = re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", jax.version) if jax else None
    version = match[0] if match else JAX
    major = major or ROCM_MAJOR
    packages = {"jax": f"=={version}", "jaxlib": f"=={version}"}
    packages |= {
        f"jax-rocm{major}-{part}": f"=={version}.*" for part in ("pjrt", "plugin")
    }
    return PackageChoice(
        packages=packages,
        index="",
        about=f"published wheels: jax {version} for ROCm {major}",
        major=major,
    )
