"""Files as `xz -T` makes them, made by hand: blocks that tell both their sizes (The .xz File Format, version 1.2.1)."""

from __future__ import annotations

import lzma
from zlib import crc32

_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 0}]
_LZMA2 = b"\x21\x01"
"""Filter 0x21 with one byte of properties."""
_CRC32 = b"\0\x01"


def pack(plain: bytes, size: int, dictionary: int = 12) -> bytes:
    """One stream with a block for each `size` plain bytes.

    Args:
        dictionary: how large a one it asks for, in the steps of the format: 12 is 256 KiB, as preset 0 has it, 30 is
            128 MiB, 40 is 4 GiB.
    """
    made, records = b"\xfd7zXZ\0" + _CRC32 + _sum(_CRC32), b""
    starts = range(0, len(plain), size)
    for start in starts:
        part = plain[start : start + size]
        packed = lzma.compress(part, lzma.FORMAT_RAW, filters=_FILTERS)
        header = b"\xc0" + _number(len(packed)) + _number(len(part)) + _LZMA2 + bytes([dictionary])
        header += bytes(-(len(header) + 1) % 4)
        header = bytes([(len(header) + 1) // 4]) + header
        header += _sum(header)
        made += header + packed + bytes(-len(packed) % 4) + _sum(part)
        records += _number(len(header) + len(packed) + 4) + _number(len(part))
    index = b"\0" + _number(len(starts)) + records
    index += bytes(-len(index) % 4)
    index += _sum(index)
    footer = (len(index) // 4 - 1).to_bytes(4, "little") + _CRC32
    return made + index + _sum(footer) + footer + b"YZ"


def _sum(data: bytes) -> bytes:
    return crc32(data).to_bytes(4, "little")


def _number(value: int) -> bytes:
    """Seven bits a byte, the smallest first; all but the last have their highest bit."""
    made = b""
    while value >= 0x80:
        made, value = made + bytes([value % 0x80 + 0x80]), value // 0x80
    return made + bytes([value])
