"""Records of the zip format, and functions that read them (PKWARE APPNOTE.TXT 6.3.10).

Reading collects problems instead of stopping at the first problem. `zip_check` checks
the members that were read; `member_writer` writes the same records.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Callable
from typing import NamedTuple

from core.errors import ArchiveError

STORED = 0
DEFLATED = 8
UTF8_NAME = 0x0800
HAS_DESCRIPTOR = 0x0008
MAX16 = 0xFFFF
MAX32 = 0xFFFFFFFF
MAX_DIRECTORY = 64 << 20
"""Maximum size of a central directory in bytes; the directory is read into memory at once."""

LOCAL = struct.Struct("<4s5H3L2H")
CENTRAL = struct.Struct("<4s6H3L5H2L")
END = struct.Struct("<4s4H2LH")
END64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR64 = struct.Struct("<4sLQL")
ZIP64_EXTRA = 0x0001
UNICODE_PATH_EXTRA = 0x7075

# Start-up time: named tuples are used, since importing dataclasses takes half as long
# as copying a wheel.

Pread = Callable[[int, int], bytes]
"""(size, offset) -> bytes of the archive; shorter at its end."""


class ZipMember(NamedTuple):
    """One file of an archive, as the central directory describes it.

    Attributes:
        method: compression method; 0 means stored, 8 deflated.
        crc32: CRC-32 of the uncompressed bytes.
        mode: Unix permission bits, 0 if the archive has none.
        external_attr: the 32 bits of the central directory; the upper 16 are st_mode on
            Unix.
        header_offset: offset of the local header.
        data_offset: offset of the (compressed) data.
        flags: general purpose bit flag.
    """

    name: str
    method: int
    crc32: int
    compressed_size: int
    size: int
    external_attr: int
    header_offset: int
    data_offset: int
    flags: int = 0

    @property
    def mode(self) -> int:
        """Unix permission bits, 0 if the archive has none."""
        return stat.S_IMODE(self.external_attr >> 16) & 0o777

    @property
    def data_end(self) -> int:
        """Offset of the first byte after the data."""
        return self.data_offset + self.compressed_size


class EndRecord(NamedTuple):
    """Position and size of the central directory, from the classic or zip64 end record."""

    members: int
    directory_offset: int
    directory_size: int


class LocalHeader(NamedTuple):
    """The header before a member's data; it must agree with the central directory."""

    name: bytes
    flags: int
    method: int
    crc32: int
    compressed_size: int
    size: int
    data_offset: int


def read_end(pread: Pread, file_size: int) -> EndRecord:
    """Find the end of central directory record; nothing may follow it or its comment.

    Raises:
        ArchiveError: the record is missing or ambiguous, the archive is split, or its
            end records disagree.
    """
    start = max(0, file_size - END.size - MAX16)
    tail = pread(file_size - start, start)
    ends = []
    for match in re.finditer(b"PK\5\6", tail):
        at = match.start()
        after = at + END.size
        if after <= len(tail) and after + END.unpack_from(tail, at)[7] == len(tail):
            ends.append(at)
    if len(ends) != 1:
        what = (
            "the file was cut short, bytes follow its end, or it is not a zip archive"
            if not ends
            else "several end records are possible"
        )
        raise ArchiveError(
            f"The archive has no single end record: {what}.",
            hint="Download the wheel again.",
        )
    at = start + ends[0]
    _, disk, first_disk, here, count, size, offset, _ = END.unpack_from(tail, ends[0])
    classic = (disk, first_disk, here, count, size, offset)
    expected_end = at
    locator = (
        pread(LOCATOR64.size, at - LOCATOR64.size) if at >= LOCATOR64.size else b""
    )
    if locator.startswith(b"PK\6\7"):
        end64_at = LOCATOR64.unpack(locator)[2]
        raw = pread(END64.size, end64_at)
        if len(raw) < END64.size or not raw.startswith(b"PK\6\6"):
            raise ArchiveError(
                "The zip64 end record is not at the offset in its locator.",
                hint="Download the wheel again.",
            )
        _, record_size, _, _, *wide = END64.unpack(raw)
        disk, first_disk, here, count, size, offset = wide
        if end64_at + 12 + record_size + LOCATOR64.size != at:
            raise ArchiveError(
                "There are bytes between the zip64 end record and its locator."
            )
        limits = (MAX16, MAX16, MAX16, MAX16, MAX32, MAX32)
        for old, new, limit in zip(classic, wide, limits, strict=True):
            if old not in (new, limit):
                raise ArchiveError(
                    "The zip64 end record disagrees with the classic one."
                )
        expected_end = end64_at
    if disk or first_disk or here != count:
        raise ArchiveError("The archive is split over several disks.")
    if offset + size != expected_end:
        raise ArchiveError(
            f"The central directory should end at byte {offset + size}, but its end"
            f" record begins at {expected_end}.",
            hint="Bytes were added or lost. Download the wheel again.",
        )
    if size > MAX_DIRECTORY:
        raise ArchiveError(
            f"The central directory has {size} bytes; the limit is {MAX_DIRECTORY}."
        )
    return EndRecord(members=count, directory_offset=offset, directory_size=size)


