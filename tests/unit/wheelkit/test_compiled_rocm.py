"""The ROCm that a wheel was compiled with, compared with the one given to its build."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.made_wheel import LIB, clean_pjrt, fat_binary, library, with_sections
from wheelkit.elf.snapshot import Elf
from wheelkit.inspect.compiled_rocm import BuildRocm, compare_rocm, library_differences

RELEASE = (
    "AMD clang version 22.0.0git (https://github.com/RadeonOpenCompute/llvm-project"
    " roc-7.2.0 26014 7b800a19)"
)
THEROCK = (
    "AMD clang version 23.0.0git (https://github.com/ROCm/llvm-project.git"
    " 46fcb339+PATCHED:440716f8)"
)
HOST = "clang version 18.1.8"
ROCM = BuildRocm(
    version="7.2.0",
    sonames=frozenset(
        {"libamdhip64.so.7", "librocsolver.so.0", "librocm_sysdeps_numa.so.1"}
    ),
    compiler="22.0.0git",
    folders=("/opt/rocm",),
)


def elf(folder: Path, *comments: str, **more: Any) -> Elf:
    path = folder / "_solver.so"
    data = library(**{"needed": ("libc.so.6", "librocsolver.so.0"), **more})
    path.write_bytes(
        with_sections(
            data, (".comment", 1, 0x30, "".join(f"{c}\0" for c in comments).encode())
        )
    )
    return Elf.read(path)


@pytest.mark.parametrize(
    ("needed", "words"),
    [
        (
            "librocsolver.so.1",
            "needs librocsolver.so.1, and ROCm 7.2.0 has librocsolver.so.0",
        ),
        ("libhipsolver_fortran.so.1", "and ROCm 7.2.0 has no libhipsolver_fortran.so"),
    ],
)
def test_differences_name_both_sonames(tmp_path: Path, needed: str, words: str) -> None:
    (difference,) = library_differences(
        elf(tmp_path, needed=("libc.so.6", needed)), ROCM
    )
    assert words in difference


@pytest.mark.parametrize(
    ("comment", "rocm", "words"),
    [
        (
            RELEASE,
            replace(ROCM, version="7.10.0a20251120"),
            "the clang of ROCm 7.2.0, and the given ROCm is 7.10.0a20",
        ),
        (
            THEROCK,
            ROCM,
            "AMD clang 23.0.0git, and the clang of ROCm 7.2.0 is 22.0.0git",
        ),
        (
            THEROCK,
            replace(ROCM, identity=RELEASE),
            "46fcb339+PATCHED:440716f8)', and the clang of ROCm 7.2.0 is 'AMD",
        ),
    ],
)
def test_differences_name_both_compilers(
    tmp_path: Path, comment: str, rocm: BuildRocm, words: str
) -> None:
    (difference,) = library_differences(elf(tmp_path, HOST, comment), rocm)
    assert words in difference


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("/opt/rocm-6.4.0/lib", "and ROCm 7.2.0 is in /opt/rocm"),
        (
            "$ORIGIN/../_solib_x86_64/_U_A_Arocm_Uhermetic_Udist_S_Slib",
            "which is a ROCm that Bazel downloaded",
        ),
        (
            "external/rocm_redist_dist/rocm_dist/lib",
            "which is a ROCm that Bazel downloaded",
        ),
        ("/opt/rocm/lib/room/room", ""),
        ("/cache/execroot/__main__/external/local_config_rocm/rocm/rocm_dist/lib", ""),
    ],
)
def test_differences_of_search_path(tmp_path: Path, entry: str, words: str) -> None:
    differences = library_differences(
        elf(tmp_path, runpath=f"$ORIGIN:{entry}:/opt/rocm/lib"), ROCM
    )
    assert [words in line for line in differences] == ([True] if words else [])


def test_compare_reads_every_library_of_wheel(tmp_path: Path) -> None:
    made = clean_pjrt()
    marked = (".comment", 1, 0x30, RELEASE.encode() + b"\0")
    made.files[LIB] = with_sections(
        library(fatbins=[fat_binary()], needed=("libamdhip64.so.7",)), marked
    )
    made.files["jax_plugins/xla_rocm7/_rnn.so"] = library(needed=("libMIOpen.so.1",))
    made.files["jax_plugins/xla_rocm7/_prng.so.1"] = library(fatbins=[fat_binary()])
    made.files["jax_plugins/xla_rocm7/script.so"] = b"INPUT(libm.so.6)"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    compared = compare_rocm(made.write(tmp_path), ROCM, scratch=scratch)
    assert compared.differences == (
        "_rnn.so needs libMIOpen.so.1, and ROCm 7.2.0 has no libMIOpen.so",
    )
    assert compared.unmarked == ("_prng.so.1",)
    assert list(scratch.iterdir()) == []
    shutil.rmtree(scratch)
