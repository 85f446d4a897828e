"""Decompression of streams in a second thread, while the first one uses the plain bytes."""

from __future__ import annotations

import lzma
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import IO, Any

import zstandard
from isal import igzip_lib

from core.errors import ArchiveError, RequestError

_PIECE = 1 << 20
_PIECES = 8
_SIP = 4096
_XZ_MEMORY = 256 << 20
"""Four times what `xz -9` needs; a header may ask for 4 GB."""

FORMATS = {".tar.gz": "gz", ".tgz": "gz", ".tar.xz": "xz", ".txz": "xz", ".tar.zst": "zst", ".tzst": "zst"}
"""Endings of the archives that can be read."""

Chunks = Generator[bytes | memoryview]
"""Bytes of a file in order; each chunk is valid until the next one is asked for."""


def format_of(name: str) -> str:
    """Return the compression that a file's name implies.

    Raises:
        RequestError: the ending is unknown.
    """
    for ending, found in FORMATS.items():
        if name.endswith(ending):
            return found
    raise RequestError(f"{name!r} is not a supported tarball.", hint=f"Supported are {', '.join(FORMATS)}.")


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
        compression: a value of `FORMATS`; `tar` for none.
        cancel: ends a wait for the next chunk in the other thread.
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
    """Decompress streams that follow one another.

    The file objects of the libraries copy every byte once more, do not limit the memory of .xz, or do not notice that
    the last .zst frame is cut off.
    """
    if compression == "tar":
        yield from map(bytes, chunks)
        return
    stream, padding, limits = _decompressor(compression), 0, [_PIECE]
    parts: Iterator[bytes | memoryview] = chunks
    if compression == "zst":  # its output cannot be limited, and a few bytes may stand for very many
        parts, limits = (chunk[at : at + _SIP] for chunk in chunks for at in range(0, len(chunk), _SIP)), []
    for chunk in parts:
        data = chunk
        while data:
            if stream is None:
                # Zeros may follow a stream, in .xz four or a multiple of it (The .xz File Format, section 2.2).
                before, data = len(data), data if compression == "zst" else bytes(data).lstrip(b"\0")
                padding += before - len(data)
                if not data:
                    break
                _check_padding(padding, compression)
                stream, padding = _decompressor(compression), 0
            yield stream.decompress(data, *limits)
            while limits and not stream.eof and not stream.needs_input:
                yield stream.decompress(b"", *limits)
            data = b""
            if stream.eof:
                data, stream = stream.unused_data, None
    _check_padding(padding, compression)
    if stream is not None:
        raise EOFError("it ends too early")


def _decompressor(compression: str) -> Any:  # noqa: ANN401 - the libraries share no base class
    match compression:
        case "gz":
            return igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP)
        case "xz":
            return lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY)
        case _:
            return zstandard.ZstdDecompressor().decompressobj()


def _check_padding(count: int, compression: str) -> None:
    if compression == "xz" and count % 4:
        raise lzma.LZMAError("the padding after a stream is damaged")


def _as_archive_error(error: BaseException, compression: str) -> BaseException:
    damage: tuple[Any, ...] = (EOFError, lzma.LZMAError, zstandard.ZstdError, igzip_lib.error)
    if not isinstance(error, damage):
        return error
    if "memory" in str(error).lower():
        return ArchiveError(
            f"Decompressing the archive ({compression}) needs too much memory: {error}.",
            hint="Pack it with a smaller dictionary.",
        )
    return ArchiveError(f"The archive is damaged ({compression}): {error}.", hint="Fetch it again.")
