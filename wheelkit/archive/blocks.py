"""Block boundaries of deflate streams (RFC 1951).

`scan_blocks` finds all boundaries with zlib. `inflate_cut` finds a few boundaries near given offsets while it inflates
a stream.
"""

from __future__ import annotations

import ctypes
import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from isal import isal_zlib

from core.errors import ArchiveError
from wheelkit.archive.inflate import BROKEN, CHUNK, PACKED_CHUNK, WINDOW, inflate
from wheelkit.archive.zip_format import Pread

_CHUNK = 256 << 10
_Z_OK, _Z_STREAM_END, _Z_BUF_ERROR = 0, 1, -5
_Z_BLOCK = 5
_MAX_IDLE = 16
"""A stream counts as truncated after this many calls without progress; zlib may hold back a few empty blocks."""
_AT_BLOCK_END, _IN_LAST_BLOCK = 128, 64


@dataclass(frozen=True, slots=True)
class BlockRun:
    """A part of a deflate stream that was inflated separately, given only the window before it.

    Attributes:
        packed: offset of the part in the compressed stream, in bytes; a block begins there.
        content: range [begin, end) of the part in uncompressed bytes.
        crc32: CRC-32 of the window before the part and of its content; the compressed bytes depend on both.
    """

    packed: int
    content: tuple[int, int]
    crc32: int


@dataclass(frozen=True, slots=True)
class BlockIndex:
    """Block boundaries of one deflate stream at even bit positions (see `splice.PADDING`).

    Attributes:
        offsets: uncompressed bytes before each boundary; not decreasing, the first is 0.
        bits: position of each boundary in the compressed stream, in bits; the first is 0.
        reach: number of uncompressed bytes that were scanned; later boundaries are unknown.
        complete: True if the stream was scanned to its end.
        runs: parts between the boundaries; empty unless the stream was inflated in parts.
    """

    offsets: list[int] = field(default_factory=lambda: [0])
    bits: list[int] = field(default_factory=lambda: [0])
    reach: int = 0
    complete: bool = False
    runs: tuple[BlockRun, ...] = ()

    def before(self, offset: int) -> int:
        """Return the index of the last boundary at or before an uncompressed offset."""
        return bisect_right(self.offsets, offset) - 1

    def after(self, offset: int) -> int | None:
        """Return the index of the first boundary at or after an uncompressed offset, or None."""
        at = bisect_left(self.offsets, offset)
        return at if at < len(self.offsets) else None


class _ZStream(ctypes.Structure):
    """The z_stream of zlib.h; its layout has not changed since zlib 1.0.4."""

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
    """Load the system's libz; return None if no suitable libz is installed."""
    try:
        library = ctypes.CDLL("libz.so.1")
        library.zlibVersion.restype = ctypes.c_char_p
        stream = ctypes.POINTER(_ZStream)
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
        offset: file offset of the stream.
        size: size of the compressed stream in bytes.
        until: stop at the first boundary after at least this many uncompressed bytes; None scans the whole stream.

    Returns:
        The block index, or None if libz is not installed.

    Raises:
        ArchiveError: the stream is damaged.
    """
    library, stream = load_zlib(), _ZStream()
    if not library or library.inflateInit2_(stream, -15, library.zlibVersion(), ctypes.sizeof(_ZStream)) != _Z_OK:
        return None
    chunks = (pread(min(_CHUNK, size - at), offset + at) for at in range(0, size, _CHUNK))
    try:
        return _scan(library, stream, chunks, until)
    finally:
        library.inflateEnd(stream)


def _scan(library: ctypes.CDLL, stream: _ZStream, chunks: Iterator[bytes], until: int | None) -> BlockIndex:
    # One small output buffer is reused: its bytes are not needed, and new memory pages cost more than inflating.
    output = ctypes.create_string_buffer(_CHUNK)
    out_address = ctypes.addressof(output)
    offsets, bits = [0], [0]
    idle = 0
    data = b""
    stream.avail_in = 0
    while True:
        if stream.avail_in == 0:
            data = next(chunks, b"")
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


SEARCHED = 2 << 20
"""Number of compressed bytes searched for a block; in zlib's output, one begins at a whole byte every 100 to 400 KB."""
_TRIED = 64 << 10
"""Number of compressed bytes inflated to test a block; zlib's blocks are shorter, so the next header is tested, too."""
ANY_WINDOW = bytes(WINDOW)
"""Placeholder for the unknown bytes before a block; any bytes do to test whether the block can be inflated."""


