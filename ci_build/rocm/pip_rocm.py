"""ROCm as pip packages.

Their wheels become one tar stream of the prefix that `rocm-sdk init` creates.

A wheel cannot contain links, so `rocm-sdk-devel` contains a tar of the whole prefix, in
which files of other packages are links. This module replaces the links with the files;
`rocm-sdk init` replaces them with hard links. A list in `rocm-sdk-device-*` maps files
of the package to paths of the prefix. No code of a package is run.

Source: TheRock, docs/packaging/python_packaging.md and
build_tools/packaging/python/templates/rocm (2026-08).
"""

from __future__ import annotations

import json
import posixpath
import tarfile
import zipfile
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from core.digests import sha256_of
from core.errors import ArchiveError, InputError
from core.frozen import frozen
from core.model import RocmPackage
from core.unpack.decompress import chunks_of, decompressed
from core.unpack.tar import Blocks, Entry, Kind, entries, padding

CORE, DEVEL, LIBRARIES, DEVICE = (
    "rocm-sdk-core",
    "rocm-sdk-devel",
    "rocm-sdk-libraries",
    "rocm-sdk-device",
)
"""Names of ROCm's pip packages."""
_PREFIX = "_rocm_sdk_devel"
_PARTS = "_rocm_sdk_"
_TARS = {"rocm_sdk_devel/_devel.tar": "tar", "rocm_sdk_devel/_devel.tar.xz": "xz"}
_LINKS = "/.devel_links/"
_PIECE = 1 << 20
_END = bytes(2 * 512)


