"""Entries of a tar stream, parsed by `tarfile` in a single pass.

Ambiguous archives, and archives with entries other than files, folders and links, are
refused.
"""

from __future__ import annotations

import enum
import io
import tarfile
from collections.abc import Iterator
from typing import IO, Self, cast

from core.errors import ArchiveError

BLOCK = tarfile.BLOCKSIZE
_LARGEST_HEADER = 1 << 20
"""Maximum bytes of all headers of one entry; a path has at most 4096 bytes."""


class Kind(enum.StrEnum):
    """The kind of an entry."""

    FILE = "file"
    FOLDER = "folder"
    SYMLINK = "symlink"
    HARDLINK = "hardlink"


_KINDS = dict.fromkeys(
    (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE), Kind.FILE
) | {
    tarfile.LNKTYPE: Kind.HARDLINK,
    tarfile.SYMTYPE: Kind.SYMLINK,
    tarfile.DIRTYPE: Kind.FOLDER,
}
_REFUSED = {
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a named pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


class Blocks:
    """Uncompressed bytes of a tar as pieces that are not copied.

    `tarfile` uses this class as a forward-only file.
    """

    def __init__(self, source: Iterator[bytes]) -> None:
        self._source = source
        self._piece = memoryview(b"")
        self._header = 0
        self.position = 0

    def some(self, most: int) -> memoryview:
        """Return at least one byte and at most `most` bytes.

        The view is valid until the next call.
        """
        while not self._piece:
            try:
                self._piece = memoryview(next(self._source))
            except StopIteration:
                raise ArchiveError(
                    f"The archive is truncated at byte {self.position}.",
                    hint="Fetch it again.",
                ) from None
        taken = self._piece[:most]
        self._piece = self._piece[most:]
        self.position += len(taken)
        return taken

    def skip(self, count: int) -> None:
        """Skip `count` bytes."""
        while count > 0:
            count -= len(self.some(count))

    def rest(self) -> Iterator[memoryview]:
        """Return all remaining bytes."""
        while True:
            if self._piece:
                yield self.some(len(self._piece))
            if (piece := next(self._source, None)) is None:
                return
            self._piece = memoryview(piece)

    def begin_header(self) -> None:
        """Start counting the bytes of an entry's headers, whose size is limited."""
        self._header = 0

    def read(self, count: int) -> bytes:
        """Return exactly `count` bytes of a header."""
        self._header += count
        if self._header > _LARGEST_HEADER:
            raise ArchiveError(
                f"The archive has a header of {count} bytes, which is too long.",
                hint="Do not use it.",
            )
        data = bytearray()
        while len(data) < count:
            data += self.some(count - len(data))
        return bytes(data)

    def tell(self) -> int:
        """Return the number of bytes read so far."""
        return self.position

    def seek(self, position: int, _whence: int = io.SEEK_SET) -> int:
        """Skip bytes up to a position."""
        assert position >= self.position, (
            "`tarfile` seeks forward only, since sizes are not negative"
        )
        self.skip(position - self.position)
        return position


class Entry(tarfile.TarInfo):
    """An entry of the archive with an unchecked path.

    Damaged headers that `tarfile` would mistake for the end of the archive are refused.

    Attributes:
        size: bytes of content; 0 for anything but a file.
    """

    @property
    def kind(self) -> Kind:
        """Kind of the entry; KeyError for a type that `entries` refuses."""
        return _KINDS[self.type]

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        """Read the next header; see `tarfile.TarInfo`."""
        blocks = cast("Blocks", tarfile.fileobj)
        at = blocks.tell()
        try:
            return super().fromtarfile(tarfile)
        except _END:
            raise
        except (_HEADER_ERROR, ValueError) as error:
            raise ArchiveError(
                f"The archive is damaged: no header at byte {at}.",
                hint="Fetch it again.",
            ) from error


_HEADER_ERROR: type[Exception] = tarfile.HeaderError
_END: type[Exception] = tarfile.EOFHeaderError  # type: ignore[attr-defined]


def entries(blocks: Blocks) -> Iterator[Entry]:
    """Return every entry up to the end mark.

    The caller may read an entry's content before it requests the next.

    Raises:
        ArchiveError: the archive is damaged, has no end mark, or contains more than
            files, folders and links.
    """
    blocks.begin_header()
    archive = tarfile.TarFile(
        fileobj=cast("IO[bytes]", blocks),
        tarinfo=Entry,
        encoding="utf-8",
        errors="surrogateescape",
    )
    while (entry := cast("Entry | None", archive.next())) is not None:
        archive.members.clear()  # type: ignore[attr-defined] # `tarfile` would keep all
        if given := archive.pax_headers.keys() & {"path", "linkpath", "size"}:
            words = " and ".join(sorted(given))
            raise ArchiveError(
                f"The archive has a global header that sets one {words} for all"
                " entries.",
                hint="Do not use it.",
            )
        extra = entry.pax_headers
        # Names as in the header: `tarfile` removes trailing slashes.
        entry.name = extra.get("path", entry.name)
        entry.linkname = extra.get("linkpath", entry.linkname)
        _check(entry)
        if entry.kind is not Kind.FILE:
            entry.size = 0
        yield entry
        blocks.begin_header()


def _check(entry: Entry) -> None:
    if entry.issparse() or any(
        key.startswith("GNU.sparse.") for key in entry.pax_headers
    ):
        raise ArchiveError(
            f"The archive has a sparse file: {entry.name!r}.",
            hint="Pack it without --sparse.",
        )
    if entry.type not in _KINDS:
        what = _REFUSED.get(entry.type, f"an entry of the unknown type {entry.type!r}")
        raise ArchiveError(
            f"The archive has {what}: {entry.name!r}.", hint="Do not use it."
        )
    if entry.size < 0:
        raise ArchiveError(
            f"The archive is damaged: {entry.name!r} has {entry.size} bytes.",
            hint="Fetch it again.",
        )
    if entry.kind is Kind.FILE and entry.name.endswith("/"):
        raise ArchiveError(
            f"The archive has a file with the name of a folder: {entry.name!r}.",
            hint="Do not use it.",
        )


def padding(size: int) -> int:
    """Return the number of padding bytes after content of a size."""
    return -size % BLOCK
