"""Writer of x86-64 Linux shared libraries that stand in for real ones without a compiler.

Source: System V ABI, gABI chapters 4 and 5 (ELF64, dynamic linking, hash table) and its
x86-64 supplement; GNU symbol versions from the Linux Standard Base Core Specification.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from core.frozen import frozen
from wheelkit.elf import constants as elf
from wheelkit.elf.symbol_versions import DEFINITION, DEFINITION_NAME

_PAGE = 0x1000
_SEGMENTS = 4


@frozen
class Export:
    """One exported symbol of a library.

    Attributes:
        version: such as hip_4.2; empty for none.
        default: new programs are linked with this version (`@@`); otherwise only old
            programs use it (`@`).
        code: position-independent machine code of a function; equal code is stored
            once.
        data: size in bytes of a zeroed variable; 0 for a function. Variables share
            their bytes.
        place: offset of the variable from the bytes that all variables share.
        reference: offset in `code` of 4 bytes that become the distance to the variable
            at `place`; -1 for none.
    """

    name: str
    version: str = ""
    default: bool = True
    code: bytes = b""
    data: int = 0
    place: int = 0
    reference: int = -1


@dataclass(frozen=True, slots=True)
class _Section:
    """A section of the memory of the process.

    Attributes:
        flags: SHF_ALLOC and these.
        size: size of a section without content.
    """

    name: str
    type: int
    content: bytes | bytearray = b""
    flags: int = 0
    link: str = ""
    info: int = 0
    entry: int = 0
    align: int = 8
    size: int = 0

    @property
    def memory(self) -> int:
        """Size of the section in memory, in bytes."""
        return len(self.content) or self.size


@dataclass(slots=True)
class _Strings:
    data: bytearray = field(default_factory=lambda: bytearray(b"\0"))
    offsets: dict[str, int] = field(default_factory=dict)

    def add(self, text: str) -> int:
        if text not in self.offsets:
            self.offsets[text] = len(self.data)
            self.data += text.encode() + b"\0"
        return self.offsets[text]


def shared_library(
    soname: str,
    exports: Iterable[Export],
    *,
    needed: Sequence[str] = (),
    runpath: str = "",
) -> bytes:
    """Return the bytes of a shared library that glibc loads.

    Args:
        exports: exported symbols; a name may occur several times with different
            versions.
        runpath: DT_RUNPATH; empty for none.
    """
    exports = tuple(exports)
    strings = _Strings()
    versions = list(dict.fromkeys(e.version for e in exports if e.version))
    text, places = _code(exports)
    tags = [(elf.DT_NEEDED, strings.add(name)) for name in needed]
    tags.append((elf.DT_SONAME, strings.add(soname)))
    if runpath:
        tags.append((elf.DT_RUNPATH, strings.add(runpath)))
    names = [strings.add(export.name) for export in exports]
    definitions = _definitions([soname, *versions], strings) if versions else b""

    # Filled in when all addresses are known.
    symbols = bytearray(elf.SYMBOL.size * (len(exports) + 1))
    hashes = _hash_table([export.name for export in exports])
    row = elf.SYMBOL.size
    fixed = [
        _Section(".dynsym", elf.SHT_DYNSYM, symbols, 0, ".dynstr", 1, row),
        _Section(".hash", elf.SHT_HASH, hashes, 0, ".dynsym", entry=4),
    ]
    if versions:
        indices = _indices(exports, versions)
        count = len(versions) + 1
        fixed += [
            _Section(".gnu.version", elf.SHT_GNU_VERSYM, indices, 0, ".dynsym", 0, 2),
            _Section(
                ".gnu.version_d", elf.SHT_GNU_VERDEF, definitions, 0, ".dynstr", count
            ),
        ]
    fixed += [
        _Section(".dynstr", elf.SHT_STRTAB, bytes(strings.data), align=1),
        _Section(".text", elf.SHT_PROGBITS, text, elf.SHF_EXECINSTR, align=16),
    ]
    at = _addresses(fixed, elf.HEADER.size + _SEGMENTS * elf.SEGMENT.size)
    tags += [
        (elf.DT_HASH, at[".hash"]),
        (elf.DT_STRTAB, at[".dynstr"]),
        (elf.DT_SYMTAB, at[".dynsym"]),
        (elf.DT_STRSZ, len(strings.data)),
        (elf.DT_SYMENT, row),
    ]
    if versions:
        tags += [
            (elf.DT_VERSYM, at[".gnu.version"]),
            (elf.DT_VERDEF, at[".gnu.version_d"]),
            (elf.DT_VERDEFNUM, len(versions) + 1),
        ]
    dynamic = b"".join(itertools.starmap(elf.DYNAMIC.pack, [*tags, (elf.DT_NULL, 0)]))
    zeros = max((e.place + e.data for e in exports if e.data), default=0)
    writable = [
        _Section(
            ".dynamic",
            elf.SHT_DYNAMIC,
            dynamic,
            elf.SHF_WRITE,
            ".dynstr",
            entry=elf.DYNAMIC.size,
            align=_PAGE,
        ),
        _Section(".bss", elf.SHT_NOBITS, b"", elf.SHF_WRITE, align=64, size=zeros),
    ]
    at |= _addresses(writable, at[".text"] + len(text))

    order = [section.name for section in (*fixed, *writable)]
    for number, (export, name) in enumerate(zip(exports, names, strict=True), start=1):
        section = ".text"
        kind = elf.STT_FUNC
        size = len(export.code)
        place = places.get(export.code, 0)
        if export.data:
            section = ".bss"
            kind = elf.STT_OBJECT
            size = export.data
            place = export.place
        if export.reference >= 0:
            at_code = place + export.reference
            distance = at[".bss"] + export.place - (at[".text"] + at_code + 4)
            struct.pack_into("<i", text, at_code, distance)
        info = elf.STB_GLOBAL << 4 | kind
        index = order.index(section) + 1
        address = at[section] + place
        elf.SYMBOL.pack_into(symbols, number * row, name, info, 0, index, address, size)
    return _assemble([*fixed, *writable], at, split=len(fixed))


def _code(exports: Iterable[Export]) -> tuple[bytearray, dict[bytes, int]]:
    """Return all code, each piece once, and the offset of each piece."""
    text = bytearray()
    places = {}
    for code in dict.fromkeys(export.code for export in exports if not export.data):
        places[code] = len(text)
        text += code + b"\xcc" * (-len(code) % 16)  # int3
    return text, places


def _hash(name: str) -> int:
    """Hash a symbol name as the gABI does."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high
    return value


