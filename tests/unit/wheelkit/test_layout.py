"""Layout and relocations of a library: a compiled one is accepted, and each change of it is reported."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tests.support.whole_code import Edit, both, section_bytes, segment
from wheelkit.elf import constants
from wheelkit.elf.hardening import load_defects
from wheelkit.elf.reader import ElfImage, Section


def compiled() -> bytearray:
    return bytearray(next(Path(zstandard.__file__).parent.glob("backend_c.*.so")).read_bytes())


def defects(data: bytes | bytearray, code: str) -> list[str]:
    return [text for found, text in load_defects(ElfImage.parse(bytes(data), "library")) if found == code]


def part(data: bytes | bytearray, name: str) -> Section:
    section = ElfImage.parse(bytes(data), "library").section(name)
    assert section is not None
    return section


def header(name: str, at: int, form: str, change: Callable[[int], int]) -> Edit:
    """Change a field in the header of a section."""

    def edit(data: bytearray) -> None:
        image = ElfImage.parse(bytes(data), "library")
        number = next(number for number, section in enumerate(image.sections) if section.name == name)
        place = image.section_table + constants.SECTION.size * number + at
        (old,) = struct.unpack_from(f"<{form}", data, place)
        struct.pack_into(f"<{form}", data, place, change(old))

    return edit


def dynamic(tag: int, change: Callable[[int], int]) -> Edit:
    """Change the value of an entry of the dynamic table."""

    def edit(data: bytearray) -> None:
        entry = next(e for e in ElfImage.parse(bytes(data), "library").dynamic() if e.tag == tag)
        constants.DYNAMIC.pack_into(data, entry.offset, tag, change(entry.value))

    return edit


def rows(section: str, change: Callable[[list[list[int]]], None]) -> Edit:
    """Change the rows (place, info, addend) of a relocation table."""

    def edit(data: bytearray) -> None:
        table = part(data, section)
        found = [list(row) for row in constants.RELA.iter_unpack(data[table.offset : table.offset + table.size])]
        change(found)
        for number, row in enumerate(found):
            constants.RELA.pack_into(data, table.offset + constants.RELA.size * number, *row)

    return edit


def exported(at: int, form: str, value: int) -> Edit:
    """Change a field of the symbol of the module's PyInit function."""

    def edit(data: bytearray) -> None:
        names = [name for _, name in ElfImage.parse(bytes(data), "library").dynamic_symbols()]
        number = next(number for number, name in enumerate(names) if name.startswith("PyInit_"))
        struct.pack_into(f"<{form}", data, part(data, ".dynsym").offset + 24 * number + at, value)

    return edit


def _renamed(names: bytes) -> bytes:
    return names.replace(b"PyInit_", b"PyInot_")


def _set(row: int, column: int, value: int) -> Callable[[list[list[int]]], None]:
    def change(found: list[list[int]]) -> None:
        found[row][column] = value

    return change


def _like_lld(found: list[list[int]]) -> None:
    """Sort the slots by symbol, as lld writes them, and exchange two."""
    infos = sorted(row[1] for row in found)
    infos[3], infos[8] = infos[8], infos[3]
    for row, info in zip(found, infos, strict=True):
        row[1] = info


def _constructor(data: bytearray) -> None:
    """Let the first constructor be the table of names."""
    array, names = part(data, ".init_array"), part(data, ".dynstr")

    def change(found: list[list[int]]) -> None:
        row = next(row for row in found if row[0] == array.address)
        row[2] = names.address

    rows(".rela.dyn", change)(data)


def _swapped_stubs(stubs: bytes) -> bytes:
    """Exchange the slots of two stubs; each slot is relative to its stub."""
    name = b"\xff\x25"
    first = stubs.index(name, 16)
    second = stubs.index(name, first + 2)
    one, two = (struct.unpack_from("<i", stubs, at + 2)[0] for at in (first, second))
    out, apart = bytearray(stubs), second - first
    struct.pack_into("<i", out, first + 2, two + apart)
    struct.pack_into("<i", out, second + 2, one - apart)
    return bytes(out)


def _same_stubs(stubs: bytes) -> bytes:
    """Let two stubs jump through one slot."""
    first = stubs.index(b"\xff\x25", 16)
    second = stubs.index(b"\xff\x25", first + 2)
    out = bytearray(stubs)
    struct.pack_into("<i", out, second + 2, struct.unpack_from("<i", stubs, first + 2)[0] - (second - first))
    return bytes(out)


def _unused(found: list[list[int]]) -> None:
    for row in found:
        row[1] = constants.R_X86_64_JUMP_SLOT


def _imported(at: int, form: str, value: int) -> Edit:
    """Change a field of the first symbol of another library."""
    return lambda data: struct.pack_into(f"<{form}", data, part(data, ".dynsym").offset + 24 + at, value)


def _other_hash(needs: bytes) -> bytes:
    """Change the hash of the first version, which follows the first library."""
    return needs[:16] + bytes([needs[16] ^ 1]) + needs[17:]


def _unknown_version(indices: bytes) -> bytes:
    return indices[:2] + struct.pack("<H", 99) + indices[4:]


