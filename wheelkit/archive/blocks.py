"""Block boundaries of deflate streams (RFC 1951).

zlib finds all of them in a scan (`scan_blocks`); `inflate_cut` finds a few while it inflates, at the cost of a search.
"""

from __future__ import annotations

import ctypes
import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import cast

from isal import isal_zlib

from core.errors import ArchiveError
from wheelkit.archive.inflate import CHUNK, PACKED_CHUNK, WINDOW, inflate
from wheelkit.archive.zip_format import Pread

_CHUNK = 256 << 10
_Z_OK, _Z_STREAM_END, _Z_BUF_ERROR = 0, 1, -5
_Z_BLOCK = 5
_MAX_IDLE = 16
"""Calls without progress before a stream counts as cut short; a few are normal: zlib may hold some empty blocks."""
_AT_BLOCK_END, _IN_LAST_BLOCK = 128, 64


@dataclass(frozen=True, slots=True)
class BlockRun:
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
    runs: tuple[BlockRun, ...] = ()

    def before(self, offset: int) -> int:
        """Index of the last boundary at or before an uncompressed offset."""
        return bisect_right(self.offsets, offset) - 1

    def after(self, offset: int) -> int | None:
        """Index of the first boundary at or after an uncompressed offset, None if there is none."""
        at = bisect_left(self.offsets, offset)
        return at if at < len(self.offsets) else None


class _ZStream(ctypes.Structure):
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
        offset: where the stream begins in the file.
        size: compressed bytes.
        until: stop at the first boundary that has at least this many uncompressed bytes before it; None: scan all.

    Returns:
        The index, or None where libz is not there.

    Raises:
        ArchiveError: the stream is damaged.
    """
    library, stream = load_zlib(), _ZStream()
    if not library or library.inflateInit2_(stream, -15, library.zlibVersion(), ctypes.sizeof(_ZStream)) != _Z_OK:
        return None
    try:
        return _scan(library, stream, pread, offset, size, until)
    finally:
        library.inflateEnd(stream)


def _scan(
    library: ctypes.CDLL,
    stream: _ZStream,
    pread: Callable[[int, int], bytes],
    offset: int,
    size: int,
    until: int | None,
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


SEARCHED = 2 << 20
"""Compressed bytes in which a block's beginning is looked for; zlib has one on a whole byte every 100 to 400 KB."""
_TRIED = 64 << 10
"""Compressed bytes by which a place is judged; zlib's blocks are shorter, so that the next header has its say."""
ANY_WINDOW = bytes(WINDOW)
"""For what came before: whether blocks can be inflated does not depend on it."""


def _bytes_like(bits: Iterable[int]) -> bytes:
    return b"[" + b"".join(b"\\x%02x" % byte for byte in bits) + b"]"


_LIKELY = re.compile(
    _bytes_like(4 | lengths << 3 for lengths in range(30))
    + b"(?="
    + _bytes_like(byte for byte in range(256) if 16 <= byte & 31 < 30)
    + _bytes_like(range(1, 256, 2))
    + b")"
)
"""RFC 1951, 3.2.7: a block that is not the last (0) and has codes of its own (10), up to 286 of them for literals and
lengths (5 bits) and 30 for distances (5 bits), the lengths of which have codes, too (4 bits). As compilers' output has
it, distances are many, and so are the codes of lengths."""
_SHARES = [sum(128 >> length for at in (0, 3, 6) if (length := three >> at & 7)) for three in range(512)]
"""Of the codes of three lengths: how many of all 128 ways that 7 bits can go on they take."""
_BROKEN = cast("type[Exception]", isal_zlib.IsalError)


class CutPoints:
    """Where a stream shall be taken apart, and where it was.

    Attributes:
        goals: uncompressed offsets; a cut is made at the first chance behind each.
        runs: the parts, once all of the stream was inflated.
    """

    def __init__(self, goals: Iterable[int]) -> None:
        self.goals = sorted(goals)
        self.runs: list[BlockRun] = []

    def index(self) -> BlockIndex | None:
        """The cuts as block boundaries; None without any."""
        if len(self.runs) < 2:
            return None
        return BlockIndex(
            [run.content[0] for run in self.runs], [8 * run.packed for run in self.runs], self.runs[-1].content[1],
            complete=True, runs=tuple(self.runs),
        )  # fmt: skip


def inflate_cut(pread: Pread, offset: int, size: int, cuts: CutPoints) -> Iterator[bytes]:
    """The stream in bytes [offset, offset + size) of a file, as `inflate` gives it.

    Each part is inflated with nothing of those before it but the window. So right bytes prove that blocks begin where
    the cuts are; wrong ones may mean no more than that one of them does not.

    Raises:
        InflateError: damaged, or no block begins at a cut.
    """
    goals, at, fed, tail = deque(cuts.goals), 0, 0, b""

    def part() -> Iterator[bytes]:
        """Compressed bytes up to the next cut."""
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
    """The first byte of some compressed data where a block seems to begin that has codes of its own."""
    for found in _LIKELY.finditer(data):
        at = found.start()
        if _codes_are_complete(data[at : at + 10]) and _can_be_inflated(data[at : at + _TRIED]):
            return at
    return None


def _can_be_inflated(data: bytes) -> bool:
    try:
        isal_zlib.decompressobj(-15, ANY_WINDOW).decompress(data, CHUNK)
    except _BROKEN:
        return False
    return True


def _codes_are_complete(head: bytes) -> bool:
    """Whether the code that a block's header gives to lengths of codes leaves no bits without meaning."""
    bits = int.from_bytes(head, "little")
    lengths = bits >> 17 & (1 << 3 * ((bits >> 13 & 15) + 4)) - 1
    taken = 0
    while lengths:
        taken += _SHARES[lengths & 511]
        lengths >>= 9
    return taken == 128
