"""Stripping: symbols move to the debug file, loaded bytes stay in place."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import ElfError
from tests.support.made_wheel import GLIBC, with_sections
from tests.support.tiny_elf import TinySymbol, tiny_elf
from wheelkit.elf.constants import SHT_NOBITS
from wheelkit.elf.snapshot import Elf
from wheelkit.elf.strip import strip_symbols

SYMBOLS = bytes(24) + struct.pack(
    "<IBBHQQ",
    1,
    0x12,
    0,
    1,
    0x123,
    4,
)
DEBUG = b"debugging information" * 50
BUILD_ID = struct.pack(
    "<III4s4s",
    4,
    4,
    3,
    b"GNU\0",
    b"\xde\xad\xbe\xef",
)


def set_field(
    path: Path,
    section: str,
    field: int,
    value: int,
) -> None:
    """Change a 32-bit field of a section header: byte 40 of a row is sh_link, byte 44 sh_info."""
    data = bytearray(path.read_bytes())
    (table,) = struct.unpack_from("<Q", data, 0x28)
    struct.pack_into(
        "<I",
        data,
        table + 64 * list(Elf.read(path).sections).index(section) + field,
        value,
    )
    path.write_bytes(data)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Write a library with symbols between other sections.

    A build ID before them, a comment and a note after them.
    """
    path = tiny_elf(
        tmp_path / "lib.so",
        symbols=(GLIBC, TinySymbol("helper", defined=True)),
        runpath="/opt/rocm/lib",
    )
    data = with_sections(
        path.read_bytes(),
        (".note.gnu.build-id", 7, 2, BUILD_ID),
        (".debug_info", 1, 0, DEBUG),
        (".symtab", 2, 0, SYMBOLS),
        (".strtab", 3, 0, b"\0hidden\0"),
        (".comment", 1, 0x30, b"clang\0"),
        (".gnu.build.attributes", 7, 0, b"attributes!!"),
    )
    path.write_bytes(data)
    set_field(path, ".symtab", 40, list(Elf.read(path).sections).index(".strtab"))
    return path


def content(path: Path, name: str) -> bytes:
    section = Elf.read(path).sections[name]
    return path.read_bytes()[section.offset :][: section.file_size]


def test_strip_removes_symbols_only(library: Path) -> None:
    old = library.read_bytes()
    before = Elf.read(library)
    report = strip_symbols(library)
    new = library.read_bytes()
    after = Elf.read(library)
    assert report.dropped == (".debug_info", ".symtab", ".strtab")
    assert report.bytes_saved == len(DEBUG) + len(SYMBOLS) + 8
    assert b"debugging information" not in new
    assert b"hidden" not in new
    assert set(before.sections) - set(after.sections) == set(report.dropped)
    assert ".symtab" not in after.sections
    loaded = before.sections[".note.gnu.build-id"].offset + len(BUILD_ID)
    assert new[64:loaded] == old[64:loaded]
    assert content(library, ".comment") == b"clang\0"
    assert content(library, ".gnu.build.attributes") == b"attributes!!"
    assert after.undefined == before.undefined
    assert after.exported == before.exported
    assert after.needed == before.needed
    assert after.runpath == before.runpath
    assert after.build_id == before.build_id


def test_strip_renumbers_exported_symbols(library: Path) -> None:
    elf = Elf.read(library)
    order = list(elf.sections)
    place = elf.sections[".dynsym"].offset + 2 * 24 + 6  # `helper`, its section number
    patched(library, "<H", place, order.index(".comment"))
    report = strip_symbols(library)
    (number,) = struct.unpack_from("<H", library.read_bytes(), place)
    assert list(Elf.read(library).sections)[number] == ".comment"
    assert (place, place + 2) in report.changed


def test_strip_debug_file_has_symbols_and_checksum(
    library: Path, tmp_path: Path
) -> None:
    before = Elf.read(library)
    debug = tmp_path / "lib.so.debug"
    strip_symbols(library, debug)
    link = content(library, ".gnu_debuglink")
    assert link[: link.index(0)] == b"lib.so.debug"
    assert len(link) % 4 == 0
    assert struct.unpack("<I", link[-4:])[0] == zlib.crc32(debug.read_bytes())
    assert Elf.read(library).debug_link == (
        "lib.so.debug",
        zlib.crc32(debug.read_bytes()),
    )
    kept = Elf.read(debug)
    assert list(kept.sections) == list(before.sections)
    assert content(debug, ".symtab") == SYMBOLS
    assert content(debug, ".debug_info") == DEBUG
    assert kept.sections[".dynstr"].type == SHT_NOBITS
    assert kept.build_id == before.build_id == "deadbeef"
    assert {name: s.address for name, s in kept.sections.items()} == {
        name: s.address for name, s in before.sections.items()
    }


def test_strip_keeps_loaded_bytes_after_symbols(library: Path) -> None:
    # A segment at the end of the file, as written by patchelf.
    data = with_sections(library.read_bytes(), (".late", 1, 2, b"loaded late"))
    row = 64 + 2 * 56
    library.write_bytes(data)
    late = Elf.read(library).sections[".late"]
    load = struct.pack(
        "<IIQQQQQQ",
        1,
        4,
        late.offset,
        late.offset,
        late.offset,
        late.size,
        late.size,
        8,
    )
    patched = bytearray(data[:row] + load + data[row + 56 :])
    struct.pack_into("<H", patched, 0x38, 3)
    library.write_bytes(patched)
    report = strip_symbols(library)
    assert Elf.read(library).sections[".late"] == late
    assert content(library, ".late") == b"loaded late"
    assert b"hidden" not in library.read_bytes()
    assert report.dropped == (".debug_info", ".symtab", ".strtab")


def refers_to_symbols(library: Path) -> None:
    set_field(
        library, ".comment", 40, list(Elf.read(library).sections).index(".symtab")
    )


def is_aligned_impossibly(library: Path) -> None:
    set_field(library, ".comment", 48, 1 << 17)


def patched(
    library: Path,
    layout: str,
    offset: int,
    value: int,
) -> None:
    data = bytearray(library.read_bytes())
    struct.pack_into(layout, data, offset, value)
    library.write_bytes(data)


def loads_symbols(library: Path) -> None:
    patched(
        library, "<Q", 64 + 32, Elf.read(library).sections[".symtab"].offset + 8
    )  # p_filesz of PT_LOAD


def exports_from_debug_section(library: Path) -> None:
    elf = Elf.read(library)
    patched(
        library,
        "<H",
        elf.sections[".dynsym"].offset + 2 * 24 + 6,
        list(elf.sections).index(".debug_info"),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (refers_to_symbols, "refers to the symbol table"),
        (is_aligned_impossibly, "impossible alignment"),
        (loads_symbols, "is part of a segment"),
        (exports_from_debug_section, "exports a symbol of a debug section"),
    ],
)
def test_strip_refuses_used_symbols(
    library: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    change(library)
    before = library.read_bytes()
    files = sorted(tmp_path.iterdir())
    with pytest.raises(ElfError, match=message):
        strip_symbols(library, tmp_path / "lib.debug")
    assert library.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == files
