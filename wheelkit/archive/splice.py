"""Splicing of deflated members: only blocks with changed bytes are compressed again.

Blocks of the old stream with unchanged bytes are copied bit for bit; other blocks are recompressed (RFC 1951):

    copied blocks | empty stored block, ends on a byte | recompressed blocks | empty fixed blocks up to the bit | ...

A block may refer up to 32 KiB back, so copying resumes only 32 KiB after a changed range.
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from isal import isal_zlib

from core.errors import ArchiveError
from wheelkit.archive.blocks import BlockIndex
from wheelkit.archive.inflate import WINDOW
from wheelkit.archive.output_file import ByteRange, OutFile
from wheelkit.archive.zip_format import full_pread

LEVEL = 6
FAST_LEVEL = 2
"""Highest level of ISA-L whose output is the same with SSE4, AVX2 and AVX-512; the output of level 3 differs."""
PIECE = 4 << 20
"""Number of uncompressed bytes that one thread compresses at a time; fixed for reproducible output."""

PADDING = 0b0000000_01_0
"""An empty block with fixed codes: 10 bits, lowest first, for "not final", type 01 and end of block.

Each block moves the position by 2 modulo 8, so at most three blocks reach any even bit of a byte.
"""


@dataclass(frozen=True, slots=True)
class CopiedBits:
    """Bits [start, end) of the old compressed stream, copied unchanged."""

    start: int
    end: int

    def holds(self, bit: int) -> bool:
        """Return whether a bit of the old stream is copied."""
        return self.start <= bit < self.end


@dataclass(frozen=True, slots=True)
class RecompressedBytes:
    """Bytes [start, end) of the new content to compress; `last` ends the stream."""

    start: int
    end: int
    last: bool


def scan_goal(changed: Sequence[ByteRange], old_size: int, new_size: int) -> int:
    """Return the number of uncompressed bytes of the old stream that must be scanned before `plan_splice`."""
    if old_size == new_size:
        return max((end + WINDOW for _, end in changed), default=0)
    # Everything after a change that reaches the new end is recompressed.
    last = min([min(old_size, new_size), *(start for start, end in changed if end >= new_size)])
    return max([last, *(end + WINDOW for _, end in changed if end < new_size)])


def plan_splice(
    blocks: BlockIndex, changed: Sequence[ByteRange], old_size: int, new_size: int, packed_size: int
) -> tuple[CopiedBits | RecompressedBytes, ...]:
    """Return the pieces of the new stream in order.

    Args:
        blocks: boundaries of the old stream, scanned at least to `scan_goal`.
        changed: ranges of the new content that may differ from the old content.
        new_size: size of the new content in bytes; bytes beyond the shorter of old and new count as changed.
    """
    edges: list[ByteRange] = [] if old_size == new_size else [(min(old_size, new_size), new_size)]
    waiting = deque(sorted([(start, min(end, new_size)) for start, end in changed if start < new_size] + edges))
    pieces: list[CopiedBits | RecompressedBytes] = []
    here = 0
    while waiting:
        start, end = waiting.popleft()
        first = blocks.before(start)
        if first > here:
            pieces.append(CopiedBits(blocks.bits[here], blocks.bits[first]))
        after = _resume(blocks, end, old_size, new_size)
        while waiting and (after is None or blocks.before(waiting[0][0]) <= after):
            end = max(end, waiting.popleft()[1])
            after = _resume(blocks, end, old_size, new_size)
        if after is None:
            return (*pieces, RecompressedBytes(blocks.offsets[first], new_size, last=True))
        pieces.append(RecompressedBytes(blocks.offsets[first], blocks.offsets[after], last=False))
        here = after
    return (*pieces, CopiedBits(blocks.bits[here], 8 * packed_size))


def _resume(blocks: BlockIndex, end: int, old_size: int, new_size: int) -> int | None:
    """Return the boundary from which old blocks can be copied again after a change, or None."""
    if end == new_size and old_size != new_size:
        return None
    after = blocks.after(end + WINDOW)
    if after is None and not blocks.complete:
        raise ArchiveError(f"The deflate stream was scanned only to byte {blocks.reach}, not to {end + WINDOW}.")
    return after


class Splicer:
    """Writer of a planned stream.

    Args:
        old: descriptor of the archive with the old stream, which begins at `old_offset`.
        content: descriptor of the file with the new content.
    """

    def __init__(self, out: OutFile, *, old: int, old_offset: int, content: int) -> None:
        self._out = out
        self._old = old
        self._old_offset = old_offset
        self._content = content
        self._bits = 0
        """Bits of an unfinished byte, lowest first."""
        self._count = 0
        """Number of bits of the unfinished byte, 0 to 7."""

    def write(self, piece: CopiedBits | RecompressedBytes) -> None:
        """Write the next piece; a recompressed piece ends on a byte boundary."""
        if isinstance(piece, CopiedBits):
            while self._count != piece.start % 8:
                self._put(PADDING, 10)
            self._copy(piece)
        else:
            if self._count:
                self._put(0b000, 3)  # an empty stored block: not final, type 00, then up to the byte
                self._put(0, -self._count % 8)
                self._out.write(b"\0\0\xff\xff")
            for data in compress(self._content, piece.start, piece.end, last=piece.last):
                self._out.write(data)

    def _put(self, bits: int, count: int) -> None:
        self._bits |= bits << self._count
        self._count += count
        whole = self._count // 8
        self._out.write((self._bits & (1 << 8 * whole) - 1).to_bytes(whole, "little"))
        self._bits >>= 8 * whole
        self._count -= 8 * whole

    def _copy(self, piece: CopiedBits) -> None:
        first, last = piece.start // 8, piece.end // 8
        phase, rest = piece.start % 8, piece.end % 8
        if phase:
            count = min(8, piece.end - 8 * first) - phase
            self._put(self._old_byte(first) >> phase & (1 << count) - 1, count)
            first += 1
        if first < last:
            self._out.copy(self._old, self._old_offset + first, last - first)
        if rest and first <= last:
            self._put(self._old_byte(last) & (1 << rest) - 1, rest)

    def _old_byte(self, at: int) -> int:
        return full_pread(self._old, 1, self._old_offset + at)[0]


def compress(content: int, start: int, end: int, *, last: bool) -> Iterator[bytes]:
    """Deflate bytes [start, end) of an open file in pieces on all cores; each piece ends on a byte boundary.

    Raises:
        ArchiveError: the file ends before `end`.
    """
    begins = range(start, end, PIECE) if end > start else range(start, start + 1)
    # Device code is already compressed: no level makes the changed parts of a spliced member smaller.
    fast = not (last and start == 0)
    workers = len(os.sched_getaffinity(0))
    waiting: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for begin in begins:
                stop = min(begin + PIECE, end)
                waiting.append(pool.submit(_compress_piece, content, begin, stop, last and stop == end, fast))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _compress_piece(content: int, start: int, end: int, last: bool, fast: bool) -> bytes:
    window = full_pread(content, min(start, WINDOW), start - min(start, WINDOW))
    data = full_pread(content, end - start, start)
    if len(data) != end - start:
        raise ArchiveError(f"The new content of a member ends at byte {start + len(data)} instead of {end}.")
    library, level = (isal_zlib, FAST_LEVEL) if fast else (zlib, LEVEL)
    packer = library.compressobj(level, zlib.DEFLATED, -15, zdict=window)
    deflated: bytes = packer.compress(data) + packer.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)
    return deflated
