"""GPU code in a serialised XLA executable.

Uses only the standard library, since the child process imports it.

An executable contains a Riegeli/records file, whose records may contain another such
file (jaxlib 0.12); before jaxlib 0.10 an executable is a single protocol buffer. Each
code object is stored as a complete ELF file, so the records are unpacked and searched
for ELF headers.

Source of the formats: "Riegeli/records file format specification" (google/riegeli,
doc/riegeli_records_file_format.md) and "Snappy compressed format description"
(google/snappy, format_description.txt).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

EM_AMDGPU = 224
SHT_NOBITS = 8
ELF_MAGIC = b"\x7fELF\x02\x01"
SIGNATURE = bytes.fromhex(
    "83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9"
    "0000000000000000e19f13c0e9b1c37273000000000000000000000000000000"
)
"""Beginning of every Riegeli/records file: the header of its first block and an empty chunk."""
BLOCK = 65536
BLOCK_HEADER = 24
CHUNK_HEADER = 40
CHUNKS = b"smprt"
"""Types of chunks: signature, metadata, padding, simple, transposed."""
SIMPLE = ord("r")
UNCOMPRESSED = 0
SNAPPY = ord("s")


class ExecutableError(ValueError):
    """A serialised executable that is damaged or has an unknown format."""


def code_objects(executable: bytes) -> list[bytes]:
    """Return the AMDGPU ELF files in a serialised executable, in order.

    Raises:
        ExecutableError: the executable is damaged, or its compression is unknown.
    """
    try:
        while (start := executable.find(SIGNATURE)) >= 0:
            executable = b"".join(_records(executable[start:]))
        return list(_elfs(executable))
    except (struct.error, IndexError) as error:
        raise ExecutableError(
            f"the serialised executable is truncated: {error}"
        ) from error


def _elfs(data: bytes) -> Iterator[bytes]:
    # An ELF file ends with its table of section headers or with its last section,
    # whichever ends later.
    at = data.find(ELF_MAGIC)
    while at >= 0:
        (machine,) = struct.unpack_from("<H", data, at + 18)
        (headers,) = struct.unpack_from("<Q", data, at + 40)
        size, count = struct.unpack_from("<HH", data, at + 58)
        end = headers + size * count
        for number in range(count):
            kind, _, _, offset, length = struct.unpack_from(
                "<IQQQQ", data, at + headers + number * size + 4
            )
            end = max(end, offset if kind == SHT_NOBITS else offset + length)
        if at + end > len(data):
            raise ExecutableError(
                "a code object in the serialised executable is truncated"
            )
        if machine == EM_AMDGPU:
            yield data[at : at + end]
        at = data.find(ELF_MAGIC, at + end)


def _records(file: bytes) -> Iterator[bytes]:
    """Yield the decompressed chunks of a Riegeli/records file; data after the file is ignored."""
    stream = b"".join(
        file[at + BLOCK_HEADER : at + BLOCK] for at in range(0, len(file), BLOCK)
    )
    at = 0
    while at + CHUNK_HEADER <= len(stream):
        size, _, kind = struct.unpack_from("<8xQQB", stream, at)
        at += CHUNK_HEADER
        if kind not in CHUNKS or at + size > len(stream):
            return
        data = stream[at : at + size]
        at += size
        if kind == SIMPLE:
            sizes, begin = _varint(data, 1)
            yield _decompress(data[0], data[begin + sizes :])
        elif size:
            raise ExecutableError(
                f"the serialised executable has a chunk of unknown type {chr(kind)!r}"
            )


def _decompress(kind: int, data: bytes) -> bytes:
    if kind == UNCOMPRESSED:
        return data
    if kind != SNAPPY:
        raise ExecutableError(
            f"the serialised executable uses the unknown compression {chr(kind)!r}"
        )
    size, begin = _varint(data, 0)
    return snappy(data[begin:], size)


def snappy(data: bytes, size: int) -> bytes:
    """Decompress a Snappy buffer of `size` bytes."""
    expected, at = _varint(data, 0)
    out = bytearray()
    while at < len(data):
        tag = data[at]
        at += 1
        if tag & 3 == 0:
            length = tag >> 2
            if length >= 60:
                width = length - 59
                length = int.from_bytes(data[at : at + width], "little")
                at = at + width
            out += data[at : at + length + 1]
            at += length + 1
            continue
        if tag & 3 == 1:
            length = 4 + (tag >> 2 & 7)
            distance = (tag >> 5) << 8 | data[at]
            at += 1
        else:
            width = 2 if tag & 3 == 2 else 4
            length = (tag >> 2) + 1
            distance = int.from_bytes(data[at : at + width], "little")
            at = at + width
        if not 0 < distance <= len(out):
            raise ExecutableError(
                "a Snappy buffer in the serialised executable is damaged"
            )
        piece = out[-distance:][:length]
        out += (piece * (length // distance + 1))[:length]
    if not size == expected == len(out):
        raise ExecutableError(
            f"a Snappy buffer in the serialised executable has {len(out)} bytes"
            f" unpacked, not {size}"
        )
    return bytes(out)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a LEB128 number and the position after it."""
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        at += 1
        shift = shift + 7
    return value | data[at] << shift, at + 1
