"""Faults of one code object, with the finding of each."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.support.whole_code import (
    Edit,
    both,
    descriptor,
    kernel_field,
    kernel_symbol,
    metadata,
    put,
    section_bytes,
    segment,
)
from wheelkit.elf.reader import ElfImage

_TRIPLE = "amdgcn-amd-amdhsa--"
_LDS, _SCRATCH, _KERNARG, _RSRC3, _RSRC1, _RSRC2, _PROPERTIES = 0, 4, 8, 44, 48, 52, 56
"""Offsets in a kernel descriptor."""


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


def _endless(text: bytes) -> bytes:
    return text.replace(b"\0\0\x81\xbf", b"\0\0\x80\xbf")


def _reads_y(text: bytes) -> bytes:
    """Put v_bfe_u32 v1, v0, 10, 10 into the first kernel."""
    return text[:64] + b"\x01\x00\xc8\xd1\x00\x15\x29\x02" + text[72:]


def _bitop3(text: bytes) -> bytes:
    """Put v_bitop3_b32 v5, v1, v2, v3 of gfx950 into the first kernel."""
    return text[:56] + b"\x05\x00\x34\xd2\x01\x05\x0e\x04" + text[64:]


def _idle(text: bytes) -> bytes:
    return b"\0\0\x81\xbf" + text[4:]


def _hole(text: bytes) -> bytes:
    return text[:64] + bytes(64) + text[128:]


def _no_instructions(text: bytes) -> bytes:
    return text[:64] + b"\xff" * 64 + text[128:]


def _dynamic(tag: int, change: Callable[[int], int], *, new: int | None = None) -> Edit:
    """Change the value of an entry of the dynamic table, and its tag if `new` is given."""

    def edit(data: bytearray) -> None:
        entry = next(entry for entry in ElfImage.parse(bytes(data), "code").dynamic() if entry.tag == tag)
        struct.pack_into("<qQ", data, entry.offset, tag if new is None else new, change(entry.value))

    return edit


def _longer(about: dict[str, Any]) -> None:
    about["amdhsa.kernels"][0][".kernarg_segment_size"] += 32


def _longer_segment(data: bytearray) -> None:
    image = ElfImage.parse(bytes(data), "code")
    symbol = next(symbol for symbol, name in image.dynamic_symbols() if name.endswith(".kd"))
    at = image.offset_of(symbol.value) + _KERNARG
    struct.pack_into("<I", data, at, int.from_bytes(data[at : at + 4], "little") + 32)


DAMAGED, DESCRIPTOR, METADATA = "code-object-damaged", "kernel-descriptor-wrong", "kernel-metadata-wrong"


def _argument(**fields: object) -> Edit:
    """Change fields of the second argument of the first kernel's metadata."""
    return metadata(
        lambda about: about["amdhsa.kernels"][0][".args"][1].update({f".{k}": v for k, v in fields.items()})
    )


def _about(**fields: object) -> Edit:
    """Change fields of the metadata, whose names lack `amdhsa.`."""
    return metadata(lambda about: about.update({f"amdhsa.{key}": value for key, value in fields.items()}))


