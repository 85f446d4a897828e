"""Plain bytes of a compressed stream, made by a second thread while the first one uses them."""

from __future__ import annotations

import io
import lzma
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, cast

import zstandard
from isal import igzip, isal_zlib

from core.errors import ArchiveError
from core.unpack.xz import XzFile

_PIECE = 1 << 20
_PIECES = 8
_SIP = 4096


class Stream(Protocol):
    """Bytes that are read once."""

    def read(self, count: int = -1, /) -> bytes | None:
        """At most so many; none at the end."""

    def close(self) -> None:
        """May be called while another thread reads, and ends that."""


@contextmanager
def decompressed(stream: Stream, compression: str) -> Iterator[Iterator[memoryview]]:
    """Pieces of the plain stream, made by a thread; each is good until the next one is asked for."""
    free: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
    full: queue.SimpleQueue[tuple[bytearray, int] | BaseException] = queue.SimpleQueue()
    stopped = threading.Event()
    for _ in range(_PIECES):
        free.put(bytearray(_PIECE))

    def work() -> None:
        try:
            with _plain(stream, compression) as plain:
                while not stopped.is_set():
                    buffer = free.get()
                    count = plain.readinto(buffer)
                    full.put((buffer, count))
                    if not count:
                        return
        except BaseException as error:
            full.put(error)

    def pieces() -> Iterator[memoryview]:
        while True:
            got = full.get()
            if isinstance(got, BaseException):
                raise _as_archive_error(got, compression) from got
            buffer, count = got
            if not count:
                return
            yield memoryview(buffer)[:count]
            free.put(buffer)

    thread = threading.Thread(target=work, name="decompress", daemon=True)
    thread.start()
    try:
        yield pieces()
    except BaseException:
        stream.close()  # wakes the thread where it waits for bytes
        raise
    finally:
        stopped.set()
        free.put(bytearray(_PIECE))
        thread.join()


def _plain(stream: Stream, compression: str) -> io.BufferedIOBase:
    reader: Any
    source: Any = stream
    match compression:
        case "gz":
            reader = igzip.IGzipFile(None, "rb", fileobj=source)  # type: ignore[no-untyped-call]
        case "xz":
            reader = XzFile(source)
        case "tar":
            reader = source
        case _:
            reader = _Zstandard(source)
    return cast("io.BufferedIOBase", reader)


class _Zstandard(io.RawIOBase):
    """One or more frames; unlike the library's own reader it knows when the last one is cut off."""

    def __init__(self, source: Stream) -> None:
        self._source = source
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._input = self._output = memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - any buffer
        """The next plain bytes; 0 at the end."""
        while not self._output:
            if not self._input:
                self._input = memoryview(self._source.read(_PIECE) or b"")
                if not self._input:
                    if self._frame is not None:
                        raise EOFError("it ends too early")
                    return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            # A few bytes may stand for very many.
            some, self._input = self._input[:_SIP], self._input[_SIP:]
            self._output = memoryview(self._frame.decompress(some))
            if self._frame.eof:
                self._input = memoryview(self._frame.unused_data + bytes(self._input))
                self._frame = None
        count = min(len(buffer), len(self._output))
        buffer[:count] = self._output[:count]
        self._output = self._output[count:]
        return count


def _as_archive_error(error: BaseException, compression: str) -> BaseException:
    damage: tuple[Any, ...] = (EOFError, lzma.LZMAError, zstandard.ZstdError, isal_zlib.error, igzip.BadGzipFile)
    if isinstance(error, damage) and "memory" in str(error).lower():
        return ArchiveError(
            f"The archive needs too much memory: as {compression} it fails: {error}.",
            hint="Pack it with a smaller dictionary.",
        )
    if isinstance(error, damage):
        return ArchiveError(f"The archive is damaged: as {compression} it fails: {error}.", hint="Fetch it again.")
    return error
