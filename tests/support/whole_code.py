"""Generated AMDGPU code objects that ROCm could load, and edits that break ELF files."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from core.model import GfxTarget
from core.targets import machs
from wheelkit.elf import constants
from wheelkit.elf.elf_tables import ElfImage

Edit = Callable[[bytearray], None]
"""Change of an ELF file in place; generated and compiled ones can be changed alike."""

_FEATURES = {"": 0, "-": 2, "+": 3}
_SECTIONS = (".note", ".dynsym", ".dynstr", ".rodata", ".text", ".dynamic", ".shstrtab")
_KINDS = {
    ".note": 7,
    ".dynsym": 11,
    ".dynstr": 3,
    ".rodata": 1,
    ".text": 1,
    ".dynamic": 6,
    ".shstrtab": 3,
}
_FLAGS = {".text": 6, ".dynamic": 3, ".shstrtab": 0}
_PAGE = 4096
_END = b"\x00\x00\x81\xbf"
"""s_endpgm of gfx9."""


def e_flags(target: GfxTarget, mach: int | None = None) -> int:
    """Return the e_flags of code for a target, as of code object V4."""
    flags = machs()[target.processor] if mach is None else mach
    for name, shift in (("xnack", 8), ("sramecc", 10)):
        setting = next(
            (feature[-1] for feature in target.features if feature[:-1] == name), ""
        )
        flags |= (_FEATURES[setting] or 1) << shift
    return flags | (1 << 24 if target.processor.endswith("-generic") else 0)


def whole_code(
    target: str = "gfx942",
    names: Sequence[str] = ("_Z3addv",),
    *,
    mach: int | None = None,
) -> bytes:
    """Return a code object of version 6 with kernels.

    Args:
        mach: EF_AMDGPU_MACH of another processor.
    """
    gfx = GfxTarget.parse(target)
    note = _note(target, names)
    strings = b"\0" + b"".join(f"{name}\0{name}.kd\0".encode() for name in names)
    # The note, the symbols and their names come before the descriptors, in a file
    # without gaps.
    at = {".note": 64 + 5 * 56}
    at[".dynsym"] = at[".note"] + len(note)
    at[".dynstr"] = at[".dynsym"] + 24 * (1 + 2 * len(names))
    at[".rodata"] = _up(at[".dynstr"] + len(strings), 64)
    at[".text"] = _up(at[".rodata"] + 64 * len(names), 256)
    at[".dynamic"] = at[".text"] + 256 * len(names)
    tags = (
        (5, at[".dynstr"]),
        (10, len(strings)),
        (6, at[".dynsym"]),
        (11, 24),
        (0, 0),
    )
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in tags)
    at[".shstrtab"] = at[".dynamic"] + len(dynamic)
    shift = {".text": _PAGE, ".dynamic": 2 * _PAGE}
    symbols = bytes(24)
    descriptors = b""
    string = 1
    for number, name in enumerate(names):
        code = at[".text"] + _PAGE + 256 * number
        descriptor = at[".rodata"] + 64 * number
        symbols += struct.pack(
            "<IBBHQQ",
            string,
            0x12,
            3,
            5,
            code,
            256,
        )
        symbols += struct.pack(
            "<IBBHQQ", string + len(name) + 1, 0x11, 0, 4, descriptor, 64
        )
        descriptors += _descriptor(code - descriptor)
        string += 2 * len(name) + 5
    content = {
        ".note": note,
        ".dynsym": symbols,
        ".dynstr": strings,
        ".rodata": descriptors,
        ".dynamic": dynamic,
        ".text": (_nop(gfx) * 63 + _END) * len(names),
        ".shstrtab": b"\0" + b"".join(f"{name}\0".encode() for name in _SECTIONS),
    }
    data = bytearray(at[".shstrtab"])
    for name in _SECTIONS:
        data[at[name] : at[name] + len(content[name])] = content[name]
    data += bytes(-len(data) % 8)
    rows = bytes(64)
    label = 1
    for name in _SECTIONS:
        address = at[name] + shift.get(name, 0) if _FLAGS.get(name, 2) else 0
        rows += struct.pack(
            "<IIQQQQIIQQ",
            label,
            _KINDS[name],
            _FLAGS.get(name, 2),
            address,
            at[name],
            len(content[name]),
            3 if name in (".dynsym", ".dynamic") else 0,
            0,
            4,
            0,
        )
        label += len(name) + 1
    ident = b"\x7fELF\x02\x01\x01\x40\x04".ljust(16, b"\0")
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        ident,
        3,
        224,
        1,
        0,
        64,
        len(data),
        e_flags(gfx, mach),
        64,
        56,
        5,
        64,
        8,
        7,
    )
    text = 256 * len(names)
    loads = [
        (1, 4, 0, 0, at[".rodata"] + 64 * len(names)),
        (1, 5, at[".text"], _PAGE, text),
        (1, 6, at[".dynamic"], 2 * _PAGE, len(dynamic)),
        (2, 6, at[".dynamic"], 2 * _PAGE, len(dynamic)),
        (4, 4, at[".note"], 0, len(note)),
    ]
    for kind, flags, offset, moved, size in loads:
        address = offset + moved
        head += struct.pack(
            "<IIQQQQQQ",
            kind,
            flags,
            offset,
            address,
            address,
            size,
            size,
            _PAGE if kind == 1 else 4,
        )
    data[: len(head)] = head
    return bytes(data) + rows


def _nop(target: GfxTarget) -> bytes:
    """Return s_nop with a number of the target, since compilers write other code for each."""
    return struct.pack("<H", machs()[target.processor]) + b"\x80\xbf"


def _up(position: int, alignment: int) -> int:
    return position + -position % alignment


def _note(target: str, names: Sequence[str]) -> bytes:
    kernels = [
        {
            ".name": name,
            ".symbol": f"{name}.kd",
            ".language": "OpenCL C",
            ".language_version": [2, 0],
            ".kernarg_segment_size": 24,
            ".group_segment_fixed_size": 1024,
            ".private_segment_fixed_size": 16,
            ".kernarg_segment_align": 8,
            ".wavefront_size": 64,
            ".sgpr_count": 20,
            ".vgpr_count": 16,
            ".agpr_count": 0,
            ".max_flat_workgroup_size": 1024,
            ".args": [
                {
                    ".offset": 0,
                    ".size": 8,
                    ".value_kind": "global_buffer",
                },
                {
                    ".offset": 8,
                    ".size": 8,
                    ".value_kind": "global_buffer",
                },
                {
                    ".offset": 16,
                    ".size": 8,
                    ".value_kind": "by_value",
                },
            ],
        }
        for name in names
    ]
    about = {
        "amdhsa.kernels": kernels,
        "amdhsa.target": f"amdgcn-amd-amdhsa--{target}",
        "amdhsa.version": [1, 2],
    }
    text: bytes = msgspec.msgpack.encode(about)
    return (
        struct.pack("<III", 7, len(text), 32)
        + b"AMDGPU\0\0"
        + text
        + bytes(-len(text) % 8)
    )


def _descriptor(entry: int) -> bytes:
    """Return a descriptor with the sizes of `_note`, 64 VGPRs and 32 SGPRs."""
    rsrc1 = 7 | 2 << 6 | 0xC0 << 12 | 1 << 21 | 1 << 23
    rsrc2 = 1 | 2 << 1 | 1 << 7
    return struct.pack(
        "<IIIIq20sIIIHHI", 1024, 16, 24, 0, entry, bytes(20), 15, rsrc1, rsrc2, 8, 0, 0
    )


# Edits


def put(at: int, form: str, *values: int) -> Edit:
    """Overwrite fields of the file's header."""
    return lambda data: struct.pack_into(f"<{form}", data, at, *values)


