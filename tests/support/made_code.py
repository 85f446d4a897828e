"""Generated AMDGPU code objects with given kernels and machine code."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

import msgspec

from core.targets import machs

XNACK_OFF, XNACK_ON, SRAMECC_ON = 2 << 8, 3 << 8, 3 << 10
"""Settings of features in e_flags, as of code object V4."""
MI300 = machs()["gfx942"] | XNACK_OFF | SRAMECC_ON
"""The e_flags of gfx942:sramecc+:xnack-."""

END = struct.pack("<I", 0xBF810000)
"""s_endpgm of gfx9."""
KERNEL: Mapping[str, object] = {
    ".name": "fusion",
    ".group_segment_fixed_size": 0,
    ".vgpr_count": 8,
    ".vgpr_spill_count": 0,
    ".sgpr_spill_count": 0,
    ".private_segment_fixed_size": 0,
}
"""Metadata of a kernel."""


def made_code(
    flags: int = MI300,
    *,
    kernels: Iterable[Mapping[str, object]] = (KERNEL,),
    note: bytes | None = None,
    abi: int = 4,
) -> bytes:
    """Return a code object with a note about its kernels and a section of machine code.

    Args:
        flags: e_flags.
        note: content of the metadata note, instead of the one about `kernels`.
        abi: EI_ABIVERSION.
    """
    about = {
        "amdhsa.version": [1, 2],
        "amdhsa.kernels": list(kernels),
    }
    description = msgspec.msgpack.encode(about) if note is None else note
    body = (
        struct.pack("<III", 7, len(description), 32)
        + b"AMDGPU\0\0"
        + description
        + bytes(-len(description) % 4)
    )
    names = b"\0.note\0.text\0.shstrtab\0"
    rows = [bytes(64)]
    data = bytearray(64)
    for name, kind, content in (
        (1, 7, body),
        (7, 1, END),
        (13, 3, names),
    ):
        data += bytes(-len(data) % 16)
        rows.append(
            struct.pack(
                "<IIQQQQIIQQ", name, kind, 0, 0, len(data), len(content), 0, 0, 4, 0
            )
        )
        data += content
    data += bytes(-len(data) % 8)
    ident = (b"\x7fELF\x02\x01\x01\x40" + bytes([abi])).ljust(16, b"\0")
    data[:64] = struct.pack(
        "<16sHHIQQQIHHHHHH",
        ident,
        3,
        224,
        1,
        0,
        0,
        len(data),
        flags,
        64,
        0,
        0,
        64,
        len(rows),
        3,
    )
    return bytes(data) + b"".join(rows)
