"""Decompression of streams in a second thread, while the first one uses the plain bytes."""

from __future__ import annotations

import io
import lzma
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, cast

import zstandard
from isal import igzip, isal_zlib

from core.errors import ArchiveError, RequestError

_PIECE = 1 << 20
_PIECES = 8
_SIP = 4096
_XZ_MEMORY = 256 << 20
"""Four times what `xz -9` needs; a header may ask for 4 GB."""


FORMATS = {".tar.gz": "gz", ".tgz": "gz", ".tar.xz": "xz", ".txz": "xz", ".tar.zst": "zst", ".tzst": "zst"}
"""Endings of the archives that can be read."""


class Stream(Protocol):
    """Bytes that are read once."""

    def read(self, count: int = -1, /) -> bytes | None:
        """Return at most that many bytes; none at the end."""

    def close(self) -> None:
        """Close the stream, also while another thread reads from it."""


def format_of(name: str) -> str:
    """Return the compression that a file's name implies.

    Raises:
        RequestError: the ending is unknown.
    """
    for ending, found in FORMATS.items():
        if name.endswith(ending):
            return found
    raise RequestError(f"{name!r} is not a supported tarball.", hint=f"Supported are {', '.join(FORMATS)}.")


class Feed(io.RawIOBase):
    """A file of chunks that is read once.

    Args:
        halt: Called when it is closed; ends the wait for a chunk.
    """

    def __init__(self, chunks: Iterator[bytes | memoryview], halt: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        self._chunks, self._halt = chunks, halt
        self._left = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override] # a buffer of any kind
        """Fill a buffer with the next bytes; 0 at the end."""
        while not self._left:
            if (chunk := next(self._chunks, None)) is None:
                return 0
            self._left = memoryview(chunk)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        self.count += count
        return count

    def close(self) -> None:
        """Cancel the source."""
        if not self.closed:
            self._halt()
        super().close()


@contextmanager
def decompressed(stream: Stream, compression: str) -> Iterator[Iterator[memoryview]]:
    """Return pieces of the plain stream from a second thread; each is valid until the next one is asked for."""
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
            reader = _Xz(source)
        case "tar":
            reader = source
        case _:
            reader = _Zstandard(source)
    return cast("io.BufferedIOBase", reader)


class _Xz(io.RawIOBase):
    """One or more .xz streams and the padding between them; a dictionary may take no more than `_XZ_MEMORY`."""

    def __init__(self, source: Stream) -> None:
        self._source = source
        self._stream: lzma.LZMADecompressor | None = lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY)
        self._input, self._padding = b"", 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - any buffer
        """Fill a buffer with the next plain bytes; 0 at the end."""
        while True:
            if self._stream is None or (self._stream.needs_input and not self._input):
                self._input = self._input or self._source.read(_PIECE) or b""
                if not self._input:
                    if self._stream is not None:
                        raise EOFError("it ends too early")
                    self._check_padding()
                    return 0
            if self._stream is None:
                # Zeros may follow a stream, four or a multiple of it (The .xz File Format, section 2.2).
                before, self._input = len(self._input), self._input.lstrip(b"\0")
                self._padding += before - len(self._input)
                if not self._input:
                    continue
                self._check_padding()
                self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, _XZ_MEMORY)
            data = self._stream.decompress(self._input, len(buffer))
            self._input = b""
            if self._stream.eof:
                self._input, self._stream = self._stream.unused_data, None
            if data:
                buffer[: len(data)] = data
                return len(data)

    def _check_padding(self) -> None:
        if self._padding % 4:
            raise lzma.LZMAError("the padding after a stream is damaged")
        self._padding = 0


class _Zstandard(io.RawIOBase):
    """One or more frames; unlike the library's own reader it knows when the last one is cut off."""

    def __init__(self, source: Stream) -> None:
        self._source = source
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._input = self._output = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - any buffer
        """Fill a buffer with the next plain bytes; 0 at the end."""
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
            f"Decompressing the archive ({compression}) needs too much memory: {error}.",
            hint="Pack it with a smaller dictionary.",
        )
    if isinstance(error, damage):
        return ArchiveError(f"The archive is damaged ({compression}): {error}.", hint="Fetch it again.")
    return error
