"""Writing one file front to back, partly by copying ranges of another file inside the kernel."""

from __future__ import annotations

import errno
import os

from ci_build.errors import ArchiveError
from ci_build.wheel.zipformat import full_pread

_CHUNK = 1 << 20
_NOT_HERE = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
"""What copy_file_range says where the file systems or the kernel cannot do it (copy_file_range(2))."""


class OutFile:
    """Appends to an open file.

    Attributes:
        fd: descriptor, open for writing.
        position: bytes written so far.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.position = 0

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self.position += _write_at(self.fd, data, self.position)

    def patch(self, data: bytes, offset: int) -> None:
        """Overwrite bytes that were written before."""
        _write_at(self.fd, data, offset)

    def copy(self, source: int, offset: int, size: int) -> None:
        """Append `size` bytes of another open file from `offset` on.

        Raises:
            ArchiveError: that file is shorter.
        """
        done = self._copy_in_kernel(source, offset, size)
        while done < size:
            data = full_pread(source, min(_CHUNK, size - done), offset + done)
            if not data:
                raise ArchiveError(f"A file that is being copied ends {size - done} bytes early.")
            self.write(data)
            done += len(data)

    def _copy_in_kernel(self, source: int, offset: int, size: int) -> int:
        """How many bytes the kernel copied; 0 where it cannot."""
        done = 0
        try:
            while done < size:
                count = os.copy_file_range(source, self.fd, min(size - done, 1 << 30), offset + done, self.position)
                if count == 0:
                    break
                done += count
                self.position += count
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
        return done


def _write_at(fd: int, data: bytes, offset: int) -> int:
    rest = memoryview(data)
    while rest:
        count = os.pwrite(fd, rest, offset)
        offset += count
        rest = rest[count:]
    return len(data)
