"""Wheels of ROCm, which an index lists but does not store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

from core.errors import RequestError
from core.model import RocmPackage
from core.units import parse_url
from promotion.index.index_reader import IndexedWheel
from promotion.index.ledger_wheel import LedgerWheel

_PROJECT = re.compile(r"rocm-sdk-[a-z0-9]+(?:-[a-z0-9]+)*")
_LOOPBACK = ("127.0.0.1", "localhost")


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


def package_problems(packages: Iterable[RocmPackage]) -> Iterator[str]:
    """Yield a sentence for each wheel that an index must not list."""
    for package in packages:
        name, version, *_ = package.filename.split("-")
        project = re.sub(r"[-_.]+", "-", name).lower()
        known = _PROJECT.fullmatch(project) and package.filename.endswith(".whl")
        if not known or (project, version) != (package.project, package.version):
            yield (
                f"{package.filename} is not a wheel of ROCm: {package.project}"
                f" {package.version}."
            )
        elif not re.fullmatch(r"[0-9a-f]{64}", package.sha256):
            yield f"{package.filename} has no sha256: {package.sha256!r}."
        elif not _may_link(package):
            # The URL is not shown, since it may contain a password.
            yield (
                f"{package.filename} of ROCm has a URL that is not https, names another"
                " file, or has a user, a query or a fragment."
            )


def _may_link(package: RocmPackage) -> bool:
    try:
        url = parse_url(package.url)
    except RequestError:
        return False
    local = url.scheme == "http" and url.hostname in _LOOPBACK
    named = unquote(url.path).rpartition("/")[2] == package.filename
    bare = not (url.query or url.fragment or "@" in url.netloc)
    return bool(url.hostname) and named and bare and (local or url.scheme == "https")
