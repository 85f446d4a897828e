"""Inflation of raw deflate data in chunks of bounded size (RFC 1951)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import cast

from isal import isal_zlib

CHUNK = 1 << 20
"""Maximum number of uncompressed bytes per chunk."""
PACKED_CHUNK = 256 << 10
"""Number of compressed bytes per read."""
WINDOW = 32 << 10
"""Number of preceding bytes that a block may refer to."""
BROKEN = cast("type[Exception]", isal_zlib.IsalError)
"""Error of ISA-L for damaged data."""


class InflateError(Exception):
    """Damaged or truncated deflate data; the message continues "<member> is damaged: "."""


def packed_chunks(pread: Callable[[int, int], bytes], offset: int, size: int) -> Iterator[bytes]:
    """Yield bytes [offset, offset + size) of a file in chunks; fewer bytes if the file ends early."""
    for at in range(offset, offset + size, PACKED_CHUNK):
        yield pread(min(PACKED_CHUNK, offset + size - at), at)


def inflate(
    packed: Iterable[bytes], *, window: bytes = b"", more: Callable[[], bool] = lambda: False
) -> Iterator[bytes]:
    """Yield the uncompressed bytes of a stream that must end with the last packed byte.

    Args:
        packed: chunks of the stream; read only as needed.
        window: up to 32 KiB of uncompressed bytes before the stream, if the stream is the middle of another stream.
        more: called at the end of `packed`; returns whether the stream may continue, as after a sync flush.

    Raises:
        InflateError: the data is damaged; raised after the chunks before the damage.
    """
    source = iter(packed)
    inflater, pending = isal_zlib.decompressobj(-15, window), b""
    while not inflater.eof:
        pending = pending or next(source, b"")
        fed = len(pending)
        try:
            chunk = inflater.decompress(pending, CHUNK)
        except BROKEN as error:
            raise InflateError(f"its deflate data is broken ({error})") from error
        pending = inflater.unconsumed_tail
        if chunk:
            yield chunk
        elif not fed and not inflater.eof:
            if more():
                break
            raise InflateError("its deflate data ends early")
    if inflater.unused_data or next(source, b""):
        raise InflateError("bytes follow the end of its deflate data")
