"""Sources of a ROCm, and checks of their names, also for dry runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ci_build.rocm.lock import load_lock
from ci_build.rocm.tarball_listing import MULTIARCH, WINDOWS, parse_name
from core import targets
from core.defaults import defaults
from core.errors import RequestError
from core.model import GfxTarget
from core.os_errors import why_unwritable
from core.process import without_credentials
from core.units import parse_url

SCHEME = "pip+"
"""Prefix of a source that is the URL of an index."""
DNF = "dnf+"
"""Prefix of a source that is a repository URL, from which dnf installs ROCm."""
_LONGEST_NAME = 255
"""Maximum bytes of a file name on Linux."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RocmSource:
    """Origin of a ROCm, and requirements for it.

    Attributes:
        source: URL, tarball or folder; `pip+` and the URL for an index; `dnf+` and the
            URL for a repository.
        index_version: version of the packages of an index; empty uses `version`.
        version: required version; empty accepts any.
        targets: gfx targets of the build; empty if nothing is built.
        sha256: required digest of the tarball, or empty.
        require_checksum: refuse a ROCm whose checksum is not known before it is used.
        full: unpack the whole tarball instead of the files that a build needs.
        lock: path of rocm.lock; None writes no lock.
        locked: refuse a ROCm that differs from the lock.
    """

    source: str
    version: str = ""
    targets: tuple[GfxTarget, ...] = ()
    sha256: str = ""
    require_checksum: bool = False
    full: bool = False
    lock: Path | None = None
    locked: bool = False
    index_version: str = ""

    @property
    def full_version(self) -> str:
        """Full version from the file name, or else from the request; empty if unknown."""
        found = parse_name(file_name(self.source))
        return found[1] if found else self.index_version or self.version


@dataclass(frozen=True, kw_only=True, slots=True)
class RocmStorage:
    """Settings of the cache of ROCms.

    Attributes:
        cache: the cache folder; ROCms are below `rocm`.
        keep_tarballs: keep a tarball after unpacking it.
        limit: maximum bytes of all cached ROCms.
    """

    cache: Path
    keep_tarballs: bool
    limit: int


def is_url(source: str) -> bool:
    """Return whether a source is a URL."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", source) is not None


def file_name(source: str) -> str:
    """Return the last part of a source's URL or path, decoded; empty for a repository."""
    if is_dnf(source):
        return ""
    return (
        unquote(parse_url(source).path).rpartition("/")[2]
        if is_url(source)
        else Path(source).name
    )


def is_index(source: str) -> bool:
    """Return whether a source is an index of pip packages."""
    return source.startswith(SCHEME)


def is_dnf(source: str) -> bool:
    """Return whether a source is a dnf repository."""
    return source.startswith(DNF)


def dnf_source(version: str) -> str:
    """Return the source of a ROCm before 7.9: AMD's repository of a release, such as 7.2.0."""
    return DNF + str(defaults()["rocm_repository"]["url"]).format(
        version=_folder(version)
    )


def dnf_arguments(source: RocmSource) -> dict[str, str]:
    """Return the build arguments of `docker/dnf.Dockerfile`."""
    table = defaults()["rocm_repository"]
    folder = _folder(source.version)
    minor = ".".join(source.version.split(".")[:2])
    graphics = dict.fromkeys(
        url.format(version=folder, minor=minor) for url in table["graphics_urls"]
    )
    return {
        "REPOSITORY": source.source.removeprefix(DNF),
        # dnf tries the URLs in this order.
        "GRAPHICS": " ".join(graphics),
        "KEY": table["key_url"],
        "FINGERPRINT": table["fingerprint"],
        "PACKAGES": " ".join(table["packages"]),
    }


def _folder(version: str) -> str:
    """Return the name of a release's folder in AMD's repositories; that of X.Y.0 is X.Y."""
    return version.removesuffix(".0") if version.count(".") == 2 else version


