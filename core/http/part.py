"""Received bytes of an unfinished download, on disk."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from pathlib import Path

from core.atomic import write_whole
from core.errors import MachineError
from core.http.download import RemoteFile, load_version
from core.unpack.decompress import chunks_of


class PartFile:
    """The first bytes of a file on a server, in a folder that the caller has locked.

    A killed process loses only bytes that were not written yet. Files:

        data          the bytes
        version.json  the version of the file on the server

    Attributes:
        data: path of the bytes.
        size: number of bytes when the object was created.
        version: version of the file on the server; None without bytes.
    """

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self._version = folder / "version.json"
        self.version = load_version(self._version)[0]
        self.size = 0
        if self.version is not None and self.data.exists():
            self.size = self.data.stat().st_size

    def first_bytes(self) -> Generator[bytes]:
        """Return the stored bytes."""
        if self.size:
            with self.data.open("rb", buffering=0) as file:
                yield from chunks_of(file)

    def store(
        self, remote: RemoteFile, chunks: Iterable[memoryview]
    ) -> Generator[memoryview]:
        """Append chunks of a download to the stored bytes, then return each.

        Raises:
            MachineError: the disk is full, or does not work.
        """
        fd = -1
        try:
            for chunk in chunks:
                try:
                    if fd < 0:
                        fd = self._begin(remote)
                    left = chunk
                    while left:
                        left = left[os.write(fd, left) :]
                except OSError as error:
                    raise MachineError(
                        f"Cannot write {self.data}: {error.strerror}.",
                        hint="Free space on that disk, or give another --cache-dir.",
                    ) from error
                yield chunk
        finally:
            if fd >= 0:
                os.close(fd)

    def _begin(self, remote: RemoteFile) -> int:
        self.data.parent.mkdir(parents=True, exist_ok=True)
        if not self.size:
            self.clear()
            write_whole(self._version, remote.version.to_json().encode())
        return os.open(self.data, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def clear(self) -> None:
        """Remove all bytes."""
        for path in (self._version, self.data):
            path.unlink(missing_ok=True)
        self.size = 0
        self.version = None

    def finish(self, path: Path) -> None:
        """Move the complete bytes to a path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.data.replace(path)
        self.clear()
