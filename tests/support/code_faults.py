"""Faults of one code object, with the finding of each."""

from __future__ import annotations

from typing import NamedTuple

from tests.support.whole_code import Edit, descriptor, metadata, put, section_bytes, segment

_OF_GFX90A = {"amdhsa.target": "amdgcn-amd-amdhsa--gfx90a"}
DAMAGED, DESCRIPTOR = "code-object-damaged", "kernel-descriptor-wrong"


class CodeFault(NamedTuple):
    """An edit of gfx942's code, and the code of its finding."""

    name: str
    how: str
    edit: Edit
    code: str


def _other_note(note: bytes) -> bytes:
    return note[:8] + b"\x21" + note[9:]


def _no_msgpack(note: bytes) -> bytes:
    return note[:20] + b"\xc1" * (len(note) - 20)


CODE_FAULTS = (
    CodeFault("kernel descriptor of zeros", "all 64 bytes", descriptor(0, "64s", bytes(64)), DESCRIPTOR),
    CodeFault("kernel without machine code", "the offset of its entry is 0", descriptor(16, "q", 0), DESCRIPTOR),
    CodeFault("machine code not executable", "flags of its segment", segment(1, 4, "I", 4, flags=5), DESCRIPTOR),
    CodeFault("no metadata", "the note has another type", section_bytes(".note", _other_note), DAMAGED),
    CodeFault("metadata that is not msgpack", "overwritten", section_bytes(".note", _no_msgpack), DAMAGED),
    CodeFault(
        "kernel without a symbol",
        "in metadata",
        metadata(lambda about: about["amdhsa.kernels"][0].pop(".symbol")),
        DAMAGED,
    ),
    CodeFault(
        "metadata of another gfx",
        "`amdhsa.target`",
        metadata(lambda about: about.update(_OF_GFX90A)),
        "code-object-wrong",
    ),
    CodeFault("unknown code object ABI", "9 in the header", put(8, "B", 9), DAMAGED),
    CodeFault("code object ABI of V2", "0 in the header", put(8, "B", 0), DAMAGED),
)
