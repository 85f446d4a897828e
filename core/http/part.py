"""Received bytes of an unfinished download, on disk."""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import Self

from core.atomic import write_whole
from core.errors import MachineError
from core.http import download
from core.http.download import FileVersion, load_version

_NUMBER = struct.Struct("=Q")
_READ = 1 << 20
_LARGEST_PIECE = 64 << 20


class PartFile:
    """The received bytes of an unfinished download, in a folder that the caller has locked.

    Each received byte is written before the next one is read, so that a killed process
    loses none. Files:

        data          the bytes at their places, with holes
        received      the size of a piece, then the number of bytes that arrived at the
        beginning of each piece; all are
                      64-bit numbers in the machine's byte order
        version.json  the version of the file on the server

    Attributes:
        data: path of the bytes.
        piece: size of a piece in bytes.
        version: version of the file on the server; None if nothing was received.
        begun: whether any byte was received.
        prefix: number of bytes that were received without a hole before them.

    The attributes are of the time when the object was created, or its `with` block
    ended.
    """

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self._received = folder / "received"
        self._version = folder / "version.json"
        self._files: tuple[int, int] | None = None
        self._load()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._files is not None:
            for fd in self._files:
                os.close(fd)
            self._files = None
        self._load()
        if not self.begun:
            self.clear()

    def begin(self, version: FileVersion) -> None:
        """Record the version of the file, and open the files for `write` and `read`, once.

        Raises:
            MachineError: the files cannot be created.
        """
        if self._files is not None:
            return
        try:
            self.data.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._version, version.to_json().encode())
            # Nothing was received, or by a version of this program that left no holes.
            if not self._counts:
                full, rest = divmod(self.prefix, self.piece)
                write_whole(
                    self._received,
                    array("Q", [self.piece, *[self.piece] * full, rest]).tobytes(),
                )
            flags = os.O_RDWR | os.O_CREAT
            self._files = (
                os.open(self.data, flags, 0o644),
                os.open(self._received, flags, 0o644),
            )
        except OSError as error:
            raise self._unwritable(error) from error

    def write(self, start: int, data: bytes | memoryview) -> None:
        """Store received bytes; threads may write to different pieces concurrently.

        Args:
            start: offset of the bytes; all earlier bytes of the same piece were
                received.

        Raises:
            MachineError: the disk is full, or does not work.
        """
        assert self._files is not None
        view, (file, received) = memoryview(data), self._files
        try:
            while view:
                number, offset = divmod(start, self.piece)
                size = os.pwrite(file, view[: self.piece - offset], start)
                # After the data, so that a killed process never counts bytes that it
                # did not write.
                os.pwrite(
                    received, _NUMBER.pack(offset + size), _NUMBER.size * (number + 1)
                )
                start = start + size
                view = view[size:]
        except OSError as error:
            raise self._unwritable(error) from error

    def read(self, start: int, into: memoryview) -> int:
        """Copy stored bytes of one piece into a buffer.

        Args:
            start: offset of the bytes; it and the end of the buffer are in the same
                piece.

        Returns:
            Number of bytes that were received earlier and are in the buffer now.
        """
        assert self._files is not None
        number, offset = divmod(start, self.piece)
        count = self._counts[number] if number < len(self._counts) else 0
        size = max(0, min(count - offset, len(into)))
        return os.preadv(self._files[0], [into[:size]], start) if size else 0

    def first_bytes(self) -> Generator[bytes]:
        """Return the bytes before the first hole."""
        left = self.prefix
        if not left:
            return
        with self.data.open("rb", buffering=0) as file:
            while left and (data := file.read(min(_READ, left))):
                left -= len(data)
                yield data

    def clear(self) -> None:
        """Remove all bytes."""
        for path in (self._version, self._received, self.data):
            path.unlink(missing_ok=True)
        self._load()

    def finish(self, path: Path) -> None:
        """Move the complete bytes to a path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.data.replace(path)
        self.clear()

    def _load(self) -> None:
        self.piece = download.PIECE
        self._counts = array("Q")
        self.prefix = 0
        self.version = load_version(self._version)[0]
        self.begun = False
        size = self.data.stat().st_size if self.data.exists() else 0
        if not self._received.exists():
            self.prefix = size
            self.begun = size > 0
            return
        numbers = self._received.read_bytes()
        counts = array("Q", numbers[: len(numbers) // _NUMBER.size * _NUMBER.size])
        if counts and 0 < counts[0] <= _LARGEST_PIECE:
            self.piece = counts[0]
            self._counts = counts[1:]
            full = next(
                (at for at, count in enumerate(self._counts) if count != self.piece),
                len(self._counts),
            )
            rest = self._counts[full] if full < len(self._counts) else 0
            self.prefix, self.begun = (
                min(size, full * self.piece + rest),
                any(self._counts),
            )

    def _unwritable(self, error: OSError) -> MachineError:
        return MachineError(
            f"Cannot write {self.data}: {error.strerror}.",
            hint="Free space on that disk, or give another --cache-dir.",
        )