def descriptor(at: int, form: str, *values: int | bytes) -> Edit:
    """Overwrite fields of the first kernel's descriptor."""

    def edit(data: bytearray) -> None:
        image = ElfImage.parse(bytes(data), "code")
        symbol = next(
            symbol for symbol, name in image.dynamic_symbols() if name.endswith(".kd")
        )
        struct.pack_into(f"<{form}", data, image.offset_of(symbol.value) + at, *values)

    return edit


def metadata(change: Callable[[dict[str, Any]], object]) -> Edit:
    """Change the metadata; an optional field of each kernel makes room for longer values."""

    def edit(data: bytearray) -> None:
        image = ElfImage.parse(bytes(data), "code")
        section = next(
            section for section in image.sections if section.type == constants.SHT_NOTE
        )
        (size,) = struct.unpack_from("<I", data, section.offset + 4)
        about = msgspec.msgpack.decode(
            data[section.offset + 20 : section.offset + 20 + size]
        )
        for kernel in about["amdhsa.kernels"]:
            kernel.pop(".language", None)
            kernel.pop(".language_version", None)
        change(about)
        text = msgspec.msgpack.encode(about)
        room = section.size - 20
        assert len(text) <= room
        struct.pack_into("<I", data, section.offset + 4, len(text))
        data[section.offset + 20 : section.offset + section.size] = text.ljust(
            room, b"\0"
        )

    return edit


def segment(
    kind: int, at: int, form: str, value: int, *, flags: int | None = None
) -> Edit:
    """Overwrite a field of the first program header of a kind, or with these flags."""

    def edit(data: bytearray) -> None:
        for row in range(64, 64 + 56 * data[56], 56):
            found = struct.unpack_from("<II", data, row)
            if found[0] == kind and flags in (None, found[1]):
                struct.pack_into(f"<{form}", data, row + at, value)
                return

    return edit


def dynamic_entry(tag: int, value: int) -> Edit:
    """Add an entry to the dynamic table, in place of an optional or unused one."""

    def edit(data: bytearray) -> None:
        table = ElfImage.parse(bytes(data), "library").dynamic()
        optional = [entry for entry in table if entry.tag == constants.DT_RELACOUNT]
        unused = [entry for entry in table[:-1] if entry.tag == constants.DT_NULL]
        constants.DYNAMIC.pack_into(data, (optional or unused)[0].offset, tag, value)

    return edit


def kernel_symbol(at: int, value: int) -> Edit:
    """Overwrite a 64-bit field of the symbol of the first kernel's function."""

    def edit(data: bytearray) -> None:
        image = ElfImage.parse(bytes(data), "code")
        table = next(
            section
            for section in image.sections
            if section.type == constants.SHT_DYNSYM
        )
        names = [text for _, text in image.dynamic_symbols()]
        kernel = next(name for name in names if name.endswith(".kd")).removesuffix(
            ".kd"
        )
        struct.pack_into(
            "<Q",
            data,
            table.offset + 24 * names.index(kernel) + at,
            value,
        )

    return edit


def section_bytes(name: str, content: Callable[[bytes], bytes]) -> Edit:
    """Replace the content of a section by one of the same length."""

    def edit(data: bytearray) -> None:
        found = ElfImage.parse(bytes(data), "code").section(name)
        assert found is not None
        old = bytes(data[found.offset : found.offset + found.size])
        new = content(old)
        assert len(new) == len(old)
        data[found.offset : found.offset + found.size] = new

    return edit
