"""Compression of new members with libdeflate, whose output is the same on every machine."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import deflate
from isal import isal_zlib

from core.digests import sha256_of
from core.errors import ArchiveError
from wheelkit.archive.inflate import InflateError, inflate, packed_chunks
from wheelkit.archive.zip_format import DEFLATED, STORED

if TYPE_CHECKING:  # re-tagging a wheel needs no threads
    from concurrent.futures import ThreadPoolExecutor

LEVEL = 5
"""Level of libdeflate.

Level 6 makes the library of XLA 0.8 % smaller and takes a fifth more time.
"""

Content = bytes | mmap.mmap


class Compressed(NamedTuple):
    """Data of a member as the archive stores it.

    Attributes:
        method: compression method; the content is stored if compression does not make
            it smaller.
        crc32: CRC-32 of the content.
    """

    method: int
    data: bytearray | Content
    crc32: int


def compress(name: str, content: Content) -> Compressed:
    """Compress the content of a member as a whole, and verify the result with another library.

    Raises:
        ArchiveError: the compressed data does not inflate to the content.
    """
    packed = deflate.deflate_compress(content, LEVEL)
    crc = isal_zlib.crc32(content)
    if _inflated(name, packed) != (len(content), crc):
        raise _failed(name, "it inflates to other content")
    if len(packed) < len(content):
        return Compressed(DEFLATED, packed, crc)
    return Compressed(STORED, content, crc)


def compressor() -> dict[str, str | int]:
    """Return the package, version and level that determine the compressed bytes."""
    return {"package": "deflate", "version": deflate.__version__, "level": LEVEL}


def _inflated(name: str, packed: bytearray) -> tuple[int, int]:
    """Return the size and CRC-32 of the inflated data."""
    size = crc = 0
    view = memoryview(packed)
    try:
        for chunk in inflate(
            packed_chunks(lambda count, at: view[at : at + count], 0, len(view))
        ):
            size += len(chunk)
            crc = isal_zlib.crc32(chunk, crc)
    except InflateError as error:
        raise _failed(name, str(error)) from error
    return size, crc


def _failed(name: str, problem: str) -> ArchiveError:
    return ArchiveError(
        f"{name} was compressed wrongly: {problem}.",
        hint="Test the memory of this machine.",
    )


class FileCompression:
    """A file that two threads compress and hash; both release the GIL.

    The file is mapped, so its pages belong to the page cache, and only the compressed
    data takes new memory.
    """

    def __init__(self, pool: ThreadPoolExecutor, name: str, path: Path) -> None:
        with path.open("rb") as file:
            self.size = path.stat().st_size
            # An empty file cannot be mapped.
            content: Content = (
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                if self.size
                else b""
            )
        self._compressed = pool.submit(compress, name, content)
        self._sha256 = pool.submit(sha256_of, content)

    def result(self) -> tuple[Compressed, str]:
        """Wait for the compressed data and the SHA-256 of the content."""
        return self._compressed.result(), self._sha256.result()


@contextmanager
def compress_files(files: Mapping[str, Path]) -> Iterator[dict[str, FileCompression]]:
    """Begin to compress files, given by member name; the block ends the threads."""
    if not files:
        yield {}
        return
    # Start-up time: re-tagging a wheel needs no threads.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        try:
            yield {
                name: FileCompression(pool, name, path) for name, path in files.items()
            }
        finally:
            pool.shutdown(cancel_futures=True)
