"""ROCm from .deb files: the packages of a folder become one tar stream of the prefix that they install.

AMD's packages install everything below one folder: /opt/rocm-7.2.0, or /opt/rocm/core-7.14 for those of TheRock;
other files are ignored. Scripts of packages are not run.

Sources: deb(5) and ar(5); TheRock, build_tools/packaging/linux.
"""

from __future__ import annotations

import io
import posixpath
import re
import tarfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import IO

from ci_build.rocm.packages import tar_file, tar_header
from core.errors import ArchiveError, InputError
from core.unpack.decompress import decompressed
from core.unpack.tar import Blocks, Entry, Kind, entries, padding

_MAGIC = b"!<arch>\n"
_HEADER = 60
_PIECE = 1 << 20
_DATA = {"data.tar": "tar", "data.tar.gz": "gz", "data.tar.xz": "xz", "data.tar.zst": "zst"}
_PREFIX = re.compile(r"/opt/(rocm/core(?:-[\w.+~-]+)?|rocm(?:-[\w.+~-]+)?(?!/extras-))(?:/(.*))?")


class Prefix:
    """The folder below /opt into which all packages of one ROCm install.

    Attributes:
        root: path of the folder; empty until a package installs a file there.
    """

    def __init__(self) -> None:
        self.root = ""

    def inside(self, path: str, package: str) -> str:
        """Return an installed path relative to the prefix; empty for a path outside of /opt/rocm….

        Raises:
            InputError: another package installs into another prefix.
        """
        match = _PREFIX.fullmatch(posixpath.normpath(f"/{path.lstrip('/')}"))
        if match is None or not match[2]:
            return ""
        self.root = self.root or match[1]
        if self.root != match[1]:
            raise InputError(
                f"{package} installs into /opt/{match[1]}, but other packages into /opt/{self.root}.",
                hint="Give a folder with the packages of one ROCm.",
            )
        return match[2]

    def link(self, name: str, target: str) -> str:
        """Return the target of a symbolic link; an absolute one becomes relative, so that it stays in the tree."""
        if target.startswith("/"):
            return posixpath.relpath(target, posixpath.dirname(f"/opt/{self.root}/{name}"))
        return target

    def end(self) -> bytes:
        """Return the end mark of the tar stream.

        Raises:
            InputError: no package installs a file into a prefix.
        """
        if not self.root:
            raise InputError(
                "None of the packages installs anything into /opt/rocm.", hint="Give AMD's packages of ROCm."
            )
        return bytes(2 * 512)


def joined(files: Sequence[Path], installed: Callable[[Path, Prefix], Generator[bytes]]) -> Generator[bytes]:
    """Return the prefix that all packages install into as a plain tar stream.

    Args:
        installed: function that yields the tar entries that one package adds to the prefix.

    Raises:
        InputError: the packages do not form one prefix.
        ArchiveError: a package is damaged.
    """
    prefix = Prefix()
    for path in files:
        try:
            yield from installed(path, prefix)
        except ArchiveError as error:
            message = error.message.removeprefix(f"{path.name}: ")
            raise ArchiveError(f"{path.name}: {message}", hint=error.hint or "Fetch it again.") from error
    yield prefix.end()


def prefix_of_debs(files: Sequence[Path]) -> Generator[bytes]:
    """Return the prefix of .deb files as a plain tar stream; see `joined`."""
    return joined(files, _installed)


def _installed(path: Path, prefix: Prefix) -> Generator[bytes]:
    """Yield the tar entries that one package adds to the prefix."""
    with path.open("rb") as file, decompressed(*_content(file)) as pieces:
        blocks = Blocks(pieces)
        for entry in entries(blocks):
            name = "" if entry.kind is Kind.FOLDER else prefix.inside(entry.name, path.name)
            if name:
                yield from _entry(entry, name, prefix, blocks)
            else:
                blocks.skip(entry.size + padding(entry.size))


def _entry(entry: Entry, name: str, prefix: Prefix, blocks: Blocks) -> Generator[bytes]:
    if entry.kind is Kind.FILE:
        yield from tar_file(name, entry, blocks)
    elif entry.kind is Kind.SYMLINK:
        yield tar_header(name, kind=tarfile.SYMTYPE, link=prefix.link(name, entry.linkname))
    else:
        link = posixpath.normpath(f"/{entry.linkname}").removeprefix(f"/opt/{prefix.root}/")
        yield tar_header(name, kind=tarfile.LNKTYPE, link=link)


def _content(file: IO[bytes]) -> tuple[Generator[bytes], str]:
    """Return the archive of installed files in a package, and its compression."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ArchiveError("Not a Debian package.")
    while len(header := file.read(_HEADER)) == _HEADER:
        member = header[:16].decode("ascii", "replace").rstrip(" /")
        size = header[48:58].decode("ascii", "replace").strip()
        if header[58:] != b"`\n" or not size.isdecimal():
            break
        if member in _DATA:
            return _read(file, int(size)), _DATA[member]
        file.seek(int(size) + int(size) % 2, io.SEEK_CUR)
    raise ArchiveError(f"The package has no data member: {', '.join(_DATA)}.")


def _read(file: IO[bytes], count: int) -> Generator[bytes]:
    while data := file.read(min(count, _PIECE)):
        count -= len(data)
        yield data
