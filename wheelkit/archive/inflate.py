"""Raw deflate data as a stream of bounded chunks, whatever it expands to (RFC 1951)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import cast

from isal import isal_zlib

CHUNK = 1 << 20
"""The most uncompressed bytes handed out at a time."""
PACKED_CHUNK = 256 << 10
"""Compressed bytes read at a time."""
WINDOW = 32 << 10
"""Bytes that a block may refer back to."""
_BROKEN = cast("type[Exception]", isal_zlib.IsalError)


class InflateError(Exception):
    """Data that is no deflate stream, or not one of this length; the message goes on after "it is damaged: "."""


def packed_chunks(pread: Callable[[int, int], bytes], offset: int, size: int) -> Iterator[bytes]:
    """Bytes [offset, offset + size) of a file, piece by piece; fewer where it ends early."""
    for at in range(offset, offset + size, PACKED_CHUNK):
        yield pread(min(PACKED_CHUNK, offset + size - at), at)


def inflate(
    packed: Iterable[bytes], *, window: bytes = b"", more: Callable[[], bool] = lambda: False
) -> Iterator[bytes]:
    """Uncompressed bytes of a stream, which has to end with the last of the packed ones.

    Args:
        packed: the stream; what is asked for is needed.
        window: what comes before, up to 32 KiB, where the stream begins in the middle of another one.
        more: asked behind the packed bytes: whether the stream may go on, as after a sync flush.

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
            if more():
                break
            raise InflateError("its deflate data ends early")
    if inflater.unused_data or next(source, b""):
        raise InflateError("bytes follow the end of its deflate data")
