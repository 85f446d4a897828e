"""Records of the zip format as they are written; zip64 where a number needs it (APPNOTE 4.3 to 4.5)."""

from __future__ import annotations

import struct

from wheelkit.archive.zip_format import (
    CENTRAL,
    END,
    END64,
    LOCAL,
    LOCATOR64,
    MAX16,
    MAX32,
    UTF8_NAME,
    ZIP64_EXTRA,
    DateTime,
    ZipMember,
)


def is_wide(size: int) -> bool:
    """Return whether a number of bytes needs zip64."""
    return size >= MAX32


def local_header(member: ZipMember, *, wide: bool | None = None) -> bytes:
    """Return the local header of `member`; zip64 if a size needs it, or as `wide` says."""
    name = member.name.encode()
    if wide is None:
        wide = is_wide(max(member.size, member.compressed_size))
    extra = struct.pack("<HHQQ", ZIP64_EXTRA, 16, member.size, member.compressed_size) if wide else b""
    date, time = _to_dos(member.date_time)
    packed, size = (MAX32, MAX32) if wide else (member.compressed_size, member.size)
    head = LOCAL.pack(
        b"PK\3\4", 45 if wide else 20, _name_flag(name), member.method, time, date, member.crc32, packed, size,
        len(name), len(extra),
    )  # fmt: skip
    return head + name + extra


def central_directory(members: list[ZipMember], offset: int) -> bytes:
    """Return the central directory and end records for members in this order, written at `offset`."""
    entries = b"".join(_central_entry(member) for member in members)
    count, size = len(members), len(entries)
    end64 = b""
    if count >= MAX16 or size >= MAX32 or offset >= MAX32:
        end64 = END64.pack(b"PK\6\6", END64.size - 12, 0x032D, 45, 0, 0, count, count, size, offset)
        end64 += LOCATOR64.pack(b"PK\6\7", 0, offset + size, 1)
    short = min(count, MAX16)
    return entries + end64 + END.pack(b"PK\5\6", 0, 0, short, short, min(size, MAX32), min(offset, MAX32), 0)


def _central_entry(member: ZipMember) -> bytes:
    name = member.name.encode()
    values = (member.size, member.compressed_size, member.header_offset)
    wide = [value for value in values if value >= MAX32]
    extra = struct.pack(f"<HH{len(wide)}Q", ZIP64_EXTRA, 8 * len(wide), *wide) if wide else b""
    date, time = _to_dos(member.date_time)
    need = 45 if wide else 20
    head = CENTRAL.pack(
        b"PK\1\2", 3 << 8 | need, need, _name_flag(name), member.method, time, date, member.crc32,
        min(member.compressed_size, MAX32), min(member.size, MAX32), len(name), len(extra), 0, 0, 0,
        member.external_attr, min(member.header_offset, MAX32),
    )  # fmt: skip
    return head + name + extra


def _to_dos(when: DateTime) -> tuple[int, int]:
    year, month, day, hour, minute, second = when
    return (year - 1980) << 9 | month << 5 | day, hour << 11 | minute << 5 | second // 2


def _name_flag(name: bytes) -> int:
    return 0 if name.isascii() else UTF8_NAME
