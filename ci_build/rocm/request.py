"""Sources of a ROCm, and checks of their names, also for dry runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ci_build.rocm.listing import MULTIARCH, WINDOWS, parse_name
from ci_build.rocm.lock import load_lock
from ci_build.rocm.package_folder import packages_in, wheels_version
from core import targets
from core.errors import RequestError
from core.model import GfxTarget
from core.os_errors import why_unwritable
from core.process import without_credentials
from core.units import parse_url

SCHEME = "pip+"
"""Prefix of a source that is the URL of an index."""
DNF, APT = "dnf+", "apt+"
"""Prefixes of a source that is a repository: a URL; or a URL, a suite and components, with spaces between them."""
_DEB_LINE = re.compile(r"deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)((?:\s+[^\s\[]\S*)*)\s*")
_LONGEST_NAME = 255
"""Maximum bytes of a file name on Linux."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RepositoryRequest:
    """Key and packages of an apt or dnf repository.

    Attributes:
        key: file with the keys that may sign; None for the key at `key_url` with `fingerprint`.
        packages: names of the packages to install; empty selects `dnf_packages` or `apt_packages`.
    """

    key: Path | None
    key_url: str
    fingerprint: str
    packages: tuple[str, ...]
    dnf_packages: tuple[str, ...]
    apt_packages: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RocmSource:
    """Origin of a ROCm, and requirements for it.

    Attributes:
        source: URL, tarball or folder; `pip+` and the URL for an index; `dnf+` or `apt+` and a repository.
        index_version: version of the packages of an index; empty uses `version`.
        version: required version; empty accepts any.
        targets: gfx targets of the build; empty if nothing is built.
        sha256: required digest of the tarball, or empty.
        require_checksum: refuse a ROCm whose checksum is not known before it is used.
        full: unpack the whole tarball instead of the files that a build needs.
        lock: path of rocm.lock; None writes no lock.
        locked: refuse a ROCm that differs from the lock.
        repository: key and packages of a repository; None for other sources, and for the locked packages.
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
    repository: RepositoryRequest | None = None

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
    if is_repository(source):
        return ""
    return unquote(parse_url(source).path).rpartition("/")[2] if is_url(source) else Path(source).name


def is_index(source: str) -> bool:
    """Return whether a source is an index of pip packages."""
    return source.startswith(SCHEME)


def is_repository(source: str) -> bool:
    """Return whether a source is an apt or dnf repository."""
    return source.startswith((DNF, APT))


def repository_source(text: str) -> str:
    """Return the source of a repository: the URL of a dnf repository, or a `deb` line of sources.list.

    Raises:
        RequestError: the text is neither, or has options of apt other than the architecture.
    """
    match = _DEB_LINE.fullmatch(text.strip())
    url = match[2] if match else text.strip()
    parts = parse_url(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"\s", url):
        raise RequestError(
            f"--rocm-repo is not a repository: {without_credentials(text)!r}.",
            hint="Give the URL of a dnf repository, or a line like 'deb https://host/apt jammy main'.",
        )
    if match is None:
        return DNF + url
    if (options := match[1] or "").strip() not in ("", "arch=amd64"):
        raise RequestError(
            f"--rocm-repo has options that are not supported: [{options}].",
            hint="Omit them; --rocm-repo-key names the key.",
        )
    suite, components = match[3], match[4].split()
    if bool(components) == suite.endswith("/"):
        raise RequestError(
            f"--rocm-repo needs a suite with components, or a path that ends with a slash: {suite!r}.",
            hint="Write it like 'deb https://host/apt jammy main'.",
        )
    return " ".join((APT + url, suite, *components))


def check_source(rocm_source: RocmSource) -> None:
    """Refuse a source that cannot be the requested ROCm, without a download.

    Raises:
        RequestError: the URL, archive format, sha256, version or family is invalid; a file or folder is missing or is
            not a ROCm; a required lock is missing, or the lock cannot be written.
        ArchiveError: a local tarball is damaged.
        InputError: the lock is not a lock.
    """
    _check_name(rocm_source)
    if rocm_source.sha256 and re.fullmatch(r"[0-9A-Fa-f]{64}", rocm_source.sha256) is None:
        raise RequestError(
            f"--therock-sha256 is not a SHA-256 digest: {rocm_source.sha256!r}.", hint="Give 64 hexadecimal digits."
        )
    if rocm_source.lock is not None:
        _check_lock(rocm_source.lock, locked=rocm_source.locked)
    if is_index(rocm_source.source) or is_repository(rocm_source.source):
        return
    if is_url(rocm_source.source) and urlsplit(rocm_source.source).scheme.lower() not in ("http", "https"):
        raise RequestError(
            f"{without_credentials(rocm_source.source)!r} is not an http or https URL.",
            hint="Write it like https://host/path/file.tar.gz.",
        )
    path, name = Path(rocm_source.source), file_name(rocm_source.source)
    if is_url(rocm_source.source) and ("\0" in name or len(name.encode()) > _LONGEST_NAME):
        raise RequestError(
            f"{name[:60]!r} cannot be a file name.", hint="Give a URL whose last part is the name of a tarball."
        )
    if is_url(rocm_source.source) or path.is_file():
        from core.unpack.decompress import format_of  # Start-up time: help does not need the decompressors.

        format_of(name)
    elif path.is_dir() and rocm_source.sha256:
        raise RequestError(
            "--therock-sha256 applies to a tarball, but a folder was given.", hint="Omit --therock-sha256."
        )
    elif path.is_dir() and rocm_source.require_checksum and not packages_in(rocm_source.source):
        raise RequestError(
            f"--require-checksum: the folder {path} has no checksum.",
            hint="Give a tarball or packages, or omit --require-checksum.",
        )
    if not is_url(rocm_source.source):
        _check_local(path, rocm_source.version)


def _check_local(path: Path, version: str) -> None:
    """Check that a path is a ROCm of a version, as far as a look at few files tells; an empty version accepts any."""
    if not path.exists():
        raise RequestError(f"{path} does not exist.", hint="Give a URL, a tarball, or the folder of a ROCm.")
    from ci_build.rocm import local  # Start-up time: help does not need the decompressors.

    if path.is_file():
        local.check_tarball(path)
        return
    packages = packages_in(str(path))
    if not packages:
        local.check_folder(path)
    found = wheels_version(packages)
    if version and found not in ("", version):
        raise RequestError(
            f"The wheels in {path} are ROCm {found}, but --rocm-version is {version}.",
            hint="Give wheels of the requested version, or omit --rocm-version.",
        )


def _check_lock(lock: Path, *, locked: bool) -> None:
    """Check that a lock can be read, and written unless it is required."""
    if locked and not lock.exists():
        raise RequestError(
            f"--locked needs {lock}, which does not exist.", hint="Run once without --locked to create it."
        )
    load_lock(lock)
    if not locked and (reason := why_unwritable(lock)):
        raise RequestError(f"--rocm-lock={lock} cannot be written: {reason}.", hint="Give another --rocm-lock.")


def refuse_windows(source: str) -> None:
    """Refuse a source with the name of a tarball for Windows.

    Raises:
        RequestError: the ROCm is for Windows.
    """
    if (name := file_name(source)).startswith(WINDOWS):
        raise RequestError(f"{name} is a ROCm for Windows.", hint="Give the tarball for Linux: therock-dist-linux-….")


def _check_name(rocm_source: RocmSource) -> None:
    """Compare the version and family in the source's name with the request."""
    if rocm_source.index_version and rocm_source.version not in ("", rocm_source.index_version):
        raise RequestError(
            f"--therock-version {rocm_source.index_version} contradicts --rocm-version {rocm_source.version}.",
            hint="Give one of the two.",
        )
    name = file_name(rocm_source.source)
    if (parts := parse_name(name)) is None:
        return
    family, version = parts
    wrong = []
    if rocm_source.version and rocm_source.version != version:
        wrong.append(f"{name} is ROCm {version}, but --rocm-version is {rocm_source.version}.")
    if family in (families := targets.load_table().families):
        covers = targets.covers()
        outside = [
            str(target)
            for target in rocm_source.targets
            if set(families[family]).isdisjoint(covers.get(target.processor, (target.processor,)))
        ]
        if outside:
            wrong.append(f"{name} is for {family}, but --targets has {', '.join(outside)}.")
    if wrong:
        raise RequestError(
            " ".join(wrong), hint="Give the tarball of the requested version and family, or change these options."
        )


