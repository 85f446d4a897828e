"""Paths of the build machine in the strings of a library."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.made_wheel import library, with_sections
from wheelkit.elf.build_paths import build_paths
from wheelkit.elf.snapshot import Elf


def found(folder: Path, section: str, text: bytes) -> tuple[str, ...]:
    path = folder / "lib.so"
    path.write_bytes(with_sections(library(), (section, 1, 2, text)))
    return build_paths(path, Elf.read(path).sections.values())


def test_build_paths_returns_each_path_once_and_complete(tmp_path: Path) -> None:
    text = b"/home/me/xla/a.cc:12\0-I/root/inc\0x=/home/me/xla/a.cc\0/src/_bazel_root/0a/execroot/b.cc"
    assert found(tmp_path, ".rodata", text) == (
        "/home/me/xla/a.cc",
        "/src/_bazel_root/0a/execroot/b.cc",
    )


@pytest.mark.parametrize(
    "text",
    [
        b"see /home/ for users",
        b"external/xla/_bazel_root/x",
        b"a.runfiles/x",
        b"/proc/self/exe",
        b"",
        b"/home/",
    ],
)
def test_build_paths_skips_other_text(tmp_path: Path, text: bytes) -> None:
    assert found(tmp_path, ".rodata.str1.1", text) == ()


def test_build_paths_searches_only_data_sections(tmp_path: Path) -> None:
    assert found(tmp_path, ".text", b"/home/me/a.cc") == ()
    assert found(tmp_path, ".data.rel.ro", b"/home/me/a.cc") == ("/home/me/a.cc",)
