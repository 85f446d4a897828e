"""The manifest of a ROCm tree.

Dynamic tables and sha256 of its shared libraries, read in little memory.

Trees are unpacked tarballs of TheRock, system packages below /opt/rocm, packages of
distributions below /usr, and site-packages with the `_rocm_sdk_*` packages of the
rocm-sdk wheels.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from core.digests import sha256_of
from core.errors import ElfError, InputError, RequestError
from core.model import Progress
from core.unpack.tar import Kind
from core.unpack.tree_contents import Contents, Item
from wheelkit.elf import libstdcxx
from wheelkit.elf.snapshot import Elf
from wheelkit.rocm_manifest import RocmLibrary, RocmManifest

LIBRARY_FOLDERS = ("lib", "lib64", "lib/*-linux-gnu", "lib/rocm_sysdeps/lib")
"""Patterns of the folders in a prefix with the libraries that programs are linked with."""
COMPILER_FOLDERS = ("lib/llvm/lib", "llvm/lib")
"""Folders with the compiler's libraries, which count only if another one needs them."""
PACKAGES = "_rocm_sdk_*"
"""Pattern of the prefixes in a site-packages folder."""
VERSION_FILE = ".info/version"

_READABLE = b"\x7fELF\x02\x01"
"""64 bits, little endian (gABI, "ELF identification")."""


def link_device_libraries(root: Path, contents: Contents) -> None:
    """Add and record the link from amdgcn to lib/llvm/amdgcn in an unpacked tree.

    TheRock's trees have this link since 2026-02-03 (commit 4058a195d). Compilers with
    `--rocm-path` find the device libraries only there, and the Bazel rules of XLA
    (toolchain_data in third_party/gpus/rocm/BUILD.tpl, since jax 0.10.2) and of
    rules_ml_toolchain give actions only `amdgcn/**`, also on remote executors.
    """
    link = root / "amdgcn"
    if (root / "lib/llvm/amdgcn/bitcode").is_dir() and not os.path.lexists(link):
        # The unpacked folder is read-only, which stops every user but root.
        mode = root.stat().st_mode
        root.chmod(mode | 0o200)
        link.symlink_to("lib/llvm/amdgcn")
        root.chmod(mode)
        contents["amdgcn"] = Item(kind=Kind.SYMLINK, link="lib/llvm/amdgcn")


@dataclass(kw_only=True, slots=True)
class _Reading:
    """Libraries and problems of one tree."""

    root: Path
    libraries: dict[str, RocmLibrary] = field(default_factory=dict)
    read: set[Path] = field(default_factory=set)
    unlinked: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def folder(self, folder: Path, *, only: frozenset[str] | None = None) -> None:
        """Read the libraries of one folder.

        Of several libraries with one soname, the first counts.
        """
        for path in sorted(folder.glob("lib*.so*")):
            if only is not None and path.name not in only:
                continue
            if (real := path.resolve()) in self.read or not _is_library(real):
                continue
            self.read.add(real)
            try:
                elf = Elf.read(real)
            except (ElfError, OSError) as error:
                self.problems.append(f"{path.relative_to(self.root)}: {error}")
                continue
            soname = elf.soname or path.name
            if elf.machine == "amdgpu" or soname in self.libraries:
                continue
            if not (folder / soname).is_file():
                self.unlinked.append(
                    f"{path.relative_to(self.root)} cannot be loaded: the link {soname}"
                    " is missing."
                )
                continue
            where = (folder / soname).relative_to(self.root)
            self.libraries[soname] = library(
                elf, soname, where.as_posix(), sha256=sha256_of(real)
            )

    def missing(self) -> frozenset[str]:
        """Return the sonames that libraries of the tree need and that were not read yet."""
        needed = set[str]()
        for row in self.libraries.values():
            needed.update(row.needed)
        return frozenset(needed - self.libraries.keys())


