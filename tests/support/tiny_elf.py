"""Shared libraries of a few hundred bytes, written field by field, for tests without a compiler."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_FUNC = 2
_BINDS = {"GLOBAL": 1, "WEAK": 2}


@dataclass(frozen=True)
class TinySymbol:
    """A dynamic symbol: undefined unless `defined`.

    The version of an undefined symbol needs a `library`.

    `hidden` marks the version of a defined symbol as not the default.
    """

    name: str
    library: str = ""
    version: str = ""
    bind: str = "GLOBAL"
    defined: bool = False
    hidden: bool = False


class _Strings:
    def __init__(self) -> None:
        self.data = bytearray(b"\0")

    def add(self, text: str) -> int:
        offset = len(self.data)
        self.data += text.encode() + b"\0"
        return offset


def tiny_elf(
    path: Path,
    *,
    needed: Sequence[str] = ("libc.so.6",),
    symbols: Sequence[TinySymbol] = (),
    runpath: str = "",
    soname: str = "",
    machine: int = 62,
    isa_needed: int = 0,
    runpath_tag: int = 29,
    spare: int = 0,
) -> Path:
    """Write an ELF64 little-endian shared library that readers accept but that cannot be executed.

    Args:
        path: path of the file; its folder is created.
        machine: e_machine; 62 is x86-64.
        runpath_tag: 29 is DT_RUNPATH, 15 is DT_RPATH.
        spare: number of unused entries at the end of the dynamic table.
        isa_needed: bits of GNU_PROPERTY_X86_ISA_1_NEEDED; 0 writes no such note.
    """
    strings = _Strings()
    base = 0x40 + 5 * 56
    libraries = list(dict.fromkeys(s.library for s in symbols if s.library))
    versions = list(dict.fromkeys((s.library, s.version) for s in symbols if s.library))
    own = list(dict.fromkeys(s.version for s in symbols if s.defined and s.version))
    table = bytearray(24)
    indices = bytearray(2)
    for symbol in symbols:
        info = _BINDS[symbol.bind] << 4 | _FUNC
        table += struct.pack(
            "<IBBHQQ", strings.add(symbol.name), info, 0, int(symbol.defined), 0, 0
        )
        index = (
            versions.index((symbol.library, symbol.version)) + 2
            if symbol.library
            else 1
        )
        if symbol.defined and symbol.version:
            index = (2 + len(versions) + own.index(symbol.version)) | (
                0x8000 if symbol.hidden else 0
            )
        indices += struct.pack("<H", index)
    needs = _version_needs(libraries, versions, strings)
    defs = (
        _version_definitions([soname or path.name, *own], len(versions), strings)
        if own
        else b""
    )
    tags = [(1, strings.add(soname)) for soname in needed]
    tags += [(runpath_tag, strings.add(runpath))] if runpath else []
    tags += [(14, strings.add(soname))] if soname else []
    note = (
        struct.pack(
            "<III4sIII4x",
            4,
            16,
            5,
            b"GNU\0",
            0xC0008002,
            4,
            isa_needed,
        )
        if isa_needed
        else b""
    )
    contents = [
        (".dynsym", 11, bytes(table), 2, 24),
        (".gnu.version", 0x6FFFFFFF, bytes(indices), 1, 2),
        (".gnu.version_r", 0x6FFFFFFE, needs, 2, 0),
        (".gnu.version_d", 0x6FFFFFFD, defs, 2, 0),
        (".note.gnu.property", 7, note, 0, 0),
        (".dynstr", 3, bytes(strings.data), 0, 0),
    ]
    offsets = {}
    body = bytearray()
    for name, _, data, _, _ in contents:
        body += bytes(-len(body) % 8)
        offsets[name] = base + len(body)
        body += data
    body += bytes(-len(body) % 8)
    tags += [
        (5, offsets[".dynstr"]),
        (10, len(strings.data)),
        (6, offsets[".dynsym"]),
        (11, 24),
    ]
    tags += [(0x6FFFFFF0, offsets[".gnu.version"])] if versions or own else []
    tags += (
        [
            (0x6FFFFFFE, offsets[".gnu.version_r"]),
            (0x6FFFFFFF, len(libraries)),
        ]
        if versions
        else []
    )
    tags += (
        [
            (0x6FFFFFFC, offsets[".gnu.version_d"]),
            (0x6FFFFFFD, 1 + len(own)),
        ]
        if own
        else []
    )
    tags += [(0, 0)] * (1 + spare)
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in tags)
    offsets[".dynamic"] = base + len(body)
    body += dynamic
    present = [c for c in contents if c[2]]
    rows = [
        (n, kind, offsets[n], len(data), info, size)
        for n, kind, data, info, size in present
    ]
    rows.append((".dynamic", 6, offsets[".dynamic"], len(dynamic), 0, 16))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_assemble(bytes(body), base, rows, machine))
    return path


def _version_needs(
    libraries: list[str], versions: list[tuple[str, str]], strings: _Strings
) -> bytes:
    out = bytearray()
    for number, library in enumerate(libraries):
        wanted = [
            (index, v)
            for index, (of, v) in enumerate(versions, start=2)
            if of == library
        ]
        last = number == len(libraries) - 1
        out += struct.pack(
            "<HHIII",
            1,
            len(wanted),
            strings.add(library),
            16,
            0 if last else 16 + 16 * len(wanted),
        )
        for position, (index, version) in enumerate(wanted, start=1):
            step = 0 if position == len(wanted) else 16
            out += struct.pack(
                "<IHHII",
                0,
                0,
                index,
                strings.add(version),
                step,
            )
    return bytes(out)


def _version_definitions(names: list[str], needs: int, strings: _Strings) -> bytes:
    """Return the base definition, which names the library, and the versions.

    Indices continue those of the needs.
    """
    out = bytearray()
    for number, name in enumerate(names):
        index = 1 if number == 0 else 1 + needs + number
        following = 0 if number == len(names) - 1 else 28
        out += struct.pack(
            "<HHHHIII",
            1,
            int(number == 0),
            index,
            1,
            0,
            20,
            following,
        )
        out += struct.pack("<II", strings.add(name), 0)
    return bytes(out)


def _assemble(
    body: bytes,
    base: int,
    rows: list[tuple[str, int, int, int, int, int]],
    machine: int,
) -> bytes:
    names = _Strings()
    order = [row[0] for row in rows]
    links = {
        ".dynsym": ".dynstr",
        ".dynamic": ".dynstr",
        ".gnu.version_r": ".dynstr",
        ".gnu.version_d": ".dynstr",
        ".gnu.version": ".dynsym",
    }
    headers = bytearray(64)
    for name, kind, offset, size, info, entry in rows:
        link = order.index(links[name]) + 1 if links.get(name) in order else 0
        flags = 3 if name == ".dynamic" else 2
        headers += struct.pack(
            "<IIQQQQIIQQ",
            names.add(name),
            kind,
            flags,
            offset,
            offset,
            size,
            link,
            info,
            8,
            entry,
        )
    strings_at = base + len(body)
    own_name = names.add(".shstrtab")
    headers += struct.pack(
        "<IIQQQQIIQQ", own_name, 3, 0, 0, strings_at, len(names.data), 0, 0, 1, 0
    )
    body += bytes(names.data)
    end = base + len(body)
    dynamic = next(row for row in rows if row[0] == ".dynamic")
    segments = [
        (1, 6, 0, end),
        (2, 6, dynamic[2], dynamic[3]),
    ]
    notes = [row for row in rows if row[1] == 7]
    segments += [(4, 4, row[2], row[3]) for row in notes]
    segments += [
        (0x6474E551, 6, 0, 0),
        (0x6474E552, 4, dynamic[2], dynamic[3]),
    ]  # stack and RELRO
    program = b"".join(
        struct.pack(
            "<IIQQQQQQ", kind, flags, at, at, at, n, n, 4096 if kind == 1 else 8
        )
        for kind, flags, at, n in segments
    )
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    count = len(headers) // 64
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH",
        3,
        machine,
        1,
        0,
        64,
        end,
        0,
        64,
        56,
        len(segments),
        64,
        count,
        count - 1,
    )
    return header + program.ljust(5 * 56, b"\0") + body + bytes(headers)