def read_central(directory: bytes, count: int, problems: list[str]) -> list[ZipMember]:
    """Read the central directory; `data_offset` stays 0 until the local headers are read.

    Raises:
        ArchiveError: the directory cannot be split into entries.
    """
    members: list[ZipMember] = []
    at = 0
    while at < len(directory):
        if at + CENTRAL.size > len(directory) or not directory.startswith(
            b"PK\1\2", at
        ):
            raise ArchiveError(
                f"The central directory is damaged at entry {len(members)}."
            )
        fields = CENTRAL.unpack_from(directory, at)
        _, _, _, flags, method, _, _, crc, packed, size = fields[:10]
        name_size, extra_size, comment_size, disk, _, attr, offset = fields[10:]
        at += CENTRAL.size
        raw_name = directory[at : at + name_size]
        raw_extra = directory[at + name_size : at + name_size + extra_size]
        at += name_size + extra_size + comment_size
        if at > len(directory):
            raise ArchiveError(
                f"The central directory is damaged at entry {len(members)}."
            )
        name = _decode_name(raw_name, flags, problems)
        extra = _read_extra(raw_extra, raw_name, name, problems)
        size, packed, offset = _widen((size, packed, offset), extra, name, problems)
        if disk not in (0, MAX16):
            problems.append(f"{name}: it is on another disk")
        members.append(
            ZipMember(
                name=name,
                method=method,
                crc32=crc,
                compressed_size=packed,
                size=size,
                external_attr=attr,
                header_offset=offset,
                data_offset=0,
                flags=flags,
            )
        )
    if len(members) != count:
        problems.append(
            f"the end record declares {count} members, but the central directory has"
            f" {len(members)}"
        )
    return members


def read_local(
    pread: Pread, member: ZipMember, problems: list[str]
) -> LocalHeader | None:
    """Read the local header of `member`; without one, add a problem and return None."""
    raw = pread(LOCAL.size, member.header_offset)
    if len(raw) < LOCAL.size or not raw.startswith(b"PK\3\4"):
        problems.append(
            f"{member.name}: no local header at byte {member.header_offset}"
        )
        return None
    _, _, flags, method, _, _, crc, packed, size, name_size, extra_size = LOCAL.unpack(
        raw
    )
    rest = pread(name_size + extra_size, member.header_offset + LOCAL.size)
    extra = _read_extra(rest[name_size:], rest[:name_size], member.name, problems)
    size, packed = _widen((size, packed), extra, member.name, problems)
    data_offset = member.header_offset + LOCAL.size + name_size + extra_size
    return LocalHeader(
        name=rest[:name_size],
        flags=flags,
        method=method,
        crc32=crc,
        compressed_size=packed,
        size=size,
        data_offset=data_offset,
    )


def descriptor_size(pread: Pread, member: ZipMember) -> int | None:
    """Return the length of the data descriptor after a member's data (APPNOTE 4.3.9).

    None for a wrong descriptor.
    """
    raw = pread(24, member.data_end)
    sizes = (member.compressed_size, member.size)
    layouts = ["<LQQ"] if max(sizes) > MAX32 else ["<LQQ", "<LLL"]
    for signature in (b"PK\7\x08", b""):
        for layout in layouts:
            right = signature + struct.pack(layout, member.crc32, *sizes)
            if raw.startswith(right):
                return len(right)
    return None


def _decode_name(raw: bytes, flags: int, problems: list[str]) -> str:
    """Decode a member's name.

    UTF-8 with the UTF-8 flag (PEP 427), else ASCII, which every reader decodes alike.
    """
    try:
        return raw.decode("utf-8" if flags & UTF8_NAME else "ascii")
    except UnicodeDecodeError:
        name = raw.decode("utf-8", "backslashreplace")
        problems.append(f"{name}: the encoding of its name is ambiguous")
        return name


def _read_extra(
    raw: bytes, raw_name: bytes, name: str, problems: list[str]
) -> dict[int, bytes]:
    fields: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(raw):
        kind, size = struct.unpack_from("<HH", raw, at)
        end = at + 4 + size
        if end > len(raw) or kind in fields:
            break
        fields[kind] = raw[at + 4 : end]
        at = end
    if at != len(raw):
        problems.append(f"{name}: its extra fields are malformed")
    if fields.get(UNICODE_PATH_EXTRA, b"12345" + raw_name)[5:] != raw_name:
        problems.append(f"{name}: an extra field contains another name")
    return fields


def _widen(
    values: tuple[int, ...], extra: dict[int, bytes], name: str, problems: list[str]
) -> tuple[int, ...]:
    """Replace each value of 0xFFFFFFFF by the next of the zip64 field (APPNOTE 4.5.3)."""
    wide = extra.get(ZIP64_EXTRA, b"")
    needed = sum(value == MAX32 for value in values)
    if needed and len(wide) < 8 * needed:
        problems.append(f"{name}: its zip64 sizes are missing")
        return values
    numbers = iter(struct.unpack_from(f"<{needed}Q", wide)) if needed else iter(())
    return tuple(next(numbers) if value == MAX32 else value for value in values)


def full_pread(fd: int, size: int, offset: int) -> bytes:
    """Read like `os.pread`, but return fewer bytes only at the end of the file."""
    data = os.pread(fd, size, offset)
    while len(data) < size and (
        more := os.pread(fd, size - len(data), offset + len(data))
    ):
        data += more
    return data