def _hash_table(names: Sequence[str]) -> bytes:
    """Build DT_HASH: buckets and chains of symbol numbers; the null symbol is number 0."""
    count = max(1, len(names) // 2)
    buckets = [0] * count
    chains = [0] * (len(names) + 1)
    for number, name in enumerate(names, start=1):
        bucket = _hash(name) % count
        chains[number], buckets[bucket] = buckets[bucket], number
    return struct.pack(
        f"<{2 + count + len(chains)}I", count, len(chains), *buckets, *chains
    )


def _indices(exports: Sequence[Export], versions: Sequence[str]) -> bytes:
    """Build DT_VERSYM.

    0 is local, 1 is global without a version, and each higher index is a version.
    """
    order = ["", *versions]
    rows = [0]
    for export in exports:
        index = order.index(export.version) + 1
        if export.version and not export.default:
            index |= elf.VERSYM_HIDDEN
        rows.append(index)
    return struct.pack(f"<{len(rows)}H", *rows)


def _definitions(names: Sequence[str], strings: _Strings) -> bytes:
    """Build DT_VERDEF; its first name is the soname of the library."""
    out = bytearray()
    step = DEFINITION.size + DEFINITION_NAME.size
    for index, name in enumerate(names, start=1):
        following = step if index < len(names) else 0
        flags = elf.VER_FLG_BASE if index == 1 else 0
        out += DEFINITION.pack(
            1, flags, index, 1, _hash(name), DEFINITION.size, following
        )
        out += DEFINITION_NAME.pack(strings.add(name), 0)
    return bytes(out)


def _addresses(sections: Iterable[_Section], position: int) -> dict[str, int]:
    """Return the address of each section, which is also its file offset."""
    addresses = {}
    for section in sections:
        position += -position % section.align
        addresses[section.name] = position
        position += section.memory
    return addresses


def _assemble(sections: Sequence[_Section], at: dict[str, int], *, split: int) -> bytes:
    """Join headers, segments and sections; sections from index `split` on are writable."""
    body = bytearray()
    for section in sections:
        if section.content:
            body += bytes(at[section.name] - len(body)) + section.content
    code, dynamic, zeros = sections[split - 1 :]
    read_end = at[code.name] + code.memory
    start = at[dynamic.name]
    size = dynamic.memory
    end = at[zeros.name] + zeros.memory
    write = elf.PF_R | elf.PF_W
    segments = [
        (elf.PT_LOAD, elf.PF_R | elf.PF_X, 0, read_end, read_end, _PAGE),
        (elf.PT_LOAD, write, start, size, end - start, _PAGE),
        (elf.PT_DYNAMIC, write, start, size, size, 8),
        (elf.PT_GNU_STACK, write, 0, 0, 0, 16),
    ]
    program = b"".join(
        elf.SEGMENT.pack(kind, flags, place, place, place, *rest)
        for kind, flags, place, *rest in segments
    )
    names = _Strings()
    order = [section.name for section in sections]
    rows = [elf.SECTION.pack(*[0] * 10)]
    for section in sections:
        link = order.index(section.link) + 1 if section.link else 0
        place = at[section.name]
        rows.append(
            elf.SECTION.pack(
                names.add(section.name),
                section.type,
                elf.SHF_ALLOC | section.flags,
                place,
                min(place, len(body)),
                section.memory,
                link,
                section.info,
                section.align,
                section.entry,
            )
        )
    own = names.add(".shstrtab")
    rows.append(
        elf.SECTION.pack(
            own, elf.SHT_STRTAB, 0, 0, len(body), len(names.data), 0, 0, 1, 0
        )
    )
    body += names.data + bytes(-len(names.data + body) % 8)
    header = elf.HEADER.pack(
        elf.ELF64_LITTLE + b"\x01" + bytes(9),
        elf.ET_DYN,
        elf.EM_X86_64,
        1,
        0,
        elf.HEADER.size,
        len(body),
        0,
        elf.HEADER.size,
        elf.SEGMENT.size,
        len(segments),
        elf.SECTION.size,
        len(rows),
        len(rows) - 1,
    )
    body[: len(header) + len(program)] = header + program
    return bytes(body) + b"".join(rows)
