"""The ROCm that compilers, Summary, names and needed libraries of wheels prove together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from core.errors import RequestError
from tests.support.made_wheel import (
    LIB,
    MODULE,
    MadeWheel,
    clean_pjrt,
    library,
    look,
    with_sections,
)
from tests.unit.core.test_rocm_releases import C849, ROCM_LLVM
from wheelkit.inspect.inspection_model import WheelReport
from wheelkit.inspect.proven_rocm import proven_rocm

C7_2 = (
    "AMD clang version 22.0.0git (https://github.com/RadeonOpenCompute/llvm-project"
    " roc-7.2.0 26014 7b800a19)"
)
C7_12 = f"{ROCM_LLVM}{C849}+PATCHED:9a6ac45c)"
C7_14 = f"{ROCM_LLVM}46fcb339fb61119b337f973c7ca9e710a319fdd0)"
NEW = f"{ROCM_LLVM}{'d' * 40})"


def report(
    folder: Path,
    compiler: str,
    summary: str,
    made: MadeWheel | None = None,
    **more: Any,
) -> WheelReport:
    """Return the report of a wheel that names a compiler, with Summary `JAX (ROCm…)`."""
    made = made or clean_pjrt()
    made.replace("Summary", f"JAX ({summary})")
    member = LIB if LIB in made.files else MODULE
    made.files[member] = with_sections(
        library(**more), (".comment", 1, 0x30, f"clang 18\0{compiler}\0".encode())
    )
    folder.mkdir(exist_ok=True)
    return look(made, folder)


@pytest.mark.parametrize(
    ("compiler", "summary", "rocm"),
    [
        (C7_2, "ROCm:unknown", "7.2.0"),
        (C7_12, "ROCm:unknown", "7.12.0"),
        (
            C7_14,
            "ROCm:7.15.0a20260627",
            "7.15.0a20260627",
        ),  # main pinned the compiler of 7.14.0 for some days
        (NEW, "ROCm:7.16.0", "7.16.0"),
        ("clang version 18.1.8", "ROCm 7.2.0; gfx942", "7.2.0"),
    ],
)
def test_proven_rocm_agrees_with_all_marks(
    compiler: str, summary: str, rocm: str, tmp_path: Path
) -> None:
    assert proven_rocm([report(tmp_path, compiler, summary)]) == rocm


@pytest.mark.parametrize(
    ("compiler", "summary", "given", "words"),
    [
        (C7_12, "ROCm:7.14.0", "7.14.1", "not proven to be for ROCm 7.14.1"),
        (C7_14, "ROCm:unknown", "7.2.0", "was compiled by the clang of ROCm 7.14.0"),
        (NEW, "ROCm:7.14.0", "7.14.1", "names ROCm 7.14.0"),
    ],
)
def test_proven_rocm_refuses_contradiction(
    compiler: str, summary: str, given: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError) as caught:
        proven_rocm([report(tmp_path, compiler, summary)], given)
    assert words in caught.value.message


def test_proven_rocm_given_version_of_compiler_settles_wrong_summary(
    tmp_path: Path,
) -> None:
    wheel = report(tmp_path, C7_12, "ROCm:7.14.0")
    with pytest.raises(RequestError) as caught:
        proven_rocm([wheel])
    assert caught.value.hint.startswith(
        "Give --rocm-version=7.12.0 to rely on the compiler"
    )
    assert proven_rocm([wheel], "7.12.0") == "7.12.0"


@pytest.mark.parametrize("soname", ["librocm_sysdeps_numa.so.1", "librocsolver.so.1"])
def test_proven_rocm_refuses_library_that_release_lacks(
    soname: str, tmp_path: Path
) -> None:
    needed = ("libc.so.6", soname)
    with pytest.raises(
        RequestError, match=rf"needs {re.escape(soname)}, which ROCm 7\.2\.0 lacks"
    ):
        proven_rocm([report(tmp_path, C7_2, "ROCm:unknown", needed=needed)])


def test_proven_rocm_asks_where_nothing_names_one(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="Neither the compilers nor Summary"):
        proven_rocm([report(tmp_path, NEW, "ROCm:unknown")])
    assert proven_rocm([report(tmp_path, NEW, "ROCm:unknown")], "7.16.0") == "7.16.0"
