"""Metadata of AMDGPU code objects: the msgpack note that the runtime reads.

Source: LLVM, "User Guide for AMDGPU Backend": code object V3 and later metadata.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

import msgpack

from core.errors import ElfError
from wheelkit.elf import reader
from wheelkit.elf.reader import Image

_NT_AMDGPU_METADATA = 32
_NOTE = struct.Struct("<III")


def read_metadata(image: Image) -> Mapping[str, Any]:
    """The metadata of a code object.

    Raises:
        ElfError: there are none, or they cannot be read.
    """
    for section in image.sections:
        if section.type == reader.SHT_NOTE:
            for name, kind, description in _notes(image.contents(section)):
                if (name, kind) == (b"AMDGPU\0", _NT_AMDGPU_METADATA):
                    try:
                        value = msgpack.unpackb(description)
                    except ValueError as reason:
                        raise ElfError(f"{image.label} has metadata that cannot be read: {reason}.") from reason
                    if isinstance(value, dict):
                        return value
    raise ElfError(f"{image.label} has no metadata about its kernels.", hint="The compiler did not finish it.")


def kernarg_sizes(image: Image) -> dict[str, int]:
    """Kernel symbol -> bytes of its arguments; the symbol is that of the descriptor without `.kd`.

    Raises:
        ElfError: as `read_metadata`, or an entry is not what the guide says.
    """
    try:
        return {
            str(entry[".symbol"]).removesuffix(".kd"): int(entry[".kernarg_segment_size"])
            for entry in read_metadata(image).get("amdhsa.kernels", ())
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ElfError(f"{image.label} has metadata without {error}.", hint="It is damaged.") from error


def _notes(data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Name, type and description of each note of a section; they begin at multiples of 4."""
    at = 0
    while at + _NOTE.size <= len(data):
        name_size, size, kind = _NOTE.unpack_from(data, at)
        at += _NOTE.size
        start = at + name_size + -name_size % 4
        yield data[at : at + name_size], kind, data[start : start + size]
        at = start + size + -size % 4
