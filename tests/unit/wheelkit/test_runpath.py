"""RUNPATH and NEEDED edited in place, with protection of shared names."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import ElfError
from tests.support.tiny_elf import TinySymbol, tiny_elf
from wheelkit.elf.runpath import add_needed, set_runpath
from wheelkit.elf.snapshot import Elf

OLD = "$ORIGIN/../../_solib_x86_64/very/long/leftover/of/a/build:/opt/rocm/lib"
NEW = "$ORIGIN/../lib:/opt/rocm/lib"
HIP = "libamdhip64.so.7"
SYMBOLS = (TinySymbol("hipMalloc"), TinySymbol("printf", "libc.so.6", "GLIBC_2.2.5"))


def make(
    path: Path,
    *,
    runpath: str = OLD,
    spare: int = 0,
    needed: tuple[str, ...] = ("libc.so.6",),
) -> Path:
    return tiny_elf(path, needed=needed, symbols=SYMBOLS, runpath=runpath, spare=spare)


def entries(path: Path) -> list[tuple[int, int, int]]:
    """Return file offset, tag and value of each dynamic entry."""
    section = Elf.read(path).sections[".dynamic"]
    data = path.read_bytes()
    places = range(section.offset, section.offset + section.size, 16)
    return [(place, *struct.unpack_from("<qQ", data, place)) for place in places]


def patch(path: Path, offset: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(content)


def assert_only(before: bytes, path: Path, ranges: list[tuple[int, int]]) -> None:
    """Assert that only bytes inside the ranges changed."""
    after = bytearray(path.read_bytes())
    assert len(after) == len(before)
    for start, end in ranges:
        after[start:end] = before[start:end]
    assert bytes(after) == before


def test_set_runpath_writes_shorter_runpath(tmp_path: Path) -> None:
    path = make(tmp_path / "lib.so")
    before = path.read_bytes()
    ranges = set_runpath(path, NEW)
    assert Elf.read(path).runpath == NEW
    assert [end - start for start, end in ranges] == [len(OLD)]
    assert_only(before, path, ranges)
    assert b"_solib" not in path.read_bytes()


@pytest.mark.parametrize(
    ("runpath", "message"),
    [
        (OLD + "x", "there is room for"),
        ("", "cannot be"),
        ("a\0b", "cannot be"),
    ],
)
def test_set_runpath_refuses_invalid_values(
    tmp_path: Path, runpath: str, message: str
) -> None:
    path = make(tmp_path / "lib.so")
    before = path.read_bytes()
    with pytest.raises(ElfError, match=message):
        set_runpath(path, runpath)
    assert path.read_bytes() == before


def value_of(path: Path) -> int:
    """Return the offset of the RUNPATH in the string table."""
    return next(value for _, tag, value in entries(path) if tag == 29)


@pytest.mark.parametrize(
    ("place", "layout", "inside"),
    [
        (lambda path: entries(path)[0][0] + 8, "<Q", 0),
        (lambda path: Elf.read(path).sections[".dynsym"].offset + 24, "<I", 9),
        (
            lambda path: Elf.read(path).sections[".gnu.version_r"].offset + 16 + 8,
            "<I",
            9,
        ),
    ],
    ids=["library", "symbol", "version"],
)
def test_set_runpath_protects_shared_name(
    tmp_path: Path, place: Callable[[Path], int], layout: str, inside: int
) -> None:
    path = make(tmp_path / "lib.so")
    assert entries(path)[0][1] == 1
    patch(path, place(path), struct.pack(layout, value_of(path) + inside))
    with pytest.raises(ElfError, match="shares"):
        set_runpath(path, NEW)


@pytest.mark.parametrize("spare", [1, 3])
def test_add_needed_uses_spare_entry(tmp_path: Path, spare: int) -> None:
    path = make(tmp_path / "lib.so", spare=spare)
    set_runpath(path, NEW)
    before = path.read_bytes()
    ranges = add_needed(path, HIP)
    elf = Elf.read(path)
    assert elf.needed == ("libc.so.6", HIP)
    assert elf.runpath == NEW
    assert entries(path)[-1][1] == 0
    assert_only(before, path, ranges)
    assert add_needed(path, HIP) == []


def test_add_needed_replaces_relocation_count(tmp_path: Path) -> None:
    path = make(tmp_path / "lib.so", spare=1)
    set_runpath(path, NEW)
    patch(path, entries(path)[-2][0], struct.pack("<qQ", 0x6FFFFFF9, 7))
    assert add_needed(path, HIP)
    assert Elf.read(path).needed == ("libc.so.6", HIP)
    assert 0x6FFFFFF9 not in [tag for _, tag, _ in entries(path)]


@pytest.mark.parametrize(
    ("spare", "shorten", "message"),
    [
        (0, True, "no spare dynamic entry"),
        (1, False, "no room"),
    ],
)
def test_add_needed_refuses_without_room(
    tmp_path: Path, spare: int, shorten: bool, message: str
) -> None:
    path = make(tmp_path / "lib.so", spare=spare)
    if shorten:
        set_runpath(path, NEW)
    before = path.read_bytes()
    with pytest.raises(ElfError, match=message):
        add_needed(path, HIP)
    assert path.read_bytes() == before


def test_add_needed_keeps_referenced_bytes(tmp_path: Path) -> None:
    path = make(tmp_path / "lib.so", spare=1)
    set_runpath(path, NEW)
    empty = (
        value_of(path) + len(NEW) + 1 + 4
    )  # an empty name, four bytes after the start of the free space
    patch(
        path, Elf.read(path).sections[".dynsym"].offset + 24, struct.pack("<I", empty)
    )
    with pytest.raises(ElfError, match="no room"):
        add_needed(path, HIP)
