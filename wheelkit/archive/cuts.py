"""A deflate stream taken apart at block boundaries while it is inflated.

A part that was unpacked by itself, and was right, needs no second look where it is copied.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import cast

from isal import isal_zlib

from wheelkit.archive.deflate import BlockIndex, Run
from wheelkit.archive.inflate import CHUNK, PACKED_CHUNK, inflate
from wheelkit.archive.splice import WINDOW
from wheelkit.archive.zip_format import Pread

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


class Cuts:
    """Where a stream shall be taken apart, and where it was.

    Attributes:
        goals: uncompressed offsets; a cut is made at the first chance behind each.
        runs: the parts, once all of the stream was inflated.
    """

    def __init__(self, goals: Iterable[int]) -> None:
        self.goals = sorted(goals)
        self.runs: list[Run] = []

    def index(self) -> BlockIndex | None:
        """The cuts as block boundaries; None without any."""
        if len(self.runs) < 2:
            return None
        return BlockIndex(
            [run.content[0] for run in self.runs], [8 * run.packed for run in self.runs], self.runs[-1].content[1],
            complete=True, runs=tuple(self.runs),
        )  # fmt: skip


def inflate_cut(pread: Pread, offset: int, size: int, cuts: Cuts) -> Iterator[bytes]:
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
        cuts.runs.append(Run(packed, (begin, at), crc))


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
