"""Names of TheRock's tarballs, and pages that list them.

Names, and tarballs with tests beside the others: TheRock,
build_tools/build_tarballs.py. A listing is the HTML page of
build_tools/index_generation_s3_tar.py, whose script contains every name, or another
page with links.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urljoin, urlsplit

from packaging.version import InvalidVersion, Version

from core import targets
from core.errors import InputError, RequestError
from core.frozen import frozen
from core.process import without_credentials

if TYPE_CHECKING:  # names are parsed without a connection
    from core.http.client import Client

MULTIARCH = "multiarch"
"""Word in place of the family in the name of a tarball for all families."""
NIGHTLY_DAYS = 3
"""Age in days up to which a build is a nightly."""

_TESTS = "-tests"
"""End of the family in the name of a tarball that also contains tests."""
WINDOWS = "therock-dist-windows-"
"""Start of the names of tarballs for Windows."""

_NAME = re.compile(
    r"therock-dist-linux-(?P<family>[A-Za-z0-9-]+?)-(?P<version>[0-9]+\.[0-9][^/\\-]*)\.tar\.(?:gz|xz|zst)"
)
_LISTED = re.compile(
    r"(?P<folder>(?:[A-Za-z0-9_.~%:@-]*/)*)"
    r"(?P<name>therock-dist-linux-[A-Za-z0-9_.+%-]+?\.tar\.(?:gz|xz|zst))(?![A-Za-z0-9_.+%-])"
)
_NIGHTLY = re.compile(r"[0-9.]+(?:a|rc)([0-9]{8})")


@frozen
class ListedTarball:
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


def nightly_date(version: str) -> date | None:
    """Return the date in a nightly's version, such as 2025-11-20 for 7.10.0a20251120.

    None for other versions.

    Source: TheRock, build_tools/compute_rocm_package_version.py; older nightlies are
    numbered rcYYYYMMDD.
    """
    match = _NIGHTLY.fullmatch(version)
    try:
        return datetime.strptime(match[1], "%Y%m%d").date() if match else None
    except ValueError:
        return None


def check_age(version: str, today: date, hint: str) -> None:
    """Refuse a nightly that is older than `NIGHTLY_DAYS`; other versions have no age.

    Raises:
        InputError: the nightly is too old.
    """
    day = nightly_date(version)
    if day is not None and (age := (today - day).days) > NIGHTLY_DAYS:
        raise InputError(
            f"The newest nightly is {version} of {day}, {age} days old; the limit is"
            f" {NIGHTLY_DAYS} days.",
            hint=hint,
        )


def read_listing(text: str, url: str) -> tuple[ListedTarball, ...]:
    """Return the tarballs without tests in a page of HTML or JSON, newest first."""
    builds = {}
    for link in _links(text, url):
        name = unquote(urlsplit(link).path).rpartition("/")[2]
        if (parts := parse_name(name)) and not parts[0].endswith(_TESTS):
            builds[link] = ListedTarball(
                name=name, family=parts[0], version=parts[1], url=link
            )
    return tuple(
        sorted(
            builds.values(),
            key=lambda b: (Version(b.version), b.family, b.name),
            reverse=True,
        )
    )


def _links(text: str, url: str) -> Iterator[str]:
    """Yield the URLs of tarballs in HTML or JSON.

    The text of a link repeats the name without its folder.
    """
    found: dict[str, set[str]] = {}
    for match in _LISTED.finditer(html.unescape(text).replace("\\/", "/")):
        found.setdefault(unquote(match["name"]), set()).add(match["folder"])
    for name, folders in found.items():
        for folder in sorted(folders - {""}) or [""]:
            yield urljoin(url, folder + quote(name))


def list_builds(client: Client, url: str) -> tuple[ListedTarball, ...]:
    """Return the builds of a listing, newest first.

    Raises:
        InputError: the page does not exist, has no tarball, or is the XML of a bucket on
            S3, which has at most 1000 keys.
    """
    page = url if url.endswith(("/", ".html")) or "?" in url else url + "/"
    text = client.text(page)
    builds = read_listing(text or "", page)
    problem = ""
    if text is None:
        problem = "does not exist"
    elif "<ListBucketResult" in text:
        problem = "is the XML of a bucket"
    elif not builds:
        problem = "lists no tarball of TheRock"
    if problem:
        raise InputError(
            f"{without_credentials(page)} {problem}.",
            hint="Give the page that lists the tarballs with --therock-listing.",
        )
    return builds


def choose(
    builds: Sequence[ListedTarball], wish: str, families: Sequence[str], today: date
) -> ListedTarball:
    """Return the newest build that has all families.

    Args:
        wish: nightly, latest, or a version.
        today: the day from which the age of a nightly is counted.

    Returns:
        The tarball with the fewest targets besides those of the families; the tarball
        of all families is the last choice.

    Raises:
        RequestError: no build has all families, or several have the same name.
        InputError: the newest nightly is too old.
    """
    versions = sorted({build.version for build in builds}, key=Version, reverse=True)
    match wish:
        case "nightly":
            dated = {
                version: day for version in versions if (day := nightly_date(version))
            }
            candidates = sorted(dated, key=lambda version: dated[version], reverse=True)
        case "latest":
            candidates = [
                version for version in versions if not Version(version).is_prerelease
            ]
        case _:
            candidates = [version for version in versions if version == wish]
    for version in candidates:
        fitting = _fitting(
            [build for build in builds if build.version == version], families
        )
        if not fitting:
            continue
        if wish == "nightly":
            hint = (
                f"Give --therock={version} to use it, or --therock-listing with another"
                " page."
            )
            check_age(version, today, hint)
        same = [build.url for build in fitting if build.name == fitting[0].name]
        if len(same) > 1:
            raise RequestError(
                f"The listing has several {fitting[0].name}:"
                f" {', '.join(map(without_credentials, same))}.",
                hint=(
                    "Give one of them with --therock-path, or the listing of one"
                    " folder."
                ),
            )
        return fitting[0]
    newest = ", ".join(f"{build.family} {build.version}" for build in builds[:4])
    raise RequestError(
        f"No build that matches {wish!r} has a tarball for {' and '.join(families)}.",
        hint=(
            f"The newest are {newest}; give another --therock-listing, or"
            " --rocm-version alone for AMD's packages."
        ),
    )


def _fitting(
    builds: Sequence[ListedTarball], families: Sequence[str]
) -> list[ListedTarball]:
    """Return the builds with every target of the families, best first."""
    known = targets.load_table().families
    wanted = set[str]()
    for family in families:
        wanted.update(known.get(family, (MULTIARCH,)))

    def excess(build: ListedTarball) -> tuple[bool, bool, int, str]:
        return (
            build.family == MULTIARCH,
            build.family not in families,
            len(known.get(build.family, ())),
            build.family,
        )

    fits = [
        build
        for build in builds
        if build.family == MULTIARCH or wanted <= set(known.get(build.family, ()))
    ]
    return sorted(fits, key=excess)
