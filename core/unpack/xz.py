"""Plain bytes of .xz files; blocks that tell their sizes, which `xz -T` writes, are inflated side by side.

Source: The .xz File Format, version 1.2.1 (sections 2 to 4).
"""

from __future__ import annotations

import lzma
import os
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

from core.unpack.stream import Feed

MOST = 48 << 20
"""Plain bytes that may be in memory: two blocks of what `xz -6` makes."""
_MEMORY = 256 << 20
"""Bytes that a block's dictionary may take: four times what `xz -9` asks for; a header may ask for 4 GB."""
_PIECE = 1 << 20
_HEAD = 12
_MAGIC = b"\xfd7zXZ\0"
_TELLS_SIZES = 0xC0
_LONGEST = 9
_WAITING = 4
"""Blocks for each worker that may wait: small ones would be very many."""
_OVERHEAD = 4096
"""Bytes that a block may be larger than what comes out of it, besides a thousandth."""
_CHECKS = (0, 4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64)
"""Bytes of a block's check, by its kind."""


class Source(Protocol):
    """Bytes that are read once."""

    def read(self, count: int = -1, /) -> bytes | None:
        """At most so many; none at the end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """One block of a stream, as its header tells.

    Attributes:
        header: its bytes, which have been read.
        rest: bytes behind the header: what is compressed, padding, check.
        unpadded: bytes of all of it without padding, as the index has them.
        plain: bytes that come out of it.
    """

    header: bytes
    rest: int
    unpadded: int
    plain: int


class _Index:
    """What the end of a stream has to say of its blocks: a few bytes for each, since there may be millions."""

    def __init__(self) -> None:
        self._count = 0
        self._records = bytearray()

    def add(self, block: _Block) -> None:
        """One more."""
        self._count += 1
        self._records += _bytes(block.unpadded) + _bytes(block.plain)

    def end(self, head: bytes) -> bytes:
        """Index and footer (sections 4 and 2.1.2)."""
        index = b"\0" + _bytes(self._count) + self._records
        index += bytes(-len(index) % 4)
        index += crc32(index).to_bytes(4, "little")
        footer = (len(index) // 4 - 1).to_bytes(4, "little") + head[6:8]
        return index + crc32(footer).to_bytes(4, "little") + footer + b"YZ"


class XzFile(Feed):
    """Streams and the padding between them, as one file that is read once.

    Errors are those of `lzma`: LZMAError where something is damaged, EOFError where it ends too early.
    """

    def __init__(self, source: Source, workers: int = 0) -> None:
        self._source = source
        self._back = b""
        self._workers = workers or len(os.sched_getaffinity(0))
        streams = self._streams()
        # Closing it ends what is under way.
        super().__init__(streams, streams.close)

    def _streams(self) -> Generator[bytes, None, None]:
        head = self._exactly(_HEAD)
        with ThreadPoolExecutor(self._workers, "xz") as pool:
            try:
                while head:
                    if not head.startswith(_MAGIC):
                        raise lzma.LZMAError("something in it is no stream of .xz")
                    yield from self._stream(head, pool)
                    while (head := self._word()) == bytes(4):
                        pass
                    head += self._exactly(_HEAD - len(head)) if head else b""
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _stream(self, head: bytes, pool: ThreadPoolExecutor) -> Iterator[bytes]:
        """What is in one stream; `head` is its header, which liblzma looks at with each block."""
        size = self._exactly(1)
        header = size + self._exactly((size[0] + 1) * 4 - 1 if size[0] else 0)
        block = _told(head, header)
        if block is None:
            yield from self._inflate_stream(head + header)
            return
        index = _Index()
        waiting: deque[tuple[Future[list[bytes]], int]] = deque()
        held, most = 0, _WAITING * self._workers
        while block or waiting:
            while block and _small(block) and held + block.plain <= MOST and len(waiting) < most:
                waiting.append((pool.submit(_inflate, head, block, self._exactly(block.rest)), block.plain))
                index.add(block)
                held += block.plain
                block = self._next_block(head)
            if waiting:
                future, plain = waiting.popleft()
                yield from _emptied(future.result())
                held -= plain
            elif block:
                yield from self._inflate_slowly(head, block)
                index.add(block)
                block = self._next_block(head)
        end = index.end(head)
        # Its first byte, a size of 0, said that no block follows.
        if self._exactly(len(end) - 1) != end[1:]:
            raise lzma.LZMAError("the index tells of other blocks than there are")

    def _next_block(self, head: bytes) -> _Block | None:
        """The header of the next block; None where the index begins."""
        size = self._exactly(1)
        if not size[0]:
            return None
        block = _told(head, size + self._exactly((size[0] + 1) * 4 - 1))
        if block is None:
            raise lzma.LZMAError("only some of its blocks tell their sizes")
        return block

    def _inflate_slowly(self, head: bytes, block: _Block) -> Iterator[bytes]:
        """A block that is too large to wait in memory."""
        inflater, done, rest = lzma.LZMADecompressor(lzma.FORMAT_XZ, _MEMORY), 0, block.rest
        data = head + block.header
        while data:
            for piece in _outputs(inflater, data):
                done += len(piece)
                yield piece
            data = self._exactly(min(rest, _PIECE))
            rest -= len(data)
        if done != block.plain:
            raise lzma.LZMAError("a block is not as large as it says")

    def _inflate_stream(self, data: bytes) -> Iterator[bytes]:
        """A stream whose blocks nobody but liblzma finds the end of; `data` is what was read of it."""
        inflater = lzma.LZMADecompressor(lzma.FORMAT_XZ, _MEMORY)
        while data:
            yield from _outputs(inflater, data)
            data = b"" if inflater.eof else self._some(_PIECE)
        if not inflater.eof:
            raise EOFError("it ends too early")
        self._back = inflater.unused_data

    def _word(self) -> bytes:
        """Four bytes; none at the end."""
        data = self._some(4)
        return data + self._exactly(4 - len(data)) if data else data

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count and (data := self._some(min(count, _PIECE))):
            parts.append(data)
            count -= len(data)
        if count:
            raise EOFError("it ends too early")
        return b"".join(parts)

    def _some(self, count: int) -> bytes:
        """At most so many bytes; none at the end."""
        if self._back:
            data, self._back = self._back[:count], self._back[count:]
            return data
        return self._source.read(count) or b""


def _small(block: _Block) -> bool:
    """Whether it may be held in memory: what does not shrink hardly grows in .xz, unless somebody wants harm."""
    return block.plain <= MOST and block.rest <= block.plain + block.plain // 1024 + _OVERHEAD


def _inflate(head: bytes, block: _Block, rest: bytes) -> list[bytes]:
    """The plain bytes of one block; liblzma compares them with its check and the sizes in its header."""
    inflater = lzma.LZMADecompressor(lzma.FORMAT_XZ, _MEMORY)
    pieces = [piece for data in (head + block.header, rest) for piece in _outputs(inflater, data)]
    if sum(map(len, pieces)) != block.plain:
        raise lzma.LZMAError("a block is not as large as it says")
    return pieces


def _outputs(inflater: lzma.LZMADecompressor, data: bytes) -> Iterator[bytes]:
    """What some compressed bytes give, never much at once: a few may stand for very many."""
    while True:
        if piece := inflater.decompress(data, _PIECE):
            yield piece
        if inflater.needs_input or inflater.eof:
            return
        data = b""


def _emptied(pieces: list[bytes]) -> Iterator[bytes]:
    """Pieces that nobody holds any more once they were used."""
    pieces.reverse()
    while pieces:
        yield pieces.pop()


def _told(head: bytes, header: bytes) -> _Block | None:
    """A block of which both sizes are known; whatever else is odd in its header, liblzma finds."""
    if len(header) < 8 or header[1] & _TELLS_SIZES != _TELLS_SIZES:
        return None
    compressed, at = _number(header, 2)
    plain, _ = _number(header, at)
    check = _CHECKS[head[7] & 0x0F]
    unpadded = len(header) + compressed + check
    return _Block(header=header, rest=compressed + -compressed % 4 + check, unpadded=unpadded, plain=plain)


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends (section 1.2)."""
    value = 0
    for place, byte in enumerate(data[at : at + _LONGEST]):
        value |= (byte & 0x7F) << 7 * place
        if not byte & 0x80:
            return value, at + place + 1
    raise lzma.LZMAError("a number in it has no end")


def _bytes(value: int) -> bytes:
    """The same the other way round."""
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