@frozen
class Packages:
    """The packages of one ROCm.

    Attributes:
        version: full version of all wheels; empty for packages that dnf installed.
        files: file name -> path of a wheel; empty for packages that dnf installed.
        sha256: file name -> sha256 of a wheel, or name and version -> sha256 of the
            header of an installed package.
        wheels: the wheels with their URLs; empty for packages that dnf installed.
    """

    version: str
    files: Mapping[str, Path]
    sha256: Mapping[str, str]
    wheels: tuple[RocmPackage, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of the names and digests of all packages.

        Part of the tree's name in the store.
        """
        lines = "".join(
            f"{digest}  {name}\n" for name, digest in sorted(self.sha256.items())
        )
        return sha256_of(lines.encode())

    @property
    def size(self) -> int:
        """Bytes of all wheels."""
        return sum(path.stat().st_size for path in self.files.values())


@dataclass(kw_only=True, slots=True)
class _Site:
    """Members of all wheels by their path in site-packages."""

    members: dict[str, tuple[zipfile.ZipFile, zipfile.ZipInfo]] = field(
        default_factory=dict
    )
    tars: list[tuple[zipfile.ZipFile, str]] = field(default_factory=list)

    def add(self, wheel: zipfile.ZipFile) -> None:
        for info in wheel.infolist():
            if info.filename in _TARS:
                self.tars.append((wheel, info.filename))
            elif info.filename.startswith(_PARTS) and not info.is_dir():
                self.members[info.filename] = (wheel, info)

    def file(self, name: str, path: str) -> Generator[bytes]:
        """Yield a tar entry `name` with the content of the member at `path`."""
        wheel, info = self.members[path]
        yield _tar_header(
            name, size=info.file_size, mode=(info.external_attr >> 16) & 0o777 or 0o644
        )
        with wheel.open(info) as content:
            yield from chunks_of(content)
        yield bytes(padding(info.file_size))


def prefix_of(wheels: Sequence[Path]) -> Generator[bytes]:
    """Return the prefix as a plain tar stream.

    Raises:
        InputError: the wheels do not form a prefix.
        ArchiveError: a wheel is damaged.
    """
    with ExitStack() as stack:
        site = _Site()
        for path in sorted(wheels):
            try:
                site.add(stack.enter_context(zipfile.ZipFile(path)))
            except zipfile.BadZipFile as error:
                raise ArchiveError(
                    f"{path.name} is not a wheel: {error}.",
                    hint="Download the wheel again.",
                ) from error
        if len(site.tars) != 1:
            raise InputError(
                f"{DEVEL} must contain one of {' and '.join(_TARS)}, but has {len(site.tars)}.",
                hint="Give a supported version of the packages, or a tarball.",
            )
        try:
            yield from _prefix(site)
        except (zipfile.BadZipFile, zlib.error) as error:
            raise ArchiveError(
                f"A wheel of ROCm is damaged: {error}.",
                hint="Download the wheels again.",
            ) from error
    yield _END


def _prefix(site: _Site) -> Generator[bytes]:
    below = f"{_PREFIX}/"
    own = {
        path
        for path in site.members
        if path.startswith(below if _LINKS in path else _PREFIX)
    }
    written: set[str] = set()
    root = ""
    wheel, name = site.tars[0]
    with (
        wheel.open(name) as packed,
        decompressed(chunks_of(packed), _TARS[name]) as pieces,
    ):
        blocks = Blocks(pieces)
        for entry in entries(blocks):
            path = posixpath.normpath(entry.name)
            root = root or path.partition("/")[0]
            if path.partition("/")[0] != root or not root.startswith(_PREFIX):
                raise ArchiveError(
                    f"{name} has an entry outside its prefix: {entry.name!r}.",
                    hint="Give another version.",
                )
            written.add(path)
            yield from _entry(site, entry, path, root, blocks)
    for path in sorted(own - written):
        yield from site.file(path.partition("/")[2], path)
        written.add(path)
    for path, target in _device_links(site, root):
        if path not in written:
            written.add(path)
            yield from site.file(path.partition("/")[2], target)


def _entry(
    site: _Site, entry: Entry, path: str, root: str, blocks: Blocks
) -> Generator[bytes]:
    """Yield an entry of the tar with its path in the prefix."""
    name = path.partition("/")[2]
    if entry.kind is Kind.FILE:
        yield _tar_header(name, size=entry.size, mode=entry.mode & 0o777)
        left = entry.size + padding(entry.size)
        while left:
            piece = bytes(blocks.some(min(left, _PIECE)))
            left -= len(piece)
            yield piece
    elif entry.kind is Kind.SYMLINK:
        leads = posixpath.normpath(
            posixpath.join(posixpath.dirname(path), entry.linkname)
        )
        if leads.partition("/")[0] == root:
            yield _tar_header(name, kind=tarfile.SYMTYPE, link=entry.linkname)
        elif leads in site.members:
            yield from site.file(name, leads)
        elif inside := sorted(
            member for member in site.members if member.startswith(f"{leads}/")
        ):
            for member in inside:
                yield from site.file(f"{name}{member.removeprefix(leads)}", member)
        else:
            raise InputError(
                f"{DEVEL} links to {leads}, which no package contains.",
                hint="Give packages of one version.",
            )
    elif entry.kind is Kind.HARDLINK:
        yield _tar_header(
            name,
            kind=tarfile.LNKTYPE,
            link=posixpath.normpath(entry.linkname).partition("/")[2],
        )


def _device_links(site: _Site, root: str) -> Iterator[tuple[str, str]]:
    """Yield each file of the device packages.

    Its path in the prefix, and the member with its content.
    """
    for path, (wheel, info) in sorted(site.members.items()):
        if _LINKS not in path or not path.endswith(".json"):
            continue
        try:
            rows = [
                (row["relpath"], row["target"])
                for row in json.loads(wheel.read(info))["links"]
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} is not a list of links: {error!r}.",
                hint="Give another version.",
            ) from error
        for relative, target in rows:
            there = posixpath.join(root, relative)
            leads = posixpath.normpath(posixpath.join(posixpath.dirname(there), target))
            if leads not in site.members:
                raise InputError(
                    f"{path} links to {leads}, which no package contains.",
                    hint="Download the packages again.",
                )
            yield there, leads


def _tar_header(
    name: str,
    *,
    size: int = 0,
    mode: int = 0o644,
    kind: bytes = tarfile.REGTYPE,
    link: str = "",
) -> bytes:
    """Return the header of a tar entry."""
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = mode
    info.type = kind
    info.linkname = link
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
