"""Sources of a ROCm, and checks of a request for one, also for dry runs.

An option or a lock names a source as text: a URL or path, or `pip+` and the URL of a pip
index, or `dnf+` and the URL of a dnf repository. `parse_source` reads this text once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ci_build.rocm.lock import RocmLock
from ci_build.rocm.tarball_listing import MULTIARCH, WINDOWS, parse_name
from core import targets
from core.defaults import defaults
from core.errors import RequestError
from core.frozen import frozen
from core.model import GfxTarget
from core.os_errors import why_unwritable
from core.process import without_credentials
from core.units import parse_url

PIP = "pip+"
DNF = "dnf+"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
"""Start of a URL, also of one that lacks a slash."""
_LONGEST_NAME = 255
"""Maximum bytes of a file name on Linux."""


@frozen
class TarballUrl:
    """A tarball on a server.

    Attributes:
        url: its URL, perhaps with a password.
        name: its file name.
        family, version: as in the names of TheRock's tarballs; empty for other names.
    """

    url: str
    name: str
    family: str = ""
    version: str = ""

    def __str__(self) -> str:
        """Return the URL without credentials."""
        return without_credentials(self.url)

    def describe(self) -> str:
        """Return the line of a dry run."""
        return f"download {self} unless it is in the cache, and verify it"


@frozen
class TarballFile:
    """A tarball on this machine; its attributes are those of `TarballUrl`."""

    path: Path
    name: str
    family: str = ""
    version: str = ""

    def __str__(self) -> str:
        """Return the path."""
        return str(self.path)

    def describe(self) -> str:
        """Return the line of a dry run."""
        return f"unpack {self} unless it is in the cache"


@frozen
class Folder:
    """A ROCm on this machine, used in place."""

    path: Path
    version: str = ""

    def __str__(self) -> str:
        """Return the path."""
        return str(self.path)

    def describe(self) -> str:
        """Return the line of a dry run."""
        return f"use {self} without copying it"


@frozen
class PipIndex:
    """An index of ROCm's pip packages.

    Attributes:
        version: version of the packages; empty for that of the request.
    """

    url: str
    version: str = ""

    def __str__(self) -> str:
        """Return the source without credentials."""
        return PIP + without_credentials(self.url)

    def describe(self) -> str:
        """Return the line of a dry run."""
        return f"download {self} unless it is in the cache, and verify it"


@frozen
class DnfRepository:
    """A repository from which dnf installs ROCm in the builder image."""

    url: str
    version: str = ""

    def __str__(self) -> str:
        """Return the source without credentials."""
        return DNF + without_credentials(self.url)

    def describe(self) -> str:
        """Return the line of a dry run."""
        url = without_credentials(self.url)
        return (
            f"install it with dnf from {url} in the builder image, and copy it unless it"
            " is in the cache"
        )


RocmSource = TarballUrl | TarballFile | Folder | PipIndex | DnfRepository
"""Origin of a ROCm; its text has no credentials."""


def parse_source(text: str) -> RocmSource:
    """Return the source that an option or a lock names.

    Raises:
        RequestError: the text is no URL, or names a tarball for Windows.
    """
    if text.startswith(PIP):
        return PipIndex(url=text.removeprefix(PIP))
    if text.startswith(DNF):
        return DnfRepository(url=text.removeprefix(DNF))
    is_url = _URL.match(text) is not None
    path = Path(text)
    if not is_url and path.is_dir():
        return Folder(path=path)
    name = path.name
    if is_url:
        name = unquote(parse_url(text).path).rpartition("/")[2]
    if name.startswith(WINDOWS):
        raise RequestError(
            f"{name} is a ROCm for Windows.",
            hint="Give the tarball for Linux: therock-dist-linux-….",
        )
    family, named = parse_name(name) or ("", "")
    if is_url:
        return TarballUrl(url=text, name=name, family=family, version=named)
    return TarballFile(path=path, name=name, family=family, version=named)


@frozen
class RocmRequest:
    """A ROCm to obtain, and requirements for it.

    Attributes:
        version: required version; empty accepts any.
        targets: gfx targets of the build; empty if nothing is built.
        sha256: required digest of the tarball, or empty.
        require_checksum: refuse a ROCm whose checksum is not known before it is used.
        full: unpack the whole tarball instead of the files that a build needs.
        lock: path of rocm.lock; None writes no lock.
        pinned: content of that file; None if there is none.
        locked: refuse a ROCm that differs from the lock.
    """

    source: RocmSource
    version: str = ""
    targets: tuple[GfxTarget, ...] = ()
    sha256: str = ""
    require_checksum: bool = False
    full: bool = False
    lock: Path | None = None
    pinned: RocmLock | None = None
    locked: bool = False

    @property
    def full_version(self) -> str:
        """Version that the source names, or else the required one; empty if unknown."""
        return self.source.version or self.version


@frozen
class RocmStorage:
    """Settings of the cache of ROCms.

    Attributes:
        cache: the cache folder; ROCms are below `rocm`.
        limit: maximum bytes of all cached ROCms.
    """

    cache: Path
    limit: int


def dnf_repository(version: str) -> DnfRepository:
    """Return AMD's repository of a release before 7.9, such as 7.2.0."""
    template = str(defaults()["rocm_repository"]["url"])
    return DnfRepository(url=template.format(version=_folder(version)))


