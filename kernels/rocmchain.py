"""Toolchain of a ROCm, identified by its content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from core.digests import sha256_of
from core.errors import InputError
from kernels.toolchains import Toolchain

OLDEST_CLANG = 20
"""Oldest clang that the C++ library headers in `build/requirements-kernels.lock` support."""


def with_rocm(pypi: Toolchain, rocm: Path) -> Toolchain:
    """Return a toolchain that compiles device code with a ROCm.

    Other host code uses the package index's compiler.

    Args:
        pypi: toolchain for the host libraries of launchers.
        rocm: folder of the ROCm.

    Raises:
        InputError: the ROCm has no compiler or bitcode, or its compiler is too old for
            the C++ library.
    """
    data = pypi.data["rocm"]
    clang = _first(rocm, data["places"])
    bitcode = _first(rocm, [f"{place}/ocml.bc" for place in data["bitcode"]])
    bitcode = bitcode.removesuffix("/ocml.bc")
    if not clang or not bitcode:
        lacking = "compiler" if not clang else "device bitcode"
        raise InputError(
            f"The ROCm in {rocm} has no {lacking}.",
            hint=(
                "Use the folder of a ROCm that has one of"
                f" {', '.join(data['places' if not clang else 'bitcode'])}."
            ),
        )
    majors = []
    for path in (rocm / clang).parents[1].glob("lib/clang/*/include"):
        major = path.parent.name.partition(".")[0]
        if major.isdecimal():
            majors.append(int(major))
    newest = max(majors, default=OLDEST_CLANG)
    if newest < OLDEST_CLANG:
        raise InputError(
            f"The compiler of the ROCm in {rocm} is clang {newest}; the kernels need"
            f" {OLDEST_CLANG} or later.",
            hint="Use ROCm 7.0 or later.",
        )
    content = rocm_digest(rocm, clang, bitcode)
    places = {
        "rocm": str(rocm),
        "rocm_clang": str(rocm / clang),
        "rocm_bitcode": str(rocm / bitcode),
    }
    return replace(
        pypi,
        name="rocm",
        digest=sha256_of(f"{pypi.digest} {content}".encode()),
        places={**pypi.places, **places},
        origin={"rocm": str(rocm)},
    )


def _first(folder: Path, names: Sequence[str]) -> str:
    """Return the first of some paths that exists below a folder; empty for none."""
    return next((name for name in names if (folder / name).exists()), "")


def rocm_digest(rocm: Path, clang: str, bitcode: str) -> str:
    """Return the SHA-256 of the compiler, its libraries, bitcode and headers of a ROCm."""
    total = hashlib.sha256()
    for path in sorted(set(_files(rocm, clang, bitcode))):
        total.update(f"{path.relative_to(rocm)}\0{sha256_of(path)}\n".encode())
    return total.hexdigest()


def _files(rocm: Path, clang: str, bitcode: str) -> Iterator[Path]:
    """Yield the files that affect the output.

    The compiler, its libraries and headers, the bitcode, HIP's headers.
    """
    compiler = (rocm / clang).parent
    patterns = {
        compiler: ("clang++", "lld", "clang-offload-bundler"),
        compiler.parent / "lib": (
            "libLLVM*.so*",
            "libclang-cpp.so*",
            "clang/*/include/**/*",
        ),
        rocm / bitcode: ("*.bc",),
        rocm: ("include/hip/**/*",),
    }
    for folder, names in patterns.items():
        for name in names:
            yield from (path for path in folder.glob(name) if path.is_file())