CODE_FAULTS = (
    # Kernel descriptors.
    CodeFault("kernel descriptor of zeros", "all 64 bytes", descriptor(0, "64s", bytes(64)), DESCRIPTOR),
    CodeFault("kernel without machine code", "the offset of its entry is 0", descriptor(16, "q", 0), DESCRIPTOR),
    CodeFault(
        "kernel that begins elsewhere", "its function is 256 bytes before", kernel_symbol("", 8, "Q", 256), DESCRIPTOR
    ),
    CodeFault("LDS above the limit", "200000 bytes in the descriptor", descriptor(_LDS, "I", 200000), DESCRIPTOR),
    CodeFault("scratch above the limit", "1 GB in the descriptor", descriptor(_SCRATCH, "I", 1 << 30), DESCRIPTOR),
    CodeFault("fewer VGPRs than used", "8 in the descriptor", descriptor(_RSRC1, "B", 0xC0), DESCRIPTOR),
    CodeFault("too many VGPRs for a work-group", "512 in the descriptor", descriptor(_RSRC1, "B", 0xFF), DESCRIPTOR),
    CodeFault("fewer SGPRs than used", "8 in the descriptor", descriptor(_RSRC1, "H", 7), DESCRIPTOR),
    CodeFault("wave32 on gfx942", "in the descriptor", descriptor(_PROPERTIES + 1, "B", 4), DESCRIPTOR),
    CodeFault("kernarg segment too short", "8 bytes in the descriptor", descriptor(_KERNARG, "I", 8), DESCRIPTOR),
    CodeFault("AccVGPRs among the VGPRs", "ACCUM_OFFSET is 4", descriptor(_RSRC3, "I", 0), DESCRIPTOR),
    CodeFault("no user SGPRs", "USER_SGPR_COUNT is 0", descriptor(_RSRC2, "B", 1), DESCRIPTOR),
    CodeFault("reserved bits in a kernel descriptor", "byte 60 is 1", descriptor(60, "B", 1), DESCRIPTOR),
    CodeFault("address of arguments unknown", "not among the user SGPRs", descriptor(_PROPERTIES, "B", 0), DESCRIPTOR),
    CodeFault("undefined work-item IDs", "3 in the descriptor", descriptor(_RSRC2 + 1, "B", 0x18), DESCRIPTOR),
    CodeFault("kernel descriptor of 32 bytes", "the size of its symbol", kernel_symbol(".kd", 16, "Q", 32), DESCRIPTOR),
    CodeFault("kernel that rounds down", "FLOAT_ROUND_MODE is 2", descriptor(_RSRC1 + 1, "B", 0x20), DESCRIPTOR),
    CodeFault("denormals flushed", "FLOAT_DENORM_MODE_16_64 is 0", descriptor(_RSRC1 + 2, "B", 0xA0), DESCRIPTOR),
    CodeFault("hidden kernel", "the visibility of its symbol", kernel_symbol(".kd", 5, "B", 2), DESCRIPTOR),
    CodeFault("local kernel", "the binding of its symbol", kernel_symbol(".kd", 4, "B", 0x01), DESCRIPTOR),
    CodeFault("kernel that is no object", "the type of its symbol", kernel_symbol(".kd", 4, "B", 0x10), DESCRIPTOR),
    CodeFault("a user SGPR too many", "8 instead of 6", descriptor(_RSRC2, "B", 0x80 | 8 << 1 | 1), DESCRIPTOR),
    CodeFault("IEEE mode off", "ENABLE_IEEE_MODE is 0", descriptor(_RSRC1 + 2, "B", 0x2C), DESCRIPTOR),
    CodeFault(
        "work-item ID not enabled",
        "it reads y, and gets x",
        both(section_bytes(".text", _reads_y), descriptor(_RSRC2 + 1, "B", 0)),
        DESCRIPTOR,
    ),
    CodeFault("instruction of gfx950", "v_bitop3_b32", section_bytes(".text", _bitop3), "code-object-wrong"),
    CodeFault(
        "scratch buffer of an older GPU",
        "among the user SGPRs",
        both(descriptor(_PROPERTIES, "B", 0b1001), descriptor(_RSRC2, "B", 0x80 | 6 << 1 | 1)),
        DESCRIPTOR,
    ),
    CodeFault("stack of another kind", "USES_DYNAMIC_STACK is 1", descriptor(_PROPERTIES + 1, "B", 8), DESCRIPTOR),
    CodeFault("kernel that does nothing", "it begins with s_endpgm", section_bytes(".text", _idle), DESCRIPTOR),
    CodeFault("kernel with a hole", "64 bytes of zeros", section_bytes(".text", _hole), DESCRIPTOR),
    CodeFault("kernel without an end", "s_endpgm replaced by s_nop", section_bytes(".text", _endless), DESCRIPTOR),
    # Metadata.
    CodeFault("no metadata", "the note has another type", section_bytes(".note", _other_note), METADATA),
    CodeFault("metadata that is not msgpack", "overwritten", section_bytes(".note", _no_msgpack), METADATA),
    CodeFault("metadata without kernels", "the list is empty", _about(kernels=[]), METADATA),
    CodeFault("metadata of another kernel", "another `.symbol`", kernel_field(symbol="x.kd"), METADATA),
    CodeFault("kernel under another name", "another `.name` in metadata", kernel_field(name="x"), METADATA),
    CodeFault("pointer of 4 bytes", "an argument in metadata", _argument(size=4), METADATA),
    CodeFault("argument of an unknown kind", "`globl_buffer`", _argument(value_kind="globl_buffer"), METADATA),
    CodeFault("pointer that is not aligned", "an argument at byte 12", _argument(offset=12, size=4), METADATA),
    CodeFault("pointer to other memory", "of a work-group", _argument(address_space="local"), METADATA),
    CodeFault("metadata of another gfx", "`amdhsa.target`", _about(target=f"{_TRIPLE}gfx90a"), "code-object-wrong"),
    CodeFault("metadata of an older version", "`amdhsa.version` is 1.1", _about(version=[1, 1]), METADATA),
    CodeFault("another wavefront in metadata", "32 lanes", kernel_field(wavefront_size=32), DESCRIPTOR),
    CodeFault("another LDS in metadata", "512 bytes", kernel_field(group_segment_fixed_size=512), DESCRIPTOR),
    CodeFault("VGPRs above the limit", "1000 in metadata", kernel_field(vgpr_count=1000), DESCRIPTOR),
    CodeFault("SGPRs above the limit", "200 in metadata", kernel_field(sgpr_count=200), DESCRIPTOR),
    CodeFault("arguments behind their segment", "it has 8 bytes", kernel_field(kernarg_segment_size=8), METADATA),
    CodeFault(
        "kernarg segment too long",
        "32 bytes more in metadata and descriptor",
        both(metadata(_longer), _longer_segment),
        METADATA,
    ),
    CodeFault("arguments that overlap", "the second is at byte 4", _argument(offset=4), METADATA),
    CodeFault("work-groups without work-items", "in metadata", kernel_field(max_flat_workgroup_size=0), METADATA),
    CodeFault("metadata with text for a number", "the LDS", kernel_field(group_segment_fixed_size="0"), METADATA),
    # ELF tables and machine code.
    CodeFault("unknown code object ABI", "9 in the header", put(8, "B", 9), DAMAGED),
    CodeFault("code object ABI of V2", "0 in the header", put(8, "B", 0), DAMAGED),
    CodeFault("no program headers", "their number is 0", put(56, "H", 0), DAMAGED),
    CodeFault("machine code not executable", "flags of its segment", segment(1, 4, "I", 4, flags=5), DAMAGED),
    CodeFault("machine code writable", "flags of its segment", segment(1, 4, "I", 7, flags=5), DAMAGED),
    CodeFault("segment behind the file", "offset of 1 MiB", segment(1, 8, "Q", 1 << 20, flags=5), DAMAGED),
    CodeFault("segment that overlaps another", "its address is 0", segment(1, 16, "Q", 0, flags=5), DAMAGED),
    CodeFault("segment too short", "16 bytes of memory", segment(1, 40, "Q", 16, flags=5), DAMAGED),
    CodeFault("dynamic table elsewhere", "its address is 1 GiB", segment(2, 16, "Q", 1 << 30), DAMAGED),
    CodeFault("notes without program header", "its type is 0", segment(4, 0, "I", 0), DAMAGED),
    CodeFault("notes elsewhere", "offset in the program header", segment(4, 8, "Q", 64), DAMAGED),
    CodeFault("bytes that are no instructions", "64 bytes of 255", section_bytes(".text", _no_instructions), DAMAGED),
    CodeFault("symbols elsewhere", "DT_SYMTAB", _dynamic(6, lambda old: old + 24), DAMAGED),
    CodeFault("names cut off", "DT_STRSZ is 8", _dynamic(10, lambda old: 8), DAMAGED),
    CodeFault("code that needs another file", "DT_NEEDED", _dynamic(11, lambda old: 1, new=1), DAMAGED),
    CodeFault("undefined device function", "a symbol without section", kernel_symbol("", 6, "H", 0), DAMAGED),
    CodeFault("machine code of zeros", "all of .text", section_bytes(".text", lambda old: bytes(len(old))), DAMAGED),
)