def dnf_arguments(request: RocmRequest | None) -> dict[str, str]:
    """Return the build arguments of `docker/dnf.Dockerfile`; empty for other sources."""
    if request is None or not isinstance(request.source, DnfRepository):
        return {}
    table = defaults()["rocm_repository"]
    folder = _folder(request.version)
    minor = ".".join(request.version.split(".")[:2])
    graphics = dict.fromkeys(
        url.format(version=folder, minor=minor) for url in table["graphics_urls"]
    )
    return {
        "REPOSITORY": request.source.url,
        # dnf tries the URLs in this order.
        "GRAPHICS": " ".join(graphics),
        "KEY": table["key_url"],
        "FINGERPRINT": table["fingerprint"],
        "PACKAGES": " ".join(table["packages"]),
    }


def _folder(version: str) -> str:
    """Return the name of a release's folder in AMD's repositories; that of X.Y.0 is X.Y."""
    return version.removesuffix(".0") if version.count(".") == 2 else version


def check_request(request: RocmRequest) -> None:
    """Refuse a source that cannot be the requested ROCm, without a download.

    Raises:
        RequestError: the URL, archive format, sha256, version or family is invalid; a
            file or folder is missing or is not a ROCm; or the lock cannot be written.
        ArchiveError: a local tarball is damaged.
    """
    _check_name(request)
    if request.sha256 and not re.fullmatch(r"[0-9A-Fa-f]{64}", request.sha256):
        raise RequestError(
            f"--therock-sha256 is not a SHA-256 digest: {request.sha256!r}.",
            hint="Give 64 hexadecimal digits.",
        )
    writes = request.lock if not request.locked else None
    if writes is not None and (reason := why_unwritable(writes)):
        raise RequestError(
            f"--rocm-lock={writes} cannot be written: {reason}.",
            hint="Give another --rocm-lock.",
        )
    if isinstance(request.source, Folder):
        _check_folder(request, request.source)
    else:
        check_place(request.source)


def check_place(source: RocmSource) -> None:
    """Refuse an invalid URL, a missing file or folder, and another file than a ROCm.

    Raises:
        RequestError: the source is one of these.
        ArchiveError: a local tarball is damaged.
    """
    # Start-up time: help does not need the decompressors.
    from ci_build.rocm.local_rocm import check_folder, check_tarball

    match source:
        case TarballUrl() as tarball:
            _check_url(tarball)
        case TarballFile(path=path) if path.exists():
            check_tarball(path)
        case TarballFile(path=path):
            raise RequestError(
                f"{path} does not exist.",
                hint="Give an https URL, a tarball, or the folder of a ROCm.",
            )
        case Folder(path=path):
            check_folder(path)


def _check_url(tarball: TarballUrl) -> None:
    # Start-up time: help does not need the decompressors.
    from core.unpack.decompress import format_of

    parts = urlsplit(tarball.url)
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        raise RequestError(
            f"{str(tarball)!r} is not an http or https URL.",
            hint="Write it like https://host/path/file.tar.gz, or give a path.",
        )
    name = tarball.name
    if not name or "\0" in name or len(name.encode()) > _LONGEST_NAME:
        raise RequestError(
            f"{str(tarball)[:200]!r} does not end in the name of a file.",
            hint="Give a URL whose last part is the name of a tarball.",
        )
    format_of(tarball.name)


def _check_folder(request: RocmRequest, folder: Folder) -> None:
    # Start-up time: help does not need the decompressors.
    from ci_build.rocm import facts

    if request.sha256:
        raise RequestError(
            "--therock-sha256 applies to a tarball, but a folder was given.",
            hint="Omit --therock-sha256.",
        )
    if request.require_checksum:
        raise RequestError(
            f"--require-checksum: the folder {folder.path} has no checksum.",
            hint="Give a tarball, or omit --require-checksum.",
        )
    check_place(folder)
    facts.check_folder(folder.path, request.full_version, request.targets)


def _check_name(request: RocmRequest) -> None:
    """Compare the version and family that a source names with the request."""
    source = request.source
    differs = request.version and source.version not in ("", request.version)
    if isinstance(source, PipIndex) and differs:
        raise RequestError(
            f"ROCm {source.version} of the index contradicts --rocm-version"
            f" {request.version}.",
            hint="Omit --rocm-version, or give the locked one.",
        )
    if not isinstance(source, TarballUrl | TarballFile):
        return
    wrong = []
    if differs:
        wrong.append(
            f"{source.name} is ROCm {source.version}, but --rocm-version is"
            f" {request.version}."
        )
    if outside := _targets_outside(source.family, request.targets):
        wrong.append(
            f"{source.name} is for {source.family}, but --targets has"
            f" {', '.join(outside)}."
        )
    if wrong:
        raise RequestError(
            " ".join(wrong),
            hint=(
                "Give the tarball of the requested version and family, or change these"
                " options."
            ),
        )


def _targets_outside(family: str, wanted: Sequence[GfxTarget]) -> list[str]:
    """Return the targets that no processor of a family serves."""
    families = targets.load_table().families
    if family not in families:
        return []
    covers = targets.covers()
    outside = []
    for target in wanted:
        served = covers.get(target.processor, (target.processor,))
        if set(families[family]).isdisjoint(served):
            outside.append(str(target))
    return outside


def check_families(families: Sequence[str]) -> None:
    """Check the families of `--family`.

    Raises:
        RequestError: a family is unknown.
    """
    known = (*targets.load_table().families, MULTIARCH)
    if unknown := [family for family in families if family not in known]:
        raise RequestError(
            f"--family is unknown: {', '.join(unknown)}.",
            hint="See `ci_build targets`.",
        )


def planned_steps(request: RocmRequest) -> Iterator[str]:
    """Yield the lines of a dry run about a ROCm."""
    yield request.source.describe()
    if request.lock is not None:
        verb = "compare it with" if request.locked else "record it in"
        yield f"{verb} {request.lock}"
    if request.require_checksum:
        yield "refuse it without a given, locked or published checksum"