def check_families(families: Sequence[str]) -> None:
    """Check the families of `--family`.

    Raises:
        RequestError: a family is unknown.
    """
    known_families = targets.load_table().families
    if unknown := [family for family in families if family not in (*known_families, MULTIARCH)]:
        raise RequestError(f"--family is unknown: {', '.join(unknown)}.", hint="See `ci_build targets`.")


def planned_steps(source: RocmSource) -> Iterator[str]:
    """Yield the lines of a dry run about a ROCm."""
    location = without_credentials(source.source)
    if is_repository(location):
        known = source.repository
        key = known and (str(known.key) if known.key else f"{known.key_url} ({known.fingerprint})")
        yield f"read the repository {location[len(DNF) :]} unless its packages are locked"
        yield "download packages with all that they need unless they are in the cache"
        yield f"verify them by {f'signatures of {key}' if key and not source.locked else 'their sha256 in the lock'}"
    elif is_url(location) or is_index(location):
        yield f"download {location} unless it is in the cache, and verify it"
    elif Path(location).is_dir() and not packages_in(location):
        yield f"use {location} without copying it"
    else:
        yield f"unpack {location} unless it is in the cache"
    if source.lock is not None:
        yield f"compare it with {source.lock}" if source.locked else f"record it in {source.lock}"
    if source.require_checksum:
        yield "refuse it without a given, locked or published checksum"
