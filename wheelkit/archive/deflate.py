"""Where the blocks of a deflate stream begin (RFC 1951), found by zlib itself.

The standard library cannot stop at block boundaries, libz can (Z_BLOCK, zlib.h). ctypes releases the GIL, so a scan
runs beside other work. Where libz cannot be loaded there is simply no index, and callers recompress instead.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from core.errors import ArchiveError

_CHUNK = 256 << 10
_Z_OK, _Z_STREAM_END, _Z_BUF_ERROR = 0, 1, -5
_Z_BLOCK = 5
_MAX_IDLE = 16
"""Calls without progress before a stream counts as cut short; a few are normal: zlib may hold some empty blocks."""
_AT_BLOCK_END, _IN_LAST_BLOCK = 128, 64


@dataclass(frozen=True, slots=True)
class Run:
    """A part of a deflate stream that was unpacked by itself, with nothing of what came before but the window.

    Attributes:
        packed: compressed bytes before it; a block begins there.
        content: [begin, end) in uncompressed bytes.
        crc32: of its content and the window before that: of all that makes it what it is.
    """

    packed: int
    content: tuple[int, int]
    crc32: int


@dataclass(frozen=True, slots=True)
class BlockIndex:
    """Block boundaries of one deflate stream, those at an even bit only (see `splice.PADDING`).

    Attributes:
        offsets: how many uncompressed bytes come before each boundary; not decreasing, the first is 0.
        bits: the boundary's position in the compressed stream, in bits; the first is 0.
        reach: uncompressed bytes that were scanned; boundaries beyond are not known.
        complete: whether the end of the stream was scanned.
        runs: if the stream was taken apart at the boundaries, what was found between them.
    """

    offsets: list[int] = field(default_factory=lambda: [0])
    bits: list[int] = field(default_factory=lambda: [0])
    reach: int = 0
    complete: bool = False
    runs: tuple[Run, ...] = ()

    def before(self, offset: int) -> int:
        """Index of the last boundary at or before an uncompressed offset."""
        return bisect_right(self.offsets, offset) - 1

    def after(self, offset: int) -> int | None:
        """Index of the first boundary at or after an uncompressed offset, None if there is none."""
        at = bisect_left(self.offsets, offset)
        return at if at < len(self.offsets) else None


class _Stream(ctypes.Structure):
    """z_stream of zlib.h; its layout has been the same since zlib 1.0.4."""

    _fields_ = (
        ("next_in", ctypes.c_void_p),
        ("avail_in", ctypes.c_uint),
        ("total_in", ctypes.c_ulong),
        ("next_out", ctypes.c_void_p),
        ("avail_out", ctypes.c_uint),
        ("total_out", ctypes.c_ulong),
        ("msg", ctypes.c_char_p),
        ("state", ctypes.c_void_p),
        ("zalloc", ctypes.c_void_p),
        ("zfree", ctypes.c_void_p),
        ("opaque", ctypes.c_void_p),
        ("data_type", ctypes.c_int),
        ("adler", ctypes.c_ulong),
        ("reserved", ctypes.c_ulong),
    )


def load_zlib() -> ctypes.CDLL | None:
    """The system's libz, None where there is none that fits."""
    try:
        library = ctypes.CDLL("libz.so.1")
        library.zlibVersion.restype = ctypes.c_char_p
        stream = ctypes.POINTER(_Stream)
        library.inflateInit2_.argtypes = (stream, ctypes.c_int, ctypes.c_char_p, ctypes.c_int)
        library.inflate.argtypes = (stream, ctypes.c_int)
        library.inflateEnd.argtypes = (stream,)
    except (OSError, AttributeError):
        return None
    return library


def scan_blocks(
    pread: Callable[[int, int], bytes], offset: int, size: int, *, until: int | None = None
) -> BlockIndex | None:
    """Find the block boundaries of a raw deflate stream.

    Args:
        pread: reads (size, offset) of the file that holds the stream.
        offset: where the stream begins in the file.
        size: compressed bytes.
        until: stop at the first boundary that has at least this many uncompressed bytes before it; None: scan all.

    Returns:
        The index, or None where libz is not there.

    Raises:
        ArchiveError: the stream is damaged.
    """
    library, stream = load_zlib(), _Stream()
    if not library or library.inflateInit2_(stream, -15, library.zlibVersion(), ctypes.sizeof(_Stream)) != _Z_OK:
        return None
    try:
        return _scan(library, stream, pread, offset, size, until)
    finally:
        library.inflateEnd(stream)


def _scan(
    library: ctypes.CDLL, stream: _Stream, pread: Callable[[int, int], bytes], offset: int, size: int, until: int | None
) -> BlockIndex:
    # One small output buffer used over and over: the bytes are not wanted, and fresh pages cost more than inflating.
    output = ctypes.create_string_buffer(_CHUNK)
    out_address = ctypes.addressof(output)
    offsets, bits = [0], [0]
    read = idle = 0
    data = b""
    stream.avail_in = 0
    while True:
        if stream.avail_in == 0:
            data = pread(min(_CHUNK, size - read), offset + read)
            read += len(data)
            stream.next_in = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
            stream.avail_in = len(data)
        stream.next_out, stream.avail_out = out_address, _CHUNK
        before = stream.total_in, stream.total_out
        status = library.inflate(stream, _Z_BLOCK)
        if status == _Z_STREAM_END:
            return BlockIndex(offsets, bits, stream.total_out, complete=True)
        idle = idle + 1 if before == (stream.total_in, stream.total_out) else 0
        if status not in (_Z_OK, _Z_BUF_ERROR) or idle > _MAX_IDLE:
            raise ArchiveError("The deflate stream is damaged.", hint="Download the wheel again.")
        if not stream.data_type & _AT_BLOCK_END or stream.data_type & _IN_LAST_BLOCK:
            continue
        bit = 8 * stream.total_in - (stream.data_type & 7)
        if bit % 2 == 0 and bit > bits[-1]:
            offsets.append(stream.total_out)
            bits.append(bit)
            if until is not None and stream.total_out >= until:
                return BlockIndex(offsets, bits, stream.total_out)