def read_tree(
    root: Path,
    rocm_version: str = "",
    *,
    unknown: str = "",
    shown: str = "",
    progress: Progress,
) -> tuple[RocmManifest, tuple[str, ...]]:
    """Return the manifest of a ROCm.

    Args:
        root: a prefix such as /opt/rocm, or a folder with `_rocm_sdk_*` packages.
        rocm_version: version of the ROCm; required if the tree has no version.
        unknown: text in place of an unknown version; empty refuses a tree without a
            version.
        shown: name of the tree in messages, such as the tarball that it was unpacked
            from; empty for `root`.

    Returns:
        The manifest, and remarks about the tree for the user.

    Raises:
        RequestError: the version is unknown, or differs from the tree's version.
        InputError: the tree has no libraries, or damaged ones.
    """
    root = root.absolute()
    shown = shown or str(root)
    if not root.is_dir():
        raise InputError(
            f"{shown} is not a folder.",
            hint="Give the folder in which ROCm is installed.",
        )
    version = version_of(root, rocm_version, shown, required=not unknown)
    prefixes = _prefixes(root)
    reading = _Reading(root=root)
    for folder in folders_in(prefixes, LIBRARY_FOLDERS):
        progress.step(f"read the libraries in {folder}")
        reading.folder(folder)
    compiler = tuple(folders_in(prefixes, COMPILER_FOLDERS))
    while sonames := reading.missing():
        before = len(reading.libraries)
        for folder in compiler:
            reading.folder(folder, only=sonames)
        if len(reading.libraries) == before:
            break
    if reading.problems:
        raise InputError(
            f"{shown} has damaged libraries: {'; '.join(reading.problems)}.",
            hint="Install ROCm again.",
        )
    if not reading.libraries:
        raise InputError(
            f"{shown} has no shared libraries in {', '.join(LIBRARY_FOLDERS)}.",
            hint=(
                "Give a whole ROCm: a tarball of TheRock, or the folder in which ROCm"
                " is installed."
            ),
        )
    libraries = dict(sorted(reading.libraries.items()))
    nameless = (
        [] if version else [f"{shown} has no version: {VERSION_FILE} is missing."]
    )
    return RocmManifest(rocm_version=version or unknown, libraries=libraries), (
        *nameless,
        *reading.unlinked,
    )


def library(elf: Elf, soname: str, path: str, *, sha256: str = "") -> RocmLibrary:
    """Return a library's row of the manifest.

    Template code of the C++ standard library, which most C++ libraries export, is
    omitted, because other libraries must not rely on it. Symbols that some linkers
    define as marks of symbol versions are omitted too.
    """
    return RocmLibrary(
        soname=soname,
        path=path,
        symbols={
            name: versions
            for name, versions in sorted(elf.offered.items())
            if name not in versions and not libstdcxx.is_standard(name)
        },
        needed=elf.needed,
        runpath=elf.search_path,
        size=elf.size,
        build_id=elf.build_id or "",
        sha256=sha256,
    )


def _is_library(path: Path) -> bool:
    """Return whether a path is a readable ELF file, and not a linker script or a dangling link."""
    try:
        with path.open("rb") as file:
            return file.read(len(_READABLE)) == _READABLE
    except OSError:
        return False


def folders_in(prefixes: tuple[Path, ...], patterns: tuple[str, ...]) -> Iterator[Path]:
    """Yield existing folders, each once, even if lib64 links to lib."""
    seen: set[Path] = set()
    for prefix in prefixes:
        for pattern in patterns:
            for folder in sorted(
                path for path in prefix.glob(pattern) if path.is_dir()
            ):
                if (real := folder.resolve()) not in seen:
                    seen.add(real)
                    yield folder


def _prefixes(root: Path) -> tuple[Path, ...]:
    """Return a prefix, or the prefixes of the `_rocm_sdk_*` packages in a folder."""
    return (root, *sorted(path for path in root.glob(PACKAGES) if path.is_dir()))


def version_of(
    root: Path, given: str, shown: str = "", *, required: bool = True
) -> str:
    """Return the version of a tree without the package revision: 7.2.0 for 7.2.0-43.

    Empty if it is unknown and not required; see `read_tree` for the arguments.

    Raises:
        RequestError: the version is unknown, or differs from the given one.
    """
    shown = shown or str(root)
    files = [
        path for prefix in _prefixes(root) if (path := prefix / VERSION_FILE).is_file()
    ]
    versions = {
        path.read_text(encoding="utf-8", errors="replace").strip().partition("-")[0]
        for path in files
    } - {""}
    if required and not (versions or given):
        raise RequestError(
            f"{shown} has no version: {VERSION_FILE} is missing.",
            hint="Give --rocm-version X.Y.Z.",
        )
    # The version file of the nightly 7.10.0a20251120 contains only 7.10.0.
    numbers = re.split(r"[^0-9.]", given, maxsplit=1)[0].rstrip(".")
    if len(versions) > 1 or (given and versions and not versions <= {given, numbers}):
        raise RequestError(
            f"{VERSION_FILE} of {shown} is for ROCm"
            f" {', '.join(sorted(versions))}{f', not {given}' if given else ''}.",
            hint=(
                "Give a tree with one version of ROCm; omit --rocm-version, or give"
                " that version."
            ),
        )
    return given or next(iter(versions), "")
