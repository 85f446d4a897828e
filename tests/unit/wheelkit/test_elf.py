"""Snapshots of ELF files, and refusal of other files."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.errors import ElfError
from tests.support.tiny_elf import TinySymbol, tiny_elf
from wheelkit.elf import constants
from wheelkit.elf.elf_tables import ElfImage
from wheelkit.elf.snapshot import Elf, highest_versions

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
        tmp_path / "lib.so",
        needed=("libc.so.6", "libamdhip64.so.7"),
        symbols=SYMBOLS,
        runpath="$ORIGIN/../lib",
    )


def test_snapshot_has_the_loader_view(library: Path) -> None:
    elf = Elf.read(library)
    assert elf.machine == "x86_64"
    assert elf.size == library.stat().st_size
    assert elf.needed == ("libc.so.6", "libamdhip64.so.7")
    assert elf.runpath == "$ORIGIN/../lib"
    assert elf.rpath is None
    assert elf.soname is None
    assert elf.exported == ("PyInit__linalg", "helper")
    assert elf.init_functions == ("PyInit__linalg",)
    assert elf.version_needs == {
        "libc.so.6": frozenset({"GLIBC_2.2.5", "GLIBC_2.28"}),
        "libamdhip64.so.7": frozenset({"hip_4.2"}),
    }
    assert elf.highest_versions() == {"GLIBC": "2.28", "hip": "4.2"}
    assert ".symtab" not in elf.sections


def test_snapshot_distinguishes_rpath_and_runpath(tmp_path: Path) -> None:
    elf = Elf.read(
        tiny_elf(tmp_path / "lib.so", runpath="/opt/rocm/lib", runpath_tag=15)
    )
    assert elf.runpath is None
    assert elf.rpath == "/opt/rocm/lib"


def test_highest_versions_compares_numbers() -> None:
    names = [
        "GLIBC_2.9",
        "GLIBC_2.27",
        "GLIBC_2.3.4",
        "GLIBC_PRIVATE",
        "ROCPROFILER_SDK_0.0",
        "GLIBCXX_3.4.22",
    ]
    assert highest_versions(names) == {
        "GLIBC": "2.27",
        "GLIBCXX": "3.4.22",
        "ROCPROFILER_SDK": "0.0",
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"PK\3\4" + bytes(60), "not an ELF file"),
        (b"\x7fELF\x01\x01" + bytes(60), "64-bit little-endian"),
        (b"\x7fELF\x02\x01", "64-bit little-endian"),
    ],
)
def test_snapshot_refuses_other_files_by_name(
    tmp_path: Path, data: bytes, message: str
) -> None:
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


@pytest.mark.parametrize(
    ("field", "layout", "value", "message"),
    [
        (4, "<I", constants.SHT_NOBITS, "no section for them"),
        (32, "<Q", 1 << 40, "ends before byte"),
        (0, "<I", 1 << 30, "name outside of its string table"),
    ],
    ids=["type", "size", "name"],
)
def test_snapshot_refuses_damaged_symbol_table(
    library: Path, field: int, layout: str, value: int, message: str
) -> None:
    data = bytearray(library.read_bytes())
    (table,) = struct.unpack_from("<Q", data, 0x28)
    number = list(Elf.read(library).sections).index(".dynsym")
    struct.pack_into(layout, data, table + 64 * number + field, value)
    library.write_bytes(data)
    with pytest.raises(ElfError, match=message):
        Elf.read(library)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (0x36, 55, "unsupported row size"),
        (0x3E, 500, "has no section name table"),
    ],
    ids=["row of segments", "section of names"],
)
def test_snapshot_refuses_damaged_header(
    library: Path, field: int, value: int, message: str
) -> None:
    data = bytearray(library.read_bytes())
    struct.pack_into("<H", data, field, value)
    library.write_bytes(data)
    with pytest.raises(ElfError, match=message):
        Elf.read(library)


def test_image_without_symbols_is_refused() -> None:
    image = ElfImage.parse(b"\x7fELF\x02\x01".ljust(64, b"\0"), "code")
    with pytest.raises(ElfError, match="has no dynamic symbols"):
        list(image.dynamic_symbols())
    with pytest.raises(ElfError, match="ends before byte 65"):
        image.read(60, 5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=6
    )
)
def test_snapshot_of_damaged_file_works_or_raises_elf_error(
    library: Path, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(library.read_bytes())
    for offset, value in changes:
        data[offset % len(data)] = value
    damaged = library.with_name("damaged.so")
    damaged.write_bytes(data)
    with contextlib.suppress(ElfError):
        assert Elf.read(damaged).size == len(data)
