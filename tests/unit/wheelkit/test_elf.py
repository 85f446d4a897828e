"""Snapshots of ELF files, and refusal of other files."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.errors import ElfError
from tests.support.made_wheel import with_sections
from tests.support.tiny_elf import TinySymbol, tiny_elf
from wheelkit.elf.snapshot import Elf, Symbol, highest_versions

SYMBOLS = (
    TinySymbol("printf", "libc.so.6", "GLIBC_2.2.5"),
    TinySymbol("fcntl64", "libc.so.6", "GLIBC_2.28"),
    TinySymbol("_ZNSt10filesystem6statusERKNS_7__cxx114pathE"),
    TinySymbol("__gmon_start__", bind="WEAK"),
    TinySymbol("hipMalloc", "libamdhip64.so.7", "hip_4.2"),
    TinySymbol("PyInit__linalg", defined=True),
    TinySymbol("helper", defined=True),
)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return tiny_elf(
        tmp_path / "lib.so", needed=("libc.so.6", "libamdhip64.so.7"), symbols=SYMBOLS, runpath="$ORIGIN/../lib"
    )


def test_snapshot_has_the_loader_view(library: Path) -> None:
    elf = Elf.read(library)
    assert (elf.machine, elf.size) == ("x86_64", library.stat().st_size)
    assert elf.needed == ("libc.so.6", "libamdhip64.so.7")
    assert (elf.runpath, elf.rpath, elf.soname) == ("$ORIGIN/../lib", None, None)
    assert elf.exported == ("PyInit__linalg", "helper")
    assert elf.init_functions == ("PyInit__linalg",)
    assert elf.version_needs == {
        "libc.so.6": frozenset({"GLIBC_2.2.5", "GLIBC_2.28"}),
        "libamdhip64.so.7": frozenset({"hip_4.2"}),
    }
    assert elf.highest_versions() == {"GLIBC": "2.28", "hip": "4.2"}
    assert ".symtab" not in elf.sections


def test_snapshot_distinguishes_unversioned_symbols(library: Path) -> None:
    found = {symbol.name: symbol for symbol in Elf.read(library).undefined}
    assert found["printf"] == Symbol(name="printf", version="GLIBC_2.2.5", library="libc.so.6", bind="GLOBAL")
    bare = "_ZNSt10filesystem6statusERKNS_7__cxx114pathE"
    assert found[bare] == Symbol(name=bare, version=None, library=None, bind="GLOBAL")
    assert found["__gmon_start__"].bind == "WEAK"
    assert "helper" not in found


def test_snapshot_distinguishes_rpath_and_runpath(tmp_path: Path) -> None:
    elf = Elf.read(tiny_elf(tmp_path / "lib.so", runpath="/opt/rocm/lib", runpath_tag=15))
    assert (elf.runpath, elf.rpath) == (None, "/opt/rocm/lib")


def test_snapshot_stops_at_first_null_entry(tmp_path: Path) -> None:
    path = tiny_elf(tmp_path / "lib.so", needed=("libc.so.6",), spare=2)
    data = bytearray(path.read_bytes())
    dynamic = Elf.read(path).sections[".dynamic"]
    struct.pack_into("<qQ", data, dynamic.offset + dynamic.size - 32, 1, 1)
    path.write_bytes(data)
    assert Elf.read(path).needed == ("libc.so.6",)


def test_snapshot_has_sections_build_id_and_comments(tmp_path: Path, library: Path) -> None:
    note = struct.pack("<III4s4s", 4, 4, 3, b"GNU\0", b"\xde\xad\xbe\xef")
    data = with_sections(
        library.read_bytes(),
        (".note.gnu.build-id", 7, 2, struct.pack("<III4s4s", 4, 4, 1, b"GNU\0", b"abcd") + note),
        (".comment", 1, 0, b"clang 18\0GNU ld\0clang 18\0"),
        (".symtab", 2, 0, bytes(24)),
    )
    library.write_bytes(data)
    elf = Elf.read(library)
    assert elf.build_id == "deadbeef"
    assert elf.comments == ("clang 18", "GNU ld")
    assert ".symtab" in elf.sections
    section = elf.sections[".comment"]
    assert data[section.offset :][: section.size] == b"clang 18\0GNU ld\0clang 18\0"


def test_highest_versions_compares_numbers() -> None:
    names = ["GLIBC_2.9", "GLIBC_2.27", "GLIBC_2.3.4", "GLIBC_PRIVATE", "ROCPROFILER_SDK_0.0", "GLIBCXX_3.4.22"]
    assert highest_versions(names) == {"GLIBC": "2.27", "GLIBCXX": "3.4.22", "ROCPROFILER_SDK": "0.0"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"PK\3\4" + bytes(60), "not an ELF file"),
        (b"\x7fELF\x01\x01" + bytes(60), "64-bit little-endian"),
        (b"\x7fELF\x02\x02" + bytes(60), "64-bit little-endian"),
        (b"\x7fELF\x02\x01", "64-bit little-endian"),
    ],
)
def test_snapshot_refuses_other_files_by_name(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "thing.so"
    path.write_bytes(data)
    with pytest.raises(ElfError, match=message) as caught:
        Elf.read(path)
    assert "thing.so" in str(caught.value)


def test_snapshot_refuses_truncated_file(library: Path) -> None:
    data = library.read_bytes()
    for length in range(1, len(data), 7):
        library.write_bytes(data[:length])
        with pytest.raises(ElfError):
            Elf.read(library)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=6))
def test_snapshot_of_damaged_file_works_or_raises_elf_error(library: Path, changes: list[tuple[int, int]]) -> None:
    data = bytearray(library.read_bytes())
    for offset, value in changes:
        data[offset % len(data)] = value
    damaged = library.with_name("damaged.so")
    damaged.write_bytes(data)
    with contextlib.suppress(ElfError):
        assert Elf.read(damaged).size == len(data)


def test_snapshot_lists_default_version_first(tmp_path: Path) -> None:
    symbols = [
        TinySymbol("both", version="V_1", defined=True, hidden=True),
        TinySymbol("both", version="V_2", defined=True),
        TinySymbol("one", version="V_1", defined=True),
        TinySymbol("plain", defined=True),
        TinySymbol("memcpy", "libc.so.6", "GLIBC_2.14"),
    ]
    elf = Elf.read(tiny_elf(tmp_path / "library.so", soname="libmade.so.1", symbols=symbols))
    assert elf.soname == "libmade.so.1"
    assert elf.offered == {"both": ("V_2", "V_1"), "one": ("V_1",), "plain": ("",)}
    assert elf.exported == ("both", "one", "plain")
    assert [(symbol.name, symbol.version) for symbol in elf.undefined] == [("memcpy", "GLIBC_2.14")]
