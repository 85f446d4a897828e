"""Raw deflate data as a stream of bounded chunks, whatever it expands to (RFC 1951)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

from isal import isal_zlib

CHUNK = 1 << 20
"""The most uncompressed bytes handed out at a time."""
_PACKED_CHUNK = 256 << 10
_BROKEN = cast("type[Exception]", isal_zlib.IsalError)


class InflateError(Exception):
    """Data that is no deflate stream, or not one of this length; the message goes on after "it is damaged: "."""


def inflate(
    pread: Callable[[int, int], bytes], offset: int, size: int, *, window: bytes = b"", last: bool = True
) -> Iterator[bytes]:
    """Uncompressed bytes of the stream in bytes [offset, offset + size) of a file.

    Args:
        pread: reads (size, offset) of the file.
        offset: where the stream begins.
        size: its compressed bytes; it has to end with the last one.
        window: what comes before, up to 32 KiB, where the stream begins in the middle of another one.
        last: False where that other stream goes on, as after a sync flush.

    Raises:
        InflateError: after the chunks before the damage.
    """
    inflater = isal_zlib.decompressobj(-15, window)
    at, end, pending = offset, offset + size, b""
    while not inflater.eof:
        if not pending:
            pending = pread(min(_PACKED_CHUNK, end - at), at)
            at += len(pending)
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
    if inflater.unused_data or at != end:
        raise InflateError("bytes follow the end of its deflate data")
