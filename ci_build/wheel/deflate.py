"""Where the blocks of a deflate stream begin (RFC 1951), found by zlib itself.

The standard library cannot stop at block boundaries, libz can (Z_BLOCK, zlib.h). ctypes releases the GIL, so a scan
runs beside other work. Where libz cannot be loaded there is simply no index, and callers recompress instead.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ci_build.errors import ArchiveError

_CHUNK = 256 << 10
_ANY_WINDOW = bytes(32 << 10)
"""For what came before the middle of a stream: how many bytes blocks stand for does not depend on it."""
_SEARCHED = 256 << 10
"""Bytes in which a block's beginning is looked for; zlib makes one every 30 KB or so."""
_TRIED = 2 << 10
"""Bytes that a place is tried with before the whole rest."""
_Z_OK, _Z_STREAM_END, _Z_BUF_ERROR = 0, 1, -5
_Z_NO_FLUSH, _Z_BLOCK = 0, 5
_MAX_IDLE = 16
"""Calls without progress before a stream counts as cut short; a few are normal: zlib may hold some empty blocks."""
_AT_BLOCK_END, _IN_LAST_BLOCK = 128, 64


@dataclass(slots=True)
class Seam:
    """A part of a deflate stream of which only both ends are known: block boundaries on whole bytes.

    Attributes:
        packed: [begin, end) in compressed bytes.
        content: [begin, end) in uncompressed bytes.
        crc32: of that content; set by whoever unpacked the stream in pieces that begin at these very places, which
            proves them, if all of it was what it should be.
    """

    packed: tuple[int, int]
    content: tuple[int, int]
    crc32: int | None = None


FindSeam = Callable[[], Seam | None]
"""Gives a seam, perhaps after a while; None where there is none."""


@dataclass(frozen=True, slots=True)
class BlockIndex:
    """Block boundaries of one deflate stream, those at an even bit only (see `splice.PADDING`).

    Attributes:
        offsets: how many uncompressed bytes come before each boundary; not decreasing, the first is 0.
        bits: the boundary's position in the compressed stream, in bits; the first is 0.
        reach: uncompressed bytes that were scanned; boundaries beyond are not known.
        complete: whether the end of the stream was scanned.
        seam: where two scans were joined, if they have boundaries on whole bytes.
    """

    offsets: list[int] = field(default_factory=lambda: [0])
    bits: list[int] = field(default_factory=lambda: [0])
    reach: int = 0
    complete: bool = False
    seam: Seam | None = None

    def joined(self, rest: BlockIndex) -> BlockIndex:
        """With the boundaries of a later part; those in between stay unknown, which makes splices there longer."""
        first = bisect_right(rest.bits, self.bits[-1])
        offsets, bits = [*self.offsets, *rest.offsets[first:]], [*self.bits, *rest.bits[first:]]
        left = next((i for i in reversed(range(len(self.bits))) if self.bits[i] % 8 == 0), 0)
        right = next((i for i in range(first, len(rest.bits)) if rest.bits[i] % 8 == 0), None)
        seam = None
        if right is not None:
            packed = self.bits[left] // 8, rest.bits[right] // 8
            seam = Seam(packed, (self.offsets[left], rest.offsets[right]))
        return BlockIndex(offsets, bits, rest.reach, complete=rest.complete, seam=seam)

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
        library.inflateEnd.argtypes = library.inflateReset.argtypes = (stream,)
        library.inflatePrime.argtypes = (stream, ctypes.c_int, ctypes.c_int)
        library.inflateSetDictionary.argtypes = (stream, ctypes.c_char_p, ctypes.c_uint)
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
    with _inflater() as inflater:
        return inflater and _scan(*inflater, pread, offset, size, until=until)


