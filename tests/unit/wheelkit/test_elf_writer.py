"""Shared libraries written by our writer, read by other tools and by our reader."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.hash import ELFHashSection

from wheelkit.elf import reader
from wheelkit.elf.snapshot import Elf
from wheelkit.elf.writer import Export, shared_library

RET = b"\xc3"
EXPORTS = (
    Export(name="both", version="V_2", code=b"\xb8\2\0\0\0\xc3"),
    Export(name="both", version="V_1", default=False, code=b"\xb8\1\0\0\0\xc3"),
    Export(name="plain", code=RET),
    Export(name="alias", code=RET),
    Export(name="table", version="V_1", data=4096),
)


@pytest.fixture(scope="module")
def library() -> bytes:
    return shared_library("libx.so.7", EXPORTS, needed=["liby.so.1", "libc.so.6"], runpath="$ORIGIN:$ORIGIN/../x")


@pytest.fixture(scope="module")
def parsed(library: bytes) -> Any:
    return ELFFile(io.BytesIO(library))


def test_shared_library_is_readable_by_our_reader(library: bytes, tmp_path: Path) -> None:
    path = tmp_path / "libx.so.7"
    path.write_bytes(library)
    elf = Elf.read(path)
    assert (elf.soname, elf.needed, elf.runpath) == (
        "libx.so.7",
        ("liby.so.1", "libc.so.6"),
        "$ORIGIN:$ORIGIN/../x",
    )
    assert set(elf.exported) == {"both", "plain", "alias", "table"}
    assert elf.undefined == ()


def test_shared_library_header(parsed: Any) -> None:
    assert (parsed["e_type"], parsed["e_machine"]) == ("ET_DYN", "EM_X86_64")


def test_shared_library_dynamic_entries(parsed: Any) -> None:
    tags = {tag.entry.d_tag: tag for tag in parsed.get_section_by_name(".dynamic").iter_tags()}
    assert tags["DT_SONAME"].soname == "libx.so.7"
    assert tags["DT_RUNPATH"].runpath == "$ORIGIN:$ORIGIN/../x"
    for tag, section in [("DT_HASH", ".hash"), ("DT_SYMTAB", ".dynsym"), ("DT_STRTAB", ".dynstr")]:
        assert tags[tag].entry.d_val == parsed.get_section_by_name(section)["sh_addr"]


def test_shared_library_versions_and_defaults(parsed: Any) -> None:
    names = {definition.entry["vd_ndx"]: next(iter(names)).name for definition, names in definitions(parsed)}
    versions = parsed.get_section_by_name(".gnu.version")
    found = []
    for number, symbol in enumerate(parsed.get_section_by_name(".dynsym").iter_symbols()):
        index = versions.get_symbol(number).entry["ndx"]
        if isinstance(index, int):
            found.append((symbol.name, names[index & 0x7FFF], not index & 0x8000))
        elif symbol.name:
            found.append((symbol.name, "", True))
    assert found == [
        ("both", "V_2", True),
        ("both", "V_1", False),
        ("plain", "", True),
        ("alias", "", True),
        ("table", "V_1", True),
    ]


def definitions(parsed: Any) -> list[tuple[Any, Any]]:
    return list(parsed.get_section_by_name(".gnu.version_d").iter_versions())


def test_shared_library_first_version_is_its_soname(parsed: Any) -> None:
    first, names = definitions(parsed)[0]
    assert first.entry["vd_flags"] == 1  # VER_FLG_BASE
    assert next(iter(names)).name == "libx.so.7"


@pytest.mark.parametrize("name", ["both", "plain", "alias", "table"])
def test_shared_library_hash_table_finds_every_symbol(parsed: Any, name: str) -> None:
    table: Any = parsed.get_section_by_name(".hash")
    assert type(table) is ELFHashSection
    assert [found.name for found in [table.get_symbol(name)] if found] == [name]
    assert table.get_symbol("absent") is None
    assert table.get_number_of_symbols() == len(EXPORTS) + 1


def test_hash_of_long_name_wraps_as_specified() -> None:
    name = "_ZN13hipblaslt_ext11GroupedGemm10setProblemERSt6vectorIlSaIlEES4_S4_S4_S4_S4_S4_S4_S4_S4_S4_S4_"
    parsed: Any = ELFFile(io.BytesIO(shared_library("l.so", [Export(name=name, code=RET), Export(name="x", code=RET)])))
    assert parsed.get_section_by_name(".hash").get_symbol(name).name == name


def test_shared_library_functions_and_variables(library: bytes, parsed: Any) -> None:
    symbols = {s.name: s for s in parsed.get_section_by_name(".dynsym").iter_symbols()}
    assert symbols["plain"]["st_info"]["type"] == "STT_FUNC"
    assert symbols["table"]["st_info"]["type"] == "STT_OBJECT"
    assert symbols["table"]["st_size"] == 4096
    start = symbols["plain"]["st_value"]
    assert library[start : start + 1] == RET
    assert symbols["plain"]["st_value"] == symbols["alias"]["st_value"]  # equal code is stored once
    code, data = (segment for segment in parsed.iter_segments("PT_LOAD"))
    assert code["p_flags"] == 5  # not writable
    assert data["p_flags"] == 6  # not executable
    assert data["p_vaddr"] <= symbols["table"]["st_value"]
    assert symbols["table"]["st_value"] + 4096 <= data["p_vaddr"] + data["p_memsz"]


def test_shared_library_stack_is_not_executable(parsed: Any) -> None:
    (stack,) = parsed.iter_segments("PT_GNU_STACK")
    assert stack["p_flags"] == 6


def test_shared_library_without_versions_has_no_version_tables(tmp_path: Path) -> None:
    data = shared_library("l.so", [Export(name="x", code=RET)])
    parsed: Any = ELFFile(io.BytesIO(data))
    assert parsed.get_section_by_name(".gnu.version") is None
    assert not [t for t in parsed.get_section_by_name(".dynamic").iter_tags() if "VER" in str(t.entry.d_tag)]


def test_shared_library_without_exports() -> None:
    image = reader.ElfImage.parse(shared_library("l.so", []), "l.so")
    section = image.section(".dynsym")
    assert section is not None
    assert len(list(image.symbols(section))) == 1


def test_shared_library_is_reproducible(library: bytes) -> None:
    again = shared_library("libx.so.7", EXPORTS, needed=["liby.so.1", "libc.so.6"], runpath="$ORIGIN:$ORIGIN/../x")
    assert again == library