def check_source(rocm_source: RocmSource) -> None:
    """Refuse a source that cannot be the requested ROCm, without a download.

    Raises:
        RequestError: the URL, archive format, sha256, version or family is invalid; a
            file or folder is missing or is not a ROCm; a required lock is missing, or
            the lock cannot be written.
        ArchiveError: a local tarball is damaged.
        InputError: the lock is not a lock.
    """
    _check_name(rocm_source)
    if (
        rocm_source.sha256
        and re.fullmatch(r"[0-9A-Fa-f]{64}", rocm_source.sha256) is None
    ):
        raise RequestError(
            f"--therock-sha256 is not a SHA-256 digest: {rocm_source.sha256!r}.",
            hint="Give 64 hexadecimal digits.",
        )
    if rocm_source.lock is not None:
        _check_lock(rocm_source.lock, locked=rocm_source.locked)
    if is_index(rocm_source.source) or is_dnf(rocm_source.source):
        return
    if is_url(rocm_source.source) and urlsplit(
        rocm_source.source
    ).scheme.lower() not in ("http", "https"):
        raise RequestError(
            f"{without_credentials(rocm_source.source)!r} is not an http or https URL.",
            hint="Write it like https://host/path/file.tar.gz.",
        )
    path = Path(rocm_source.source)
    name = file_name(rocm_source.source)
    if is_url(rocm_source.source) and (
        "\0" in name or len(name.encode()) > _LONGEST_NAME
    ):
        raise RequestError(
            f"{name[:60]!r} cannot be a file name.",
            hint="Give a URL whose last part is the name of a tarball.",
        )
    if is_url(rocm_source.source) or path.is_file():
        # Start-up time: help does not need the decompressors.
        from core.unpack.decompress import format_of

        format_of(name)
    elif path.is_dir() and rocm_source.sha256:
        raise RequestError(
            "--therock-sha256 applies to a tarball, but a folder was given.",
            hint="Omit --therock-sha256.",
        )
    elif path.is_dir() and rocm_source.require_checksum:
        raise RequestError(
            f"--require-checksum: the folder {path} has no checksum.",
            hint="Give a tarball, or omit --require-checksum.",
        )
    if not is_url(rocm_source.source):
        _check_local(path)


def _check_local(path: Path) -> None:
    """Check that a path is a ROCm by inspecting a few files."""
    if not path.exists():
        raise RequestError(
            f"{path} does not exist.",
            hint="Give a URL, a tarball, or the folder of a ROCm.",
        )
    # Start-up time: help does not need the decompressors.
    from ci_build.rocm import local_rocm

    if path.is_file():
        local_rocm.check_tarball(path)
    else:
        local_rocm.check_folder(path)


def _check_lock(lock: Path, *, locked: bool) -> None:
    """Check that a lock can be read, and written unless it is required."""
    if locked and not lock.exists():
        raise RequestError(
            f"--locked needs {lock}, which does not exist.",
            hint="Run once without --locked to create it.",
        )
    load_lock(lock)
    if not locked and (reason := why_unwritable(lock)):
        raise RequestError(
            f"--rocm-lock={lock} cannot be written: {reason}.",
            hint="Give another --rocm-lock.",
        )


def refuse_windows(source: str) -> None:
    """Refuse a source with the name of a tarball for Windows.

    Raises:
        RequestError: the ROCm is for Windows.
    """
    if (name := file_name(source)).startswith(WINDOWS):
        raise RequestError(
            f"{name} is a ROCm for Windows.",
            hint="Give the tarball for Linux: therock-dist-linux-….",
        )


def _check_name(rocm_source: RocmSource) -> None:
    """Compare the version and family in the source's name with the request."""
    if rocm_source.index_version and rocm_source.version not in (
        "",
        rocm_source.index_version,
    ):
        raise RequestError(
            f"--therock-version {rocm_source.index_version} contradicts --rocm-version"
            f" {rocm_source.version}.",
            hint="Give one of the two.",
        )
    name = file_name(rocm_source.source)
    if (parts := parse_name(name)) is None:
        return
    family, version = parts
    wrong = []
    if rocm_source.version and rocm_source.version != version:
        wrong.append(
            f"{name} is ROCm {version}, but --rocm-version is {rocm_source.version}."
        )
    if family in (families := targets.load_table().families):
        covers = targets.covers()
        outside = [
            str(target)
            for target in rocm_source.targets
            if set(families[family]).isdisjoint(
                covers.get(target.processor, (target.processor,))
            )
        ]
        if outside:
            wrong.append(
                f"{name} is for {family}, but --targets has {', '.join(outside)}."
            )
    if wrong:
        raise RequestError(
            " ".join(wrong),
            hint=(
                "Give the tarball of the requested version and family, or change these"
                " options."
            ),
        )


def check_families(families: Sequence[str]) -> None:
    """Check the families of `--family`.

    Raises:
        RequestError: a family is unknown.
    """
    known_families = targets.load_table().families
    if unknown := [
        family for family in families if family not in (*known_families, MULTIARCH)
    ]:
        raise RequestError(
            f"--family is unknown: {', '.join(unknown)}.",
            hint="See `ci_build targets`.",
        )


def planned_steps(source: RocmSource) -> Iterator[str]:
    """Yield the lines of a dry run about a ROCm."""
    location = without_credentials(source.source)
    if is_dnf(location):
        yield (
            f"install it with dnf from {location.removeprefix(DNF)} in the builder"
            " image"
        )
        yield "copy it from the image unless it is in the cache"
    elif is_url(location) or is_index(location):
        yield f"download {location} unless it is in the cache, and verify it"
    elif Path(location).is_dir():
        yield f"use {location} without copying it"
    else:
        yield f"unpack {location} unless it is in the cache"
    if source.lock is not None:
        yield (
            f"compare it with {source.lock}"
            if source.locked
            else f"record it in {source.lock}"
        )
    if source.require_checksum:
        yield "refuse it without a given, locked or published checksum"