LAYOUT: list[tuple[str, Edit, str]] = [
    ("ABI", lambda data: struct.pack_into("<B", data, 7, 9), "is for OS ABI 9"),
    ("flags", lambda data: struct.pack_into("<I", data, 48, 1), "with flags 0x1"),
    ("version", lambda data: struct.pack_into("<B", data, 6, 2), "has a header of another version"),
    ("version of the file", lambda data: struct.pack_into("<I", data, 20, 0), "has a header of another version"),
    ("padding", lambda data: struct.pack_into("<B", data, 12, 1), "has a header of another version"),
    ("ABI version", lambda data: struct.pack_into("<BB", data, 7, 0, 1), "is for version 1 of its ABI"),
    ("program", lambda data: struct.pack_into("<H", data, 16, 2), "is no shared library, but an ELF file of type 2"),
    ("address", header(".data", 16, "Q", lambda old: old + (1 << 30)), "has section .data outside of its segments"),
    ("offset", header(".rodata", 24, "Q", lambda old: old - 64), ".rodata at another place in the file"),
    ("access", header(".rodata", 8, "Q", lambda old: old | constants.SHF_EXECINSTR), "without the access"),
    ("size", header(".text", 32, "Q", lambda old: old + 4096), "has sections .text and .fini that overlap"),
    ("table", dynamic(constants.DT_GNU_HASH, lambda old: old + 8), "has .gnu.hash at "),
    ("no table", dynamic(constants.DT_VERSYM, lambda old: 0), "but 0x0 in its dynamic table"),
    ("dynamic", segment(constants.PT_DYNAMIC, 32, "Q", 64), "has a PT_DYNAMIC that is not its section .dynamic"),
    ("RELRO", segment(constants.PT_GNU_RELRO, 40, "Q", 16), "keeps section .dynamic writable"),
    ("RELRO elsewhere", segment(constants.PT_GNU_RELRO, 16, "Q", 1 << 30), "has a PT_GNU_RELRO outside"),
    ("RELRO too long", segment(constants.PT_GNU_RELRO, 40, "Q", 0x3000), "makes section .data read-only"),
    ("threads", header(".data", 8, "Q", lambda old: old | constants.SHF_TLS), "variables of threads without PT_TLS"),
    (
        "PT_TLS",
        both(
            header(".data", 8, "Q", lambda old: old | constants.SHF_TLS),
            segment(constants.PT_GNU_STACK, 0, "I", constants.PT_TLS),
        ),
        "has a PT_TLS that does not cover",
    ),
    (
        "PT_TLS that cannot be set up",
        both(
            header(".data", 8, "Q", lambda old: old | constants.SHF_TLS),
            segment(constants.PT_GNU_STACK, 48, "Q", 3),
            segment(constants.PT_GNU_STACK, 0, "I", constants.PT_TLS),
        ),
        "has a PT_TLS that the loader cannot set up",
    ),
    ("symbol without a name", _imported(0, "I", 0), "has a dynamic symbol without a name"),
    ("local symbol", _imported(4, "B", constants.STT_FUNC), "by a local symbol"),
    ("hash of a version", section_bytes(".gnu.version_r", _other_hash), "whose hash is wrong"),
    ("unknown version", section_bytes(".gnu.version", _unknown_version), "in version 99 of its list"),
    ("short hash table", header(".gnu.hash", 32, "Q", lambda old: 8), "has a damaged .gnu.hash"),
    ("versions", header(".gnu.version", 32, "Q", lambda old: old - 2), "symbol versions for"),
    ("symbol", exported(8, "Q", 1 << 40), "outside of its section"),
    ("function", exported(6, "H", 1), "outside of its section"),
    ("name", section_bytes(".dynstr", _renamed), "which the loader does not find by its hash"),
    ("hash", section_bytes(".gnu.hash", lambda old: old[:16] + bytes(8) + old[24:]), "does not find by its hash"),
    ("hash table", section_bytes(".gnu.hash", lambda old: old[:4] + b"\xff\0\0\0" + old[8:]), "has a .gnu.hash of"),
]

RELOCATIONS: list[tuple[str, Edit, str]] = [
    ("type", rows(".rela.dyn", _set(-1, 1, 2)), "has relocations of type 2"),
    ("symbol", rows(".rela.plt", _set(0, 1, 9999 << 32 | 7)), "with symbols behind the symbol table"),
    ("place", rows(".rela.dyn", _set(0, 0, 0)), "has relocations outside of its writable segments"),
    ("twice", rows(".rela.dyn", lambda found: _set(0, 0, found[1][0])(found)), "has two relocations of one place"),
    ("pointer", rows(".rela.dyn", _set(0, 2, 1 << 40)), "has pointers outside of its segments"),
    ("count", dynamic(constants.DT_RELACOUNT, lambda old: old - 1), "in its dynamic table"),
    ("unused", rows(".rela.plt", _unused), "but no relocation refers to it"),
    (
        "order",
        both(section_bytes(".comment", lambda old: b"LLD" + old[3:]), rows(".rela.plt", _like_lld)),
        "in place of another function, since its slot is out of order",
    ),
    ("stub", section_bytes(".plt", _same_stubs), "has no stub that jumps through the slot at"),
    ("stubs", section_bytes(".plt", _swapped_stubs), "has stubs that jump through the slots of others"),
    ("constructor", _constructor, "has a constructor at "),
]


def test_load_defects_accepts_layout_of_compiled_library() -> None:
    assert defects(compiled(), "layout-wrong") == []
    assert defects(compiled(), "relocation-wrong") == []


@pytest.mark.parametrize(("edit", "text"), [pytest.param(edit, text, id=name) for name, edit, text in LAYOUT])
def test_load_defects_reports_wrong_layout(edit: Edit, text: str) -> None:
    data = compiled()
    edit(data)
    assert any(text in found for found in defects(data, "layout-wrong")), defects(data, "layout-wrong")


@pytest.mark.parametrize(("edit", "text"), [pytest.param(edit, text, id=name) for name, edit, text in RELOCATIONS])
def test_load_defects_reports_wrong_relocations(edit: Edit, text: str) -> None:
    data = compiled()
    edit(data)
    assert any(text in found for found in defects(data, "relocation-wrong")), defects(data, "relocation-wrong")
