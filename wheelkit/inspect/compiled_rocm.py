"""The ROCm that a wheel was compiled with, compared with the ROCm that was given to its build.

Bazel's rules can compile with another ROCm than the given one: they download one if no
variable selects a local ROCm (rules_ml_toolchain, gpu/rocm/hipcc_configure.bzl; XLA,
third_party/gpus/rocm_configure.bzl). Three marks of the ROCm remain in a library:

- DT_NEEDED: the sonames of ROCm's libraries.
- DT_RUNPATH: folders of a ROCm outside the given one, and Bazel's repositories of
  downloaded ROCms.
- .comment: the version of ROCm's clang, which compiles device code and its host stubs,
  such as `AMD clang version 22.0.0git
  (https://github.com/RadeonOpenCompute/llvm-project roc-7.2.0 26014 7b800a19…)`. The
  clang of TheRock names its commit instead of the ROCm release.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from core.frozen import frozen
from core.rocm_releases import AMD_CLANG, base_version, rocm_of_compiler
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.elf.constants import ELF64_LITTLE
from wheelkit.elf.snapshot import Elf
from wheelkit.inspect.platform_rules import ROCM_SONAME

_LIBRARY = re.compile(r".*\.so(\.\d+)*")
_DOWNLOADED = re.compile(r"rocm_(hermetic|redist)_dist")
"""Repositories of downloaded ROCms (rules_ml_toolchain and WORKSPACE)."""
_BUILD_FOLDER = re.compile(r"/(execroot|external|_bazel_\w+)/")
"""Folders of Bazel, whose repository of the ROCm has one name, given or downloaded."""
_ROCM_FOLDER = re.compile(r"/rocm[^/]*(/|$)", re.IGNORECASE)
_INSTALLED = PurePosixPath("/opt/rocm")


@frozen
class BuildRocm:
    """The ROCm that was given to a build.

    Attributes:
        version: full version, such as 7.10.0a20251120.
        sonames: sonames of its libraries.
        compiler: version of its clang, such as 22.0.0git; empty if unknown.
        identity: first line of its `clang --version`; empty if unknown.
        folders: folders in which the build sees this ROCm.
    """

    version: str
    sonames: frozenset[str]
    compiler: str = ""
    identity: str = ""
    folders: tuple[str, ...] = ()


@frozen
class CompiledRocm:
    """Result of a comparison.

    Attributes:
        differences: one sentence part for each difference, naming the library, its ROCm
            and the given ROCm.
        unmarked: libraries with device code that name no clang of ROCm.
    """

    differences: tuple[str, ...]
    unmarked: tuple[str, ...]


def compare_rocm(path: Path, rocm: BuildRocm, *, scratch: Path | None) -> CompiledRocm:
    """Compare the libraries of a wheel with the ROCm of its build.

    Args:
        scratch: folder with room for the largest library.

    Raises:
        ArchiveError, ElfError: the wheel or a library is damaged.
    """
    differences: list[str] = []
    unmarked = []
    with (
        WheelArchive(path) as archive,
        tempfile.TemporaryDirectory(prefix="rocm-", dir=scratch) as folder,
    ):
        for member in archive.members:
            if _LIBRARY.fullmatch(member.name) is None:
                continue
            library = Path(folder) / "library"
            archive.unpack(member.name, library)
            with library.open("rb") as file:
                readable = file.read(len(ELF64_LITTLE)) == ELF64_LITTLE
            if readable:
                elf = Elf.read(library)
                name = PurePosixPath(member.name).name
                differences += (
                    f"{name} {text}" for text in library_differences(elf, rocm)
                )
                if ".hip_fatbin" in elf.sections and not _clangs(elf):
                    unmarked.append(name)
            library.unlink()
    return CompiledRocm(differences=tuple(differences), unmarked=tuple(unmarked))


def library_differences(elf: Elf, rocm: BuildRocm) -> tuple[str, ...]:
    """Return the differences between one library and the ROCm of its build."""
    return (*_sonames(elf, rocm), *_compilers(elf, rocm), *_search_path(elf, rocm))


def _sonames(elf: Elf, rocm: BuildRocm) -> Iterator[str]:
    for needed in elf.needed:
        if needed in rocm.sonames:
            continue
        known = sorted(name for name in rocm.sonames if _stem(name) == _stem(needed))
        if known or ROCM_SONAME.fullmatch(needed):
            yield (
                f"needs {needed}, and ROCm {rocm.version} has"
                f" {', '.join(known) or f'no {_stem(needed)}.so'}"
            )


def _stem(soname: str) -> str:
    return soname.partition(".so")[0]


def _clangs(elf: Elf) -> tuple[str, ...]:
    return tuple(comment for comment in elf.comments if AMD_CLANG.match(comment))


def _compilers(elf: Elf, rocm: BuildRocm) -> Iterator[str]:
    for comment in _clangs(elf):
        match = AMD_CLANG.match(comment)
        versions = rocm_of_compiler(comment)
        if rocm.identity:
            if comment.strip() != rocm.identity:
                yield (
                    f"was compiled by {comment!r}, and the clang of ROCm {rocm.version}"
                    f" is {rocm.identity!r}"
                )
        elif versions:
            if base_version(rocm.version) not in map(base_version, versions):
                yield (
                    f"was compiled by the clang of ROCm {versions[0]}, and the given"
                    f" ROCm is {rocm.version}"
                )
        elif match and rocm.compiler and match[1] != rocm.compiler:
            yield (
                f"was compiled by AMD clang {match[1]}, and the clang of ROCm"
                f" {rocm.version} is {rocm.compiler}"
            )


def _search_path(elf: Elf, rocm: BuildRocm) -> Iterator[str]:
    own = (_INSTALLED, *map(PurePosixPath, rocm.folders))
    for entry in dict.fromkeys(elf.search_path):
        # Bazel writes `_U` for `_` in the names of its link folders.
        if _DOWNLOADED.search(entry.replace("_U", "_")):
            yield f"has the RUNPATH {entry}, which is a ROCm that Bazel downloaded"
            continue
        if not entry.startswith("/") or _BUILD_FOLDER.search(entry):
            continue
        given = any(PurePosixPath(entry).is_relative_to(folder) for folder in own)
        if _ROCM_FOLDER.search(entry) and not given:
            seen = ", ".join(rocm.folders) or str(_INSTALLED)
            yield f"has the RUNPATH {entry}, and ROCm {rocm.version} is in {seen}"
