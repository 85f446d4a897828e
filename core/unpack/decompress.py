"""Decompression of streams in a second thread, while the calling thread uses the plain bytes."""

from __future__ import annotations

import io
import lzma
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import IO, Any

import zstandard
from isal import igzip, isal_zlib

from core.errors import ArchiveError, RequestError

_PIECE = 1 << 20
_PIECES = 8
_XZ_MEMORY = 256 << 20
"""Memory limit of xz in bytes, four times the need of `xz -9`; a header may request 4 GB."""
_ZST_WINDOW = 128 << 20
"""Largest window of a .zst frame in bytes, that of `zstd --ultra -22`.

A header may request 2 TB.
"""
_ZST_BLOCK = 128 << 10
"""Largest block of a .zst frame in bytes, packed or plain (RFC 8878, section 3.1.1.2.4)."""
_ZST_MAGIC = 0xFD2FB528
_ZST_SKIPPABLE = 0x184D2A50
_ZST_RLE = 1
_BAD_PADDING = "the padding after a stream is damaged"
_TRUNCATED = "the last stream is truncated"

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
    match compression:
        case "tar":
            yield from map(bytes, chunks)
        case "gz":
            with igzip.IGzipFile(None, "rb", fileobj=_ChunkFile(chunks)) as file:  # type: ignore[no-untyped-call]
                yield from iter(lambda: file.read(_PIECE), b"")
        case "xz":
            yield from _xz_streams(chunks)
        case _:
            yield from _zst_frames(io.BufferedReader(_ChunkFile(chunks), _PIECE))


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
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count


def _xz_streams(chunks: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Decompress concatenated .xz streams.

    Zeros may follow each, in multiples of four (The .xz File Format, 2.2).

    The file object of lzma does not limit the memory.
    """
    stream: lzma.LZMADecompressor | None = lzma.LZMADecompressor(
        lzma.FORMAT_XZ, _XZ_MEMORY
    )
    zeros = 0
    for chunk in chunks:
        data = bytes(chunk)
        while data:
            if stream is None:
                before = len(data)
                data = data.lstrip(b"\0")
                zeros += before - len(data)
                if not data:
                    break
                if zeros % 4:
                    raise lzma.LZMAError(_BAD_PADDING)
                stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY)
                zeros = 0
            yield stream.decompress(data, _PIECE)
            while not (stream.eof or stream.needs_input):
                yield stream.decompress(b"", _PIECE)
            data = stream.unused_data
            if stream.eof:
                stream = None
    if zeros % 4:
        raise lzma.LZMAError(_BAD_PADDING)
    if stream is not None:
        raise EOFError(_TRUNCATED)


def _zst_frames(file: io.BufferedReader) -> Iterator[bytes]:
    """Decompress concatenated .zst frames (RFC 8878, section 3.1)."""
    first = _read(file, 1)
    while first:
        start = first + _read(file, 4)
        magic = int.from_bytes(start[:4], "little")
        if magic & ~0xF == _ZST_SKIPPABLE:
            left = int.from_bytes(start[4:] + _read(file, 3), "little")
            while left:
                left -= len(_read(file, min(left, _PIECE)))
        elif magic == _ZST_MAGIC:
            yield from _zst_frame(start, file)
        else:
            raise zstandard.ZstdError("no frame starts where one is expected")
        first = file.read(1)


def _zst_frame(start: bytes, file: io.BufferedReader) -> Iterator[bytes]:
    """Decompress one frame, whose first five bytes were read, block by block.

    zstandard does not limit its output, and four bytes may expand to a block; its file
    object, which does, does not detect a truncated last frame.
    """
    stream = zstandard.ZstdDecompressor(max_window_size=_ZST_WINDOW).decompressobj()
    stream.decompress(
        start + _read(file, zstandard.frame_header_size(start) - len(start))
    )
    last = 0
    while not last:
        block = _read(file, 3)
        header = int.from_bytes(block, "little")
        last = header & 1
        kind = header >> 1 & 3
        size = header >> 3
        if size > _ZST_BLOCK:
            raise zstandard.ZstdError(f"a block has {size} bytes")
        yield stream.decompress(block + _read(file, 1 if kind == _ZST_RLE else size))
    if not stream.eof:  # a checksum follows
        yield stream.decompress(_read(file, 4))


def _read(file: io.BufferedReader, count: int) -> bytes:
    if len(data := file.read(count)) < count:
        raise EOFError(_TRUNCATED)
    return data


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
    if "memory" in str(error).lower():
        return ArchiveError(
            f"Decompressing the archive ({compression}) needs too much memory: {error}.",
            hint="Pack it with a smaller dictionary.",
        )
    return ArchiveError(
        f"The archive is damaged ({compression}): {error}.", hint="Fetch it again."
    )
