"""An output file that is written front to back, in part by copying ranges of other files."""

from __future__ import annotations

import contextlib
import mmap
import os

from core.errors import ArchiveError

ByteRange = tuple[int, int]
"""Bytes [start, end) of a file."""

_CHUNK = 1 << 20


class OutFile:
    """An open file that is appended to.

    Attributes:
        fd: descriptor, open for writing.
        position: bytes written so far.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.position = 0

    def write(self, data: bytes | bytearray | memoryview | mmap.mmap) -> None:
        """Append bytes to the file."""
        rest = memoryview(data)
        while rest:
            count = os.pwrite(self.fd, rest, self.position)
            self.position += count
            rest = rest[count:]

    def copy(self, source: int, offset: int, size: int) -> None:
        """Append `size` bytes of another open file, starting at `offset`.

        Raises:
            ArchiveError: the other file ends too early.
        """
        reserve(self.fd, self.position, size)
        buffer = memoryview(bytearray(min(_CHUNK, size)))
        while size:
            count = os.preadv(source, [buffer[:size]], offset)
            if not count:
                raise ArchiveError(
                    f"The source file ended {size} bytes early while it was copied."
                )
            self.write(buffer[:count])
            offset += count
            size -= count


def reserve(fd: int, offset: int, size: int) -> None:
    """Allocate room for bytes that will be written soon, if the file system supports it.

    On ext4, writing to allocated room takes half the time; reads and writes are then
    faster than copy_file_range, which `cp` uses.
    """
    if size:
        with contextlib.suppress(OSError):
            os.posix_fallocate(fd, offset, size)
