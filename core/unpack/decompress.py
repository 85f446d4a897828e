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
_SIP = 4096
_XZ_MEMORY = 256 << 20
"""Memory limit of xz in bytes, four times the need of `xz -9`; a header may request 4 GB."""
_BAD_PADDING = "the padding after a stream is damaged"

FORMATS = {".tar.gz": "gz", ".tgz": "gz", ".tar.xz": "xz", ".txz": "xz", ".tar.zst": "zst", ".tzst": "zst"}
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
    raise RequestError(f"{name!r} is not a supported tarball.", hint=f"Use one of {', '.join(FORMATS)}.")


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
    room, stopped = threading.Semaphore(_PIECES), threading.Event()

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
            yield from _streams(chunks, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY), padded=True)
        case _:
            # zstandard cannot limit its output, and a few bytes may expand to very many; so the input is split.
            parts = (chunk[at : at + _SIP] for chunk in chunks for at in range(0, len(chunk), _SIP))
            yield from _streams(parts, zstandard.ZstdDecompressor().decompressobj, padded=False)


class _ChunkFile(io.RawIOBase):
    """File object over chunks of bytes that is read once."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks, self._left = chunks, memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - any buffer
        """Copy the next bytes to a buffer, and return their number; 0 at the end."""
        self._left = self._left or memoryview(next(self._chunks, b""))
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count


def _streams(chunks: Iterable[bytes | memoryview], start: Callable[[], Any], *, padded: bool) -> Iterator[bytes]:
    """Decompress concatenated streams.

    The file objects of the libraries do not limit the memory of .xz, and do not detect a truncated last .zst stream.

    Args:
        start: factory of the decompressor of one stream.
        padded: whether zeros may follow a stream, in multiples of four (The .xz File Format, section 2.2).
    """
    stream, zeros = start(), 0
    for chunk in chunks:
        data = bytes(chunk)
        while data:
            if stream is None:
                before, data = len(data), data.lstrip(b"\0") if padded else data
                zeros += before - len(data)
                if not data:
                    break
                if zeros % 4:
                    raise lzma.LZMAError(_BAD_PADDING)
                stream, zeros = start(), 0
            yield stream.decompress(data, _PIECE) if padded else stream.decompress(data)
            while padded and not (stream.eof or stream.needs_input):
                yield stream.decompress(b"", _PIECE)
            data = stream.unused_data
            if stream.eof:
                stream = None
    if zeros % 4:
        raise lzma.LZMAError(_BAD_PADDING)
    if stream is not None:
        raise EOFError("the last stream is truncated")


def _as_archive_error(error: BaseException, compression: str) -> BaseException:
    damage: tuple[Any, ...] = (EOFError, lzma.LZMAError, zstandard.ZstdError, isal_zlib.error, igzip.BadGzipFile)
    if not isinstance(error, damage):
        return error
    if "memory" in str(error).lower():
        return ArchiveError(
            f"Decompressing the archive ({compression}) needs too much memory: {error}.",
            hint="Pack it with a smaller dictionary.",
        )
    return ArchiveError(f"The archive is damaged ({compression}): {error}.", hint="Fetch it again.")
