"""Shared libraries written by our writer, read by other tools and by our reader."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.hash import ELFHashSection

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
    return shared_library(
        "libx.so.7",
        EXPORTS,
        needed=["liby.so.1", "libc.so.6"],
        runpath="$ORIGIN:$ORIGIN/../x",
    )


@pytest.fixture(scope="module")
def parsed(library: bytes) -> Any:
    return ELFFile(io.BytesIO(library))


def test_shared_library_is_readable_by_our_reader(
    library: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "libx.so.7"
    path.write_bytes(library)
    elf = Elf.read(path)
    assert elf.soname == "libx.so.7"
    assert elf.needed == ("liby.so.1", "libc.so.6")
    assert elf.runpath == "$ORIGIN:$ORIGIN/../x"
    assert set(elf.exported) == {"both", "plain", "alias", "table"}
    assert elf.undefined == ()


def test_shared_library_versions_and_defaults(parsed: Any) -> None:
    definitions = parsed.get_section_by_name(".gnu.version_d").iter_versions()
    names = {
        definition.entry["vd_ndx"]: next(iter(names)).name
        for definition, names in definitions
    }
    versions = parsed.get_section_by_name(".gnu.version")
    found = []
    for number, symbol in enumerate(
        parsed.get_section_by_name(".dynsym").iter_symbols()
    ):
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


@pytest.mark.parametrize("name", ["both", "table"])
def test_shared_library_hash_table_finds_every_symbol(parsed: Any, name: str) -> None:
    table: Any = parsed.get_section_by_name(".hash")
    assert type(table) is ELFHashSection
    assert [found.name for found in [table.get_symbol(name)] if found] == [name]
    assert table.get_symbol("absent") is None
    assert table.get_number_of_symbols() == len(EXPORTS) + 1
