"""Safe extraction of a compressed tar stream to a read-only tree, while the stream arrives.

No file is written through a link, outside of the tree, twice, or beyond the limits.
Decompression and writing run in parallel.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from isal import isal_zlib

from core.errors import ArchiveError
from core.frozen import frozen
from core.unpack.decompress import Chunks, decompressed
from core.unpack.tar import Blocks, Entry, Kind, entries, padding
from core.unpack.tree_contents import Contents, Item

_LONGEST_END = 1 << 20
"""Maximum number of bytes after the end mark.

Tar pads to records of 10 kB, other programs to larger ones.
"""
_READ_ONLY = 0o555
_LONGEST_PATH = 4096
_LONGEST_NAME = 255
_DEEPEST = 64

Wanted = Callable[[str], bool]


@frozen
class Limits:
    """Limits of an archive; a full ROCm for every target has about 60 GB in 100,000 files."""

    size: int = 200_000_000_000
    entries: int = 1_000_000


_LIMITS = Limits()


def extract(
    chunks: Chunks,
    compression: str,
    into: Path,
    *,
    wanted: Wanted = lambda _: True,
    limits: Limits = _LIMITS,
    cancel: Callable[[], None] = lambda: None,
) -> Contents:
    """Unpack a tarball into an empty folder.

    Args:
        chunks: bytes of the tarball; a second thread reads them to the end, and ends
            before this function returns.
        compression, cancel: as in `decompressed`.
        wanted: returns whether to unpack a path; folders are created as needed.

    Raises:
        ArchiveError: the archive is damaged, unsafe, ambiguous or too large; the folder
            must be discarded.
    """
    with (
        decompressed(chunks, compression, cancel) as pieces,
        _Tree(into, limits) as tree,
    ):
        blocks = Blocks(pieces)
        for entry in entries(blocks):
            tree.add(entry, blocks, wanted)
        end = blocks.position
        for piece in blocks.rest():
            if bytes(piece).strip(b"\0") or blocks.position - end > _LONGEST_END:
                raise ArchiveError(
                    "The archive has data after its end.", hint="Do not use it."
                )
        tree.finish()
        return tree.contents


class _Tree:
    """Tree during its extraction; every path is checked against all earlier paths."""

    def __init__(self, root: Path, limits: Limits) -> None:
        self.contents: Contents = {}
        self._root = root
        self._limits = limits
        self._fd = -1
        self._made = {""}
        self._size = self._count = 0

    def __enter__(self) -> _Tree:
        self._fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def add(self, entry: Entry, blocks: Blocks, wanted: Wanted) -> None:
        """Write one entry, or record that it was not unpacked."""
        path = _safe(entry.name)
        self._count += 1
        self._size += entry.size
        if self._count > self._limits.entries or self._size > self._limits.size:
            raise ArchiveError(
                f"The archive has more than {self._limits.entries} entries or"
                f" {self._limits.size} bytes.",
                hint="Do not use it; it may be designed to fill the disk.",
            )
        if entry.kind is Kind.FOLDER:
            if path in self.contents and self.contents[path].kind is not Kind.FOLDER:
                raise _twice(path)
            if path:
                self.contents[path] = Item(kind=Kind.FOLDER, taken=False)
            return
        if not path or path in self.contents or path in self._made:
            raise _twice(path)
        if not wanted(path):
            blocks.skip(entry.size + padding(entry.size))
            self.contents[path] = Item(
                kind=entry.kind, size=entry.size, taken=False, link=entry.linkname
            )
            return
        self._folder(path.rpartition("/")[0])
        match entry.kind:
            case Kind.FILE:
                self.contents[path] = self._file(path, entry, blocks)
            case Kind.SYMLINK:
                self.contents[path] = self._symlink(path, entry.linkname)
            case _:
                self.contents[path] = self._hardlink(path, entry.linkname)

    def finish(self) -> None:
        """Check the targets of symbolic links, and make the folders read-only."""
        root = os.path.realpath(self._root)
        for path, item in self.contents.items():
            if item.taken and item.kind is Kind.SYMLINK:
                real = os.path.realpath(os.path.join(root, path))  # noqa: PTH118 - a path that is no Path yet
                if real != root and not real.startswith(root + os.sep):
                    raise _leaves(path, item.link)
        for folder in sorted(self._made, reverse=True):
            if folder:
                os.chmod(folder, _READ_ONLY, dir_fd=self._fd)
                self.contents[folder] = Item(kind=Kind.FOLDER, mode=_READ_ONLY)
        os.fchmod(self._fd, _READ_ONLY)

    def _folder(self, path: str) -> None:
        """Create a folder and its parents."""
        if path in self._made:
            return
        self._folder(path.rpartition("/")[0])
        if path in self.contents and self.contents[path].kind is not Kind.FOLDER:
            raise ArchiveError(
                f"The archive has an entry below {path!r}, which is no folder.",
                hint="Do not use it.",
            )
        os.mkdir(path, 0o755, dir_fd=self._fd)
        self._made.add(path)

    def _file(self, path: str, entry: Entry, blocks: Blocks) -> Item:
        mode = entry.mode & 0o555 | 0o400
        crc = 0
        left = entry.size
        fd = os.open(
            path,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            mode,
            dir_fd=self._fd,
        )
        try:
            while left:
                piece = blocks.some(left)
                crc = isal_zlib.crc32(piece, crc)
                left -= len(piece)
                while piece:
                    piece = piece[os.write(fd, piece) :]
            if (
                stat.S_IMODE(os.fstat(fd).st_mode) != mode
            ):  # the umask removed bits; fstat is faster than fchmod
                os.fchmod(fd, mode)
        finally:
            os.close(fd)
        blocks.skip(padding(entry.size))
        return Item(kind=Kind.FILE, mode=mode, size=entry.size, crc=crc)

    def _symlink(self, path: str, link: str) -> Item:
        inside = os.path.normpath(f"{path.rpartition('/')[0]}/{link}".lstrip("/"))
        if (
            not link
            or link.startswith("/")
            or "\0" in link
            or inside == ".."
            or inside.startswith("../")
        ):
            raise _leaves(path, link)
        os.symlink(link, path, dir_fd=self._fd)
        return Item(kind=Kind.SYMLINK, link=link)

    def _hardlink(self, path: str, link: str) -> Item:
        first = _safe(link)
        item = self.contents.get(first)
        if item is None or item.kind not in (Kind.FILE, Kind.HARDLINK):
            raise ArchiveError(
                f"The archive links {path!r} to {link!r}, which is not a file in it.",
                hint="Do not use it.",
            )
        if not item.taken:
            raise ArchiveError(
                f"{path} is a hard link to {first}, which is not unpacked.",
                hint="Add --rocm-full.",
            )
        os.link(
            first, path, src_dir_fd=self._fd, dst_dir_fd=self._fd, follow_symlinks=False
        )
        return Item(
            kind=Kind.HARDLINK,
            mode=item.mode,
            size=item.size,
            crc=item.crc,
            link=item.link or first,
        )


def _safe(name: str) -> str:
    """Return the path below the root, with single `/` and without `.`; empty for the root."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    bad = (
        name.startswith("/")
        or ".." in parts
        or "\0" in name
        or len(name) > _LONGEST_PATH
        or len(parts) > _DEEPEST
    )
    if bad or (
        len(os.fsencode(name)) > _LONGEST_NAME
        and any(len(os.fsencode(p)) > _LONGEST_NAME for p in parts)
    ):
        raise ArchiveError(
            f"The archive has an unsafe path: {name[:200]!r}.", hint="Do not use it."
        )
    return "/".join(parts)


def _twice(path: str) -> ArchiveError:
    return ArchiveError(
        f"The archive has two entries for {path or '.'!r}.", hint="Do not use it."
    )


def _leaves(path: str, link: str) -> ArchiveError:
    return ArchiveError(
        f"The archive links {path!r} to {link!r}, outside the target folder.",
        hint="Do not use it.",
    )
