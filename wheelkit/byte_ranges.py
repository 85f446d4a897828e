"""Ranges of bytes that an edit of a file has changed."""

from __future__ import annotations

from collections.abc import Sequence

ByteRange = tuple[int, int]
"""Bytes [start, end) of a file."""


def merge_ranges(ranges: Sequence[ByteRange], size: int) -> tuple[ByteRange, ...]:
    """Sort ranges, clip them to `size` bytes and join those that touch."""
    joined: list[ByteRange] = []
    for start, end in sorted((start, min(end, size)) for start, end in ranges if start < min(end, size)):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return tuple(joined)
