"""Decompression of streams in a second thread, while the calling thread uses the plain bytes."""

from __future__ import annotations

import io
import lzma
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import IO, Any, cast

import zstandard
from isal import igzip, isal_zlib

from core.errors import ArchiveError, RequestError

_PIECE = 1 << 20
_PIECES = 8
_ZST_WINDOW = 128 << 20
"""Largest window of a .zst frame in bytes, that of `zstd --ultra -22`.

A header may request 2 TB.
"""

FORMATS = {
    ".tar.gz": "gz",
    ".tgz": "gz",
    ".tar.xz": "xz",
    ".txz": "xz",
    ".tar.zst": "zst",
    ".tzst": "zst",
}
"""Supported endings of file names -> compression."""

Chunks = Generator[bytes | memoryview]
"""Bytes of a file in order; each chunk is valid until the next one is requested."""


def format_of(name: str) -> str:
    """Return the compression that a file's name implies.

    Raises:
        RequestError: the ending is unknown.
    """
    for ending, compression in FORMATS.items():
        if name.endswith(ending):
            return compression
    raise RequestError(
        f"{name!r} is not a supported tarball.",
        hint=f"Use one of {', '.join(FORMATS)}.",
    )


def chunks_of(file: IO[bytes]) -> Generator[bytes]:
    """Return the bytes of an open file."""
    while data := file.read(_PIECE):
        yield data


@contextmanager
def decompressed(
    chunks: Chunks, compression: str, cancel: Callable[[], None] = lambda: None
) -> Iterator[Iterator[bytes]]:
    """Return pieces of the plain stream, which a second thread decompresses.

    Args:
        compression: a value of `FORMATS`, or `tar` for an uncompressed stream.
        cancel: callback that ends a wait of the second thread for the next chunk.
    """
    full: queue.SimpleQueue[bytes | BaseException | None] = queue.SimpleQueue()
    room = threading.Semaphore(_PIECES)
    stopped = threading.Event()

    def work() -> None:
        try:
            with closing(chunks):
                for piece in _plain(chunks, compression):
                    room.acquire()
                    if stopped.is_set():
                        return
                    full.put(piece)
            full.put(None)
        except BaseException as error:
            full.put(error)

    def pieces() -> Iterator[bytes]:
        while (piece := full.get()) is not None:
            if isinstance(piece, BaseException):
                raise _as_archive_error(piece, compression) from piece
            room.release()
            yield piece

    thread = threading.Thread(target=work, name="decompress", daemon=True)
    thread.start()
    try:
        yield pieces()
    finally:
        stopped.set()
        room.release()
        cancel()
        thread.join()


def _plain(chunks: Chunks, compression: str) -> Iterator[bytes]:
    """Yield plain bytes; a stream that ends too early lacks the end mark of its tar."""
    if compression == "tar":
        yield from map(bytes, chunks)
        return
    packed = cast("IO[bytes]", _ChunkFile(chunks))
    file: Any
    match compression:
        case "gz":
            file = igzip.IGzipFile(None, "rb", fileobj=packed)  # type: ignore[no-untyped-call]
        case "xz":
            file = lzma.LZMAFile(packed)  # noqa: SIM115 - closed below
        case _:
            frames = zstandard.ZstdDecompressor(max_window_size=_ZST_WINDOW)
            file = frames.stream_reader(packed, read_across_frames=True)
    with file:
        while piece := file.read(_PIECE):
            yield piece


class _ChunkFile(io.RawIOBase):
    """File object over chunks of bytes that is read once."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - any buffer
        """Copy the next bytes to a buffer, and return their number; 0 at the end."""
        self._left = self._left or memoryview(next(self._chunks, b""))
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


def _as_archive_error(error: BaseException, compression: str) -> BaseException:
    damage: tuple[Any, ...] = (
        EOFError,
        lzma.LZMAError,
        zstandard.ZstdError,
        isal_zlib.error,
        igzip.BadGzipFile,
    )
    if not isinstance(error, damage):
        return error
    return ArchiveError(
        f"The archive is damaged ({compression}): {error}.", hint="Fetch it again."
    )
