"""Checks of code objects and libraries; each refusal names the mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.compiled_checks import code_problems, library_problems
from tests.support.made_kernels import code
from tests.support.made_wheel import GLIBC, library
from tests.support.tiny_elf import TinySymbol


def test_objects_of_old_abi_versions_are_read() -> None:
    for data in (
        code(
            "gfx942",
            {"k": 8},
            flags=0x500,
            abi=2,
        ),
        code(
            "gfx942",
            {"k": 8},
            abi=1,
        ),
    ):
        assert code_problems(data, "x", "gfx942", ["k"]) == []


A = TinySymbol("JaxAiterA", defined=True)
B = TinySymbol("_ZdlPv", defined=True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (library(GLIBC, entry=[A]), []),
        (library(GLIBC, entry=[]), ["l does not export JaxAiterA"]),
        (library(GLIBC, entry=[A, B]), ["l also exports _ZdlPv"]),
        (
            library(
                GLIBC,
                entry=[A],
                needed=("libc.so.6", "libamdhip64.so.7"),
            ),
            ["l has forbidden dependencies: libamdhip64.so.7"],
        ),
        (
            library(
                GLIBC,
                TinySymbol("hipInit"),
                entry=[A],
            ),
            ["l uses hipInit, which none of its libraries defines"],
        ),
        (b"no", ["l.so is not an ELF file"]),
    ],
)
def test_library_problems_names_symbols(
    content: bytes,
    said: list[str],
    tmp_path: Path,
) -> None:
    path = tmp_path / "l.so"
    path.write_bytes(content)
    assert library_problems(path, "l", ["JaxAiterA"]) == said
