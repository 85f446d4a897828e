"""Names of TheRock's tarballs, and pages that list them."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urljoin

from packaging.version import InvalidVersion, Version

from core.errors import InputError, RequestError

if TYPE_CHECKING:  # names are parsed without a connection
    from core.http.client import Client

MULTIARCH = "multiarch"
"""Word in place of the family in the name of a tarball for all families."""

_NAME = re.compile(
    r"therock-dist-linux-(?P<family>[A-Za-z0-9-]+?)-(?P<version>[0-9]+\.[0-9][^/\\-]*)\.tar\.(?:gz|xz|zst)"
)
_LISTED = re.compile(r"therock-dist-linux-[A-Za-z0-9_.+%-]+?\.tar\.(?:gz|xz|zst)(?![A-Za-z0-9_.+%-])")


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """One tarball of a listing."""

    name: str
    family: str
    version: str
    url: str


def parse_name(name: str) -> tuple[str, str] | None:
    """Return family and version of a tarball's name; None for other names."""
    match = _NAME.fullmatch(unquote(name))
    if match is None:
        return None
    try:
        Version(match["version"])
    except InvalidVersion:
        return None
    return match["family"], match["version"]


def read_listing(text: str, url: str) -> tuple[Build, ...]:
    """Return the tarballs in a page of HTML, JSON or XML, newest first."""
    builds = {}
    for match in _LISTED.findall(html.unescape(text)):
        name = unquote(match)
        if build := parse_name(name):
            builds[name] = Build(name=name, family=build[0], version=build[1], url=urljoin(url, quote(name)))
    return tuple(sorted(builds.values(), key=lambda b: (Version(b.version), b.family, b.name), reverse=True))


def list_builds(client: Client, url: str) -> tuple[Build, ...]:
    """Return the builds of a listing page, newest first.

    Raises:
        InputError: the page does not exist, or lists no tarball.
    """
    url = url if url.endswith(("/", ".html", ".xml")) or "?" in url else url + "/"
    text = client.text(url)
    builds = read_listing(text or "", url)
    if not builds:
        raise InputError(
            f"{url} {'does not exist' if text is None else 'lists no tarball of TheRock'}.",
            hint="Give the page that lists the tarballs with --therock-listing.",
        )
    return builds


def choose(builds: Sequence[Build], wish: str, families: Sequence[str]) -> Build:
    """Return the newest build that has all families.

    Args:
        wish: nightly, latest, or a version.

    Returns:
        The tarball of a single family if there is only one, else the tarball that has all families.

    Raises:
        RequestError: no build has all families.
    """
    versions = sorted({build.version for build in builds}, key=Version, reverse=True)
    match wish:
        case "nightly":
            candidates = [version for version in versions if Version(version).is_prerelease]
        case "latest":
            candidates = [version for version in versions if not Version(version).is_prerelease]
        case _:
            candidates = [version for version in versions if version == wish]
    for version in candidates:
        there = {build.family: build for build in builds if build.version == version}
        for family in (*families, MULTIARCH) if len(families) == 1 else (MULTIARCH,):
            if family in there:
                return there[family]
    newest = ", ".join(f"{build.family} {build.version}" for build in builds[:4])
    raise RequestError(
        f"No build that matches {wish!r} has a tarball for {' and '.join(families)}.",
        hint=f"The newest are {newest}; see `ci_build rocm list`.",
    )