def _bytes_like(bits: Iterable[int]) -> bytes:
    return b"[" + b"".join(b"\\x%02x" % byte for byte in bits) + b"]"


_LIKELY = re.compile(
    _bytes_like(4 | lengths << 3 for lengths in range(30))
    + b"(?="
    + _bytes_like(byte for byte in range(256) if 16 <= byte & 31 < 30)
    + _bytes_like(range(1, 256, 2))
    + b")"
)
"""Pattern for the header of a block that is not the last (0) and has dynamic codes (10): RFC 1951, 3.2.7.

The header contains the numbers of literal and length codes (5 bits, up to 286), of distance codes (5 bits, up to 30)
and of code-length codes (4 bits). Compressed machine code has many distance and code-length codes, so only high numbers
match.
"""
_SHARES = [sum(128 >> length for at in (0, 3, 6) if (length := three >> at & 7)) for three in range(512)]
"""Three code lengths (9 bits) -> number of the 128 values of 7 bits that their codes occupy."""


class CutPoints:
    """Offsets at which to split a stream while it is inflated, and the resulting parts.

    Attributes:
        goals: uncompressed offsets; the stream is split at the first block found after each offset.
        runs: parts of the stream; complete once the whole stream was inflated.
    """

    def __init__(self, goals: Iterable[int]) -> None:
        self.goals = sorted(goals)
        self.runs: list[BlockRun] = []

    def index(self) -> BlockIndex | None:
        """Return the split points as block boundaries, or None if the stream was not split."""
        if len(self.runs) < 2:
            return None
        return BlockIndex(
            [run.content[0] for run in self.runs], [8 * run.packed for run in self.runs], self.runs[-1].content[1],
            complete=True, runs=tuple(self.runs),
        )  # fmt: skip


def inflate_cut(pread: Pread, offset: int, size: int, cuts: CutPoints) -> Iterator[bytes]:
    """Inflate the stream in bytes [offset, offset + size) of a file, split near the goals of `cuts`.

    Each part is inflated with only the window of the previous part, so correct output proves that blocks begin at the
    split points. Wrong output does not prove damage: a guessed split point may not be the beginning of a block.

    Raises:
        InflateError: the stream is damaged, or no block begins at a split point.
    """
    goals, at, fed, tail = deque(cuts.goals), 0, 0, b""

    def part() -> Iterator[bytes]:
        """Yield compressed bytes up to the next split point."""
        nonlocal fed
        while fed < size:
            if goals and at >= goals[0]:
                while goals and at >= goals[0]:
                    goals.popleft()
                data = pread(min(SEARCHED, size - fed), offset + fed)
                if (cut := find_block(data)) is not None:
                    fed += cut
                    yield data[:cut]
                    return
            step = min(PACKED_CHUNK, size - fed)
            fed += step
            yield pread(step, offset + fed - step)

    cuts.runs = []
    while not cuts.runs or fed < size:
        begin, packed, crc = at, fed, isal_zlib.crc32(tail)
        for chunk in inflate(part(), window=tail, more=lambda: fed < size):
            at, crc = at + len(chunk), isal_zlib.crc32(chunk, crc)
            tail = chunk[-WINDOW:] if len(chunk) >= WINDOW else (tail + chunk)[-WINDOW:]
            yield chunk
        cuts.runs.append(BlockRun(packed, (begin, at), crc))


def find_block(data: bytes) -> int | None:
    """Return the first offset in compressed data at which a block with dynamic codes seems to begin, or None."""
    for match in _LIKELY.finditer(data):
        at = match.start()
        if _codes_are_complete(data[at : at + 10]):
            with suppress(BROKEN):
                isal_zlib.decompressobj(-15, ANY_WINDOW).decompress(data[at : at + _TRIED], CHUNK)
                return at
    return None


def _codes_are_complete(head: bytes) -> bool:
    """Check that the code-length code in a block's header is complete."""
    bits = int.from_bytes(head, "little")
    lengths = bits >> 17 & (1 << 3 * ((bits >> 13 & 15) + 4)) - 1
    taken = 0
    while lengths:
        taken += _SHARES[lengths & 511]
        lengths >>= 9
    return taken == 128
