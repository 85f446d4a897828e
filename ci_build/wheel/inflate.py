"""Raw deflate data as a stream of bounded chunks, whatever it expands to (RFC 1951)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, cast

from isal import isal_zlib

if TYPE_CHECKING:
    from ci_build.wheel.deflate import Seam

CHUNK = 1 << 20
"""The most uncompressed bytes handed out at a time."""
_PACKED_CHUNK = 256 << 10
_WINDOW = 32 << 10
"""How far back deflate data may refer (RFC 1951)."""
_BROKEN = cast("type[Exception]", isal_zlib.IsalError)


class InflateError(Exception):
    """Data that is no deflate stream, or not one of this length; the message goes on after "it is damaged: "."""


def packed_chunks(pread: Callable[[int, int], bytes], offset: int, size: int) -> Iterator[bytes]:
    """Bytes [offset, offset + size) of a file, piece by piece; fewer where it ends early."""
    for at in range(offset, offset + size, _PACKED_CHUNK):
        yield pread(min(_PACKED_CHUNK, offset + size - at), at)


def inflate(packed: Iterable[bytes], *, window: bytes = b"", last: bool = True) -> Iterator[bytes]:
    """Uncompressed bytes of a stream, which has to end with the last of the packed ones.

    Args:
        packed: the stream; what is asked for is needed.
        window: what comes before, up to 32 KiB, where the stream begins in the middle of another one.
        last: False where that other stream may go on, as after a sync flush.

    Raises:
        InflateError: after the chunks before the damage.
    """
    source = iter(packed)
    inflater, pending = isal_zlib.decompressobj(-15, window), b""
    while not inflater.eof:
        pending = pending or next(source, b"")
        fed = len(pending)
        try:
            chunk = inflater.decompress(pending, CHUNK)
        except _BROKEN as error:
            raise InflateError(f"its deflate data is broken ({error})") from error
        pending = inflater.unconsumed_tail
        if chunk:
            yield chunk
        elif not fed and not inflater.eof:
            if last:
                raise InflateError("its deflate data ends early")
            break
    if inflater.unused_data or next(source, b""):
        raise InflateError("bytes follow the end of its deflate data")


def inflate_sewn(
    pread: Callable[[int, int], bytes], offset: int, size: int, find_seam: Callable[[], Seam | None]
) -> Iterator[bytes]:
    """The stream in bytes [offset, offset + size) of a file, in three pieces that end and begin at a seam.

    So right bytes prove where the seam lies.

    Args:
        pread: reads (size, offset) of the file.
        offset: where the stream begins.
        size: its compressed bytes.
        find_seam: asked after the first quarter, so that a scan may go on meanwhile.

    Raises:
        InflateError: damaged, or no block begins at an end of the seam.
    """
    quarter = size // 4
    seam: Seam | None = None

    def first() -> Iterator[bytes]:
        nonlocal seam
        yield from packed_chunks(pread, offset, quarter)
        seam = find_seam()
        if seam and seam.packed[0] < quarter:
            seam = None
        yield from packed_chunks(pread, offset + quarter, (seam.packed[0] if seam else size) - quarter)

    tail, at = b"", 0
    for chunk in inflate(first(), last=False):
        tail, at = _tail(tail, chunk), at + len(chunk)
        yield chunk
    if seam is None:
        return
    (begin, end), crc, content = seam.packed, 0, seam.content
    if at != content[0]:
        raise InflateError(f"byte {at} is where byte {content[0]} should begin a block")
    for chunk in inflate(packed_chunks(pread, offset + begin, end - begin), window=tail, last=False):
        tail, at, crc = _tail(tail, chunk), at + len(chunk), isal_zlib.crc32(chunk, crc)
        yield chunk
    if at != content[1]:
        raise InflateError(f"byte {at} is where byte {content[1]} should begin a block")
    seam.crc32 = crc
    yield from inflate(packed_chunks(pread, offset + end, size - end), window=tail)


def _tail(before: bytes, chunk: bytes) -> bytes:
    return chunk[-_WINDOW:] if len(chunk) >= _WINDOW else (before + chunk)[-_WINDOW:]