def scan_end(pread: Callable[[int, int], bytes], offset: int, size: int, *, total: int, goal: int) -> BlockIndex | None:
    """Find the block boundaries of the last part of a stream without inflating what comes before.

    A place in the middle is taken for a block's beginning when everything from there to the end can be inflated;
    its offset follows from the end. (Whoever uses it proves the result anyway.)

    Args:
        total: uncompressed bytes of the whole stream.
        goal: uncompressed bytes that the first boundary shall have before it at most.

    Returns:
        The index, or None where no such place is found or libz is not there.
    """
    with _inflater() as inflater:
        step = size // 8
        while inflater and 0 < step < size:
            index = _resume_at(*inflater, pread, offset, size, size - step)
            if index is None:
                return None
            shift = total - index.reach
            if index.offsets[0] + shift <= goal:
                return BlockIndex([at + shift for at in index.offsets], index.bits, total, complete=True)
            step *= 2
        return None


@contextmanager
def _inflater() -> Iterator[tuple[ctypes.CDLL, _Stream] | None]:
    library, stream = load_zlib(), _Stream()
    if not library or library.inflateInit2_(stream, -15, library.zlibVersion(), ctypes.sizeof(_Stream)) != _Z_OK:
        yield None
        return
    try:
        yield library, stream
    finally:
        library.inflateEnd(stream)


def _resume_at(
    library: ctypes.CDLL, stream: _Stream, pread: Callable[[int, int], bytes], offset: int, size: int, near: int
) -> BlockIndex | None:
    """The scan from the first block that begins at byte `near` or behind, as if nothing came before."""
    data = pread(min(_SEARCHED, size - near), offset + near)
    for bit in _likely_blocks(data):
        if _inflates(library, stream, data, bit):
            try:
                return _scan(library, stream, pread, offset, size, start=8 * near + bit)
            except ArchiveError:
                continue
    return None


def _likely_blocks(data: bytes) -> Iterator[int]:
    """Even bits where a block may begin that has codes of its own and is not the last."""
    for at in range(len(data) - _TRIED):
        word = int.from_bytes(data[at : at + 3], "little")
        for bit in range(0, 8, 2):
            # The first bits are 0 and 10, then come 5 and 5 for up to 286 literals and lengths and 30 distances.
            if word >> bit & 0b111 == 0b100 and word >> bit + 3 & 31 < 30 and word >> bit + 8 & 31 < 30:
                yield 8 * at + bit


def _inflates(library: ctypes.CDLL, stream: _Stream, data: bytes, bit: int) -> bool:
    """Whether what begins at this bit of `data` passes for deflate data to zlib, for some bytes."""
    _restart(library, stream, bit % 8, data[bit // 8])
    sample = data[-(-bit // 8) : -(-bit // 8) + _TRIED]
    output = ctypes.create_string_buffer(2 * _TRIED)
    stream.next_in, stream.avail_in = ctypes.cast(ctypes.c_char_p(sample), ctypes.c_void_p).value, len(sample)
    stream.next_out, stream.avail_out = ctypes.addressof(output), len(output)
    return bool(library.inflate(stream, _Z_NO_FLUSH) in (_Z_OK, _Z_BUF_ERROR))


def _restart(library: ctypes.CDLL, stream: _Stream, used: int, byte: int) -> None:
    """Begin anew in the middle of a stream, of whose next byte some bits belong to what came before."""
    library.inflateReset(stream)
    library.inflateSetDictionary(stream, _ANY_WINDOW, len(_ANY_WINDOW))
    if used:
        library.inflatePrime(stream, 8 - used, byte >> used)


def _scan(
    library: ctypes.CDLL,
    stream: _Stream,
    pread: Callable[[int, int], bytes],
    offset: int,
    size: int,
    *,
    start: int = 0,
    until: int | None = None,
) -> BlockIndex:
    first = -(-start // 8)
    if start:
        _restart(library, stream, start % 8, pread(1, offset + start // 8)[0])
    # One small output buffer used over and over: the bytes are not wanted, and fresh pages cost more than inflating.
    output = ctypes.create_string_buffer(_CHUNK)
    out_address = ctypes.addressof(output)
    offsets, bits = [0], [start]
    read, idle = first, 0
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
        bit = 8 * (first + stream.total_in) - (stream.data_type & 7)
        if bit % 2 == 0 and bit > bits[-1]:
            offsets.append(stream.total_out)
            bits.append(bit)
            if until is not None and stream.total_out >= until:
                return BlockIndex(offsets, bits, stream.total_out)
