"""Wheels of ROCm, which an index lists but does not store."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from urllib.parse import unquote

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from core.model import WHEELS_JSON, RocmPackage, Wheel, WheelSet
from core.rocm_releases import declared_extras
from core.rocm_servers import package_server
from promotion.index.ledger_wheel import IndexedWheel, LedgerWheel

_URL = re.compile(
    r"(?:https://[\w.-]+|http://(?:127\.0\.0\.1|localhost))(?::\d+)?/[^?#\s]+"
)
"""Addresses without user, query and fragment; those of this machine need no TLS."""


def rocm_row(package: RocmPackage) -> IndexedWheel:
    """Return the row of a wheel, whose core metadata is unknown."""
    wheel = LedgerWheel(
        project=package.project,
        filename=package.filename,
        version=package.version,
        size=package.size,
        sha256=package.sha256,
        metadata_sha256="",
        requires_python="",
        requires_dist=(),
    )
    return IndexedWheel(wheel=wheel, href=package.url)


def extras_of(wheels: Iterable[Wheel | LedgerWheel]) -> Mapping[str, tuple[str, ...]]:
    """Return extra -> projects of ROCm that it installs, according to a set's wheels."""
    return declared_extras(chain.from_iterable(one.requires_dist for one in wheels))


def with_extra(requirements: Iterable[str], extra: str) -> tuple[str, ...]:
    """Return requirements that install a set together with its ROCm for a GPU.

    Args:
        requirements: see `install_requirements`.
        extra: extra of the plugin, such as device-gfx942. Empty changes nothing.
    """
    plugin = f"-plugin[{extra}]==" if extra else "-plugin=="
    return tuple(text.replace("-plugin==", plugin) for text in requirements)


def rocm_index(
    rocm: str, extras: Collection[str], packages: Collection[RocmPackage]
) -> str:
    """Return AMD's index, if the extras of a set need it besides the index of the set.

    Empty if that index lists the wheels of the ROCm, or the set has no extras.
    """
    server = package_server(rocm) if extras and not packages else None
    return server.url if server else ""


def package_problems(wheel_set: WheelSet) -> Iterator[str]:
    """Yield a sentence for each problem of a set's wheels of ROCm."""
    yield from link_problems(wheel_set.rocm_packages)
    projects = {package.project for package in wheel_set.rocm_packages}
    extras = extras_of(wheel_set.wheels) if projects else {}
    for extra, needs in extras.items():
        if not projects.issuperset(needs):
            lacking = ", ".join(sorted({*needs} - projects))
            yield f"{extra} requires {lacking}, which {WHEELS_JSON} does not record."


def link_problems(packages: Iterable[RocmPackage]) -> Iterator[str]:
    """Yield a sentence for each file that is no wheel of ROCm or that a page may not link to."""
    for package in packages:
        if not _is_wheel(package):
            yield (
                f"{package.filename} is not a wheel of ROCm: {package.project}"
                f" {package.version}, sha256 {package.sha256!r}."
            )
        elif not _may_link(package):
            # The URL is not shown, since it may contain a password.
            yield (
                f"{package.filename} of ROCm has a URL that is not https, names another"
                " file, or has a user, a query or a fragment."
            )


def _is_wheel(package: RocmPackage) -> bool:
    try:
        project, version, _, _ = parse_wheel_filename(package.filename)
    except InvalidWheelFilename:
        return False
    named = (project, str(version)) == (package.project, package.version)
    hashed = re.fullmatch(r"[0-9a-f]{64}", package.sha256) is not None
    known = project.startswith("rocm-sdk-") and "/" not in package.filename
    return named and hashed and known


def _may_link(package: RocmPackage) -> bool:
    name = unquote(package.url.rpartition("/")[2])
    return name == package.filename and _URL.fullmatch(package.url) is not None
