"""Inflation of raw deflate data in chunks of bounded size (RFC 1951)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, cast

from isal import isal_zlib

CHUNK = 1 << 20
"""Maximum number of uncompressed bytes per chunk."""
PACKED_CHUNK = 256 << 10
"""Number of compressed bytes per read."""
BROKEN = cast("type[Exception]", isal_zlib.IsalError)
"""Error of ISA-L for damaged data."""

T = TypeVar("T")


class InflateError(Exception):
    """Damaged or truncated deflate data; the message continues "<member> is damaged: "."""


def packed_chunks(
    pread: Callable[[int, int], T], offset: int, size: int
) -> Iterator[T]:
    """Yield bytes [offset, offset + size) of a file in chunks.

    Fewer bytes if the file ends early.
    """
    for at in range(offset, offset + size, PACKED_CHUNK):
        yield pread(min(PACKED_CHUNK, offset + size - at), at)


def inflate(packed: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Yield the uncompressed bytes of a stream that must end with the last packed byte.

    Args:
        packed: chunks of the stream; read only as needed.

    Raises:
        InflateError: the data is damaged; raised after the chunks before the damage.
    """
    source = iter(packed)
    inflater = isal_zlib.decompressobj(-15)
    pending: bytes | memoryview = b""
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
            raise InflateError("its deflate data ends early")
    if inflater.unused_data or next(source, b""):
        raise InflateError("bytes follow the end of its deflate data")
