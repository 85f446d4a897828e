"""ELF reading and editing of published libraries, checked by independent tools."""

from __future__ import annotations

import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection

from tests.support.real_libraries import unpacked
from wheelkit.elf import constants
from wheelkit.elf import elf_tables as reader
from wheelkit.elf.runpath import add_needed, set_runpath
from wheelkit.elf.snapshot import Elf
from wheelkit.elf.strip import StripReport, strip_symbols

VERSIONS = ("0.7.1", "0.9.1", "0.10.2", "0.12.0")
RUNPATH = "$ORIGIN/../lib:/opt/rocm/lib"
HIP = "libamdhip64.so.7"
# Bytes of RUNPATH in 0.10.2 and later; in older ones some libraries have no room for a
# name.
ROOM = 4000
_VISIBLE = ("STV_DEFAULT", "STV_PROTECTED")


@pytest.fixture(params=VERSIONS)
def plugin(
    request: pytest.FixtureRequest, real_wheel: Callable[..., Path], tmp_path: Path
) -> Iterator[list[Path]]:
    """Return the libraries of each published plugin wheel."""
    with unpacked(real_wheel("jax-rocm7-plugin", request.param), tmp_path) as libraries:
        yield libraries


def oracle(path: Path) -> dict[str, object]:
    """Return the snapshot of a file as pyelftools reads it."""
    with path.open("rb") as stream:
        file: Any = ELFFile(stream)
        sections: list[Any] = list(file.iter_sections())
        (dynamic,) = (s for s in sections if isinstance(s, DynamicSection))
        tags: list[Any] = list(dynamic.iter_tags())
        needs: dict[int, tuple[str, str]] = {}
        for section in sections:
            if isinstance(section, GNUVerNeedSection):
                for need, auxiliaries in section.iter_versions():
                    needs |= {
                        a["vna_other"] & 0x7FFF: (a.name, need.name)
                        for a in auxiliaries
                    }
        (versions,) = (s for s in sections if isinstance(s, GNUVerSymSection))
        undefined = []
        exported = []
        for index, symbol in enumerate(
            file.get_section_by_name(".dynsym").iter_symbols()
        ):
            number = versions.get_symbol(index)["ndx"]
            bind = symbol["st_info"]["bind"].removeprefix("STB_")
            if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name:
                version = (
                    needs.get(number & 0x7FFF, (None, None))
                    if isinstance(number, int)
                    else (None, None)
                )
                undefined.append((symbol.name, *version, bind))
            elif (
                symbol.name
                and bind != "LOCAL"
                and symbol["st_other"]["visibility"] in _VISIBLE
            ):
                exported.append(symbol.name)
        return {
            "needed": tuple(t.needed for t in tags if t.entry.d_tag == "DT_NEEDED"),
            "runpath": next(
                (t.runpath for t in tags if t.entry.d_tag == "DT_RUNPATH"), None
            ),
            "undefined": undefined,
            "exported": exported,
            "sections": [(s.name, s["sh_offset"], s["sh_size"]) for s in sections],
        }


def ours(path: Path) -> dict[str, object]:
    elf = Elf.read(path)
    with reader.open_image(path) as image:
        sections = [(s.name, s.offset, s.size) for s in image.sections]
    return {
        "needed": elf.needed,
        "runpath": elf.runpath,
        "undefined": [(s.name, s.version, s.library, s.bind) for s in elf.undefined],
        "exported": list(elf.exported),
        "sections": sections,
    }


def loaded(path: Path, *, without: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return the bytes that the loader maps, with some ranges blanked."""
    data = bytearray(path.read_bytes())
    for start, end in without:
        data[start:end] = bytes(end - start)
    with reader.open_image(path) as image:
        return [
            bytes(data[s.offset : s.offset + s.file_size])
            for s in image.segments
            if s.type == constants.PT_LOAD
        ]


def readelf(path: Path, left_out: Callable[[str, str], None]) -> list[str]:
    """Return the complaints of readelf, except gaps in build notes."""
    tool = shutil.which("readelf")
    if tool is None:
        left_out("readelf", "not installed; pyelftools stands in")
        return []
    done = subprocess.run(
        [tool, "--all", "--wide", path],
        capture_output=True,
        text=True,
        check=True,
        errors="replace",
    )
    return sorted(
        line
        for line in done.stderr.splitlines()
        if line and "Gap in build notes" not in line
    )


def test_snapshot_of_published_plugins_agrees_with_pyelftools(
    plugin: list[Path],
) -> None:
    assert len(plugin) == 8
    for path in plugin:
        assert ours(path) == oracle(path), path.name


def test_strip_and_edits_keep_loaded_bytes_of_plugins(
    plugin: list[Path], left_out: Callable[[str, str], None]
) -> None:
    for path in plugin:
        before = oracle(path)
        complaints = readelf(path, left_out)
        old = path.with_suffix(".old")
        shutil.copyfile(path, old)
        ranges = set_runpath(path, RUNPATH)
        if len(str(before["runpath"])) > ROOM:
            ranges += add_needed(path, HIP)
            assert HIP in Elf.read(path).needed
        debug = path.with_suffix(".so.debug")
        report = strip_symbols(path, debug)
        assert ours(path) == oracle(path), path.name
        assert oracle(path)["undefined"] == before["undefined"], path.name
        assert oracle(path)["exported"] == before["exported"], path.name
        assert Elf.read(path).runpath == RUNPATH
        # Of the loaded bytes, only RUNPATH, NEEDED and the header's offset of the
        # section table differ.
        changes = [*ranges, (40, 64)]
        assert loaded(path, without=changes) == loaded(old, without=changes), path.name
        assert readelf(path, left_out) == readelf(debug, left_out) == complaints
        assert_debug_file(path, old, debug, report)


def assert_debug_file(
    path: Path,
    old: Path,
    debug: Path,
    report: StripReport,
) -> None:
    def symbols(file: Path) -> list[tuple[str, object]]:
        with file.open("rb") as stream:
            table: Any = ELFFile(stream).get_section_by_name(".symtab")
            return [(symbol.name, symbol.entry) for symbol in table.iter_symbols()]

    assert report.dropped[-2:] == (".symtab", ".strtab")
    assert symbols(debug) == symbols(old)
    link = Elf.read(path).sections[".gnu_debuglink"]
    content = path.read_bytes()[link.offset :][: link.size]
    assert content.startswith(debug.name.encode() + b"\0")
    assert struct.unpack("<I", content[-4:])[0] == zlib.crc32(debug.read_bytes())
