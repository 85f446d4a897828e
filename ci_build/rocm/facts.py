"""Facts of a ROCm tree, from its files.

Version, compiler, device libraries, and targets with kernels.

`parts.toml` has the paths. No program of the tree is run.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ci_build.rocm.rocm_store import Selection
from ci_build.rocm.tree import LIBRARY_FOLDERS, folders_in, read_tree, version_of
from core import targets
from core.digests import sha256_of
from core.errors import InputError
from core.frozen import frozen
from core.model import GfxTarget, Progress, RocmVersion
from core.records import read_table
from core.rocm_layouts import needed_sonames
from core.unpack.tree_contents import Contents
from wheelkit.rocm_manifest import RocmManifest


@frozen
class RocmFacts:
    """Facts of a ROCm tree.

    Attributes:
        version: full version from the file name or the request, such as
            7.10.0a20251120.
        compiler: name and version, such as `clang 20.0.0git`.
        device_libraries: path of a device library -> sha256.
        kernels: library, such as rocBLAS -> processors for which the library has
            kernels.
        manifest: manifest of the shared libraries.
    """

    version: str
    compiler: str
    device_libraries: Mapping[str, str]
    kernels: Mapping[str, tuple[str, ...]]
    manifest: RocmManifest


@functools.cache
def parts() -> Mapping[str, Any]:
    """Return the table `parts.toml`."""
    return read_table(Path(__file__).with_name("parts.toml"))


def selection(*, full: bool) -> Selection:
    """Return the selection of files to unpack: the files that a build needs, or all files."""
    if full:
        return Selection(name="full", wanted=lambda _: True)
    patterns: Sequence[str] = parts()["selection"]["left_out"]
    left_out = re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns))
    # The digest is part of the tree's name, so other patterns give another tree.
    digest = sha256_of("\n".join(patterns).encode())[:8]
    return Selection(
        name=f"build.{digest}", wanted=lambda path: left_out.match(path) is None
    )


def read_facts(
    root: Path,
    contents: Contents | None,
    version: str,
    *,
    shown: str,
    progress: Progress,
) -> tuple[RocmFacts, tuple[str, ...]]:
    """Read the facts of a tree.

    Args:
        contents: all paths of the tarball; None to search the folder `root`.
        version: full version if known; the tree itself may have only a part of it.
        shown: name of the tree in messages, such as the tarball that it was unpacked
            from.

    Returns:
        The facts, and remarks about the tree for the user.

    Raises:
        InputError: the tree has no compiler or no libraries.
        RequestError: the tree has another version.
    """
    manifest, notes = read_tree(root, version, shown=shown, progress=progress)
    facts = RocmFacts(
        version=manifest.rocm_version,
        compiler=_compiler(root, shown),
        device_libraries=_device_libraries(root),
        kernels=_kernels(root, contents),
        manifest=manifest,
    )
    return facts, notes


def check_folder(root: Path, version: str, wanted: Sequence[GfxTarget]) -> None:
    """Check a ROCm in a folder for a build, by the names of its files.

    Raises as `read_facts` and `check_targets` do.
    """
    version = version_of(root, version)
    _compiler(root, str(root))
    check_targets(root, _kernels(root, None), version, wanted)


def check_targets(
    root: Path,
    kernels: Mapping[str, Sequence[str]],
    version: str,
    wanted: Sequence[GfxTarget],
    *,
    shown: str = "",
) -> tuple[str, ...]:
    """Check that a tree has what a build for targets needs, and return its lesser defects.

    Args:
        kernels: library -> processors, as in `RocmFacts`.
        shown: as in `read_facts`.

    Raises:
        InputError: the tree lacks libraries, device libraries or kernels.
    """
    if not wanted:
        return ()
    bitcode = root / device_library_folder(root)
    lacking = list(_missing_libraries(root, version))
    for name in parts()["device_libraries"]["common"]:
        if not (bitcode / name).exists():
            lacking.append(f"device library {name}")
    lesser = []
    for processor in dict.fromkeys(target.processor for target in wanted):
        name = f"oclc_isa_version_{processor.removeprefix('gfx')}.bc"
        if not (bitcode / name).exists():
            lacking.append(f"device library for {processor} ({name})")
        served = targets.covers().get(processor, (processor,))
        for library, row in parts()["kernels"].items():
            if not set(served).isdisjoint(kernels[library]):
                continue
            if row.get("always") or set(served) & set(row["targets"]):
                lacking.append(f"{library} kernels for {processor}")
            else:
                lesser.append(f"{library} of the ROCm has no kernels for {processor}.")
    if lacking:
        names = ", ".join(map(str, wanted))
        raise InputError(
            f"{shown or root} cannot be used to build for {names}: it has no"
            f" {', no '.join(lacking)}.",
            hint=(
                "Give a whole ROCm for these targets, such as AMD's packages"
                " (--rocm-version alone), or other --targets."
            ),
        )
    return tuple(lesser)


def _missing_libraries(root: Path, version: str) -> Iterator[str]:
    """Yield the sonames of the libraries that each build needs and that a tree lacks."""
    folders = tuple(folders_in((root,), LIBRARY_FOLDERS))
    for soname in sorted(needed_sonames(RocmVersion(text=version))):
        if not any((folder / soname).exists() for folder in folders):
            yield soname


def _kernels(root: Path, contents: Contents | None) -> dict[str, tuple[str, ...]]:
    """Return the processors for which each library has kernels."""
    table = parts()["kernels"]
    names = list(contents or ())
    if contents is None:
        folders = set[str]()
        for row in table.values():
            folders |= {*row["folders"], row["packs"].partition("/")[0]}
        for folder in folders:
            paths = (root / folder).rglob("*")
            names += [path.relative_to(root).as_posix() for path in paths]
    return {library: _processors(row, names) for library, row in table.items()}


def _compiler(root: Path, shown: str) -> str:
    table = parts()["compiler"]
    if not any((root / program).exists() for program in table["programs"]):
        raise InputError(
            f"{shown} has no compiler: {' and '.join(table['programs'])} are missing.",
            hint="Give a whole ROCm, with its developer files.",
        )
    for header in table["headers"]:
        if (root / header).is_file():
            text = (root / header).read_text(encoding="utf-8", errors="replace")
            if match := re.search(
                r'^#define LLVM_VERSION_STRING "([^"]+)"', text, re.MULTILINE
            ):
                return f"clang {match[1]}"
    numbers = []
    for pattern in table["resources"]:
        names = (path.name for path in root.glob(pattern))
        numbers += [name for name in names if name[:1].isdecimal()]
    if not numbers:
        raise InputError(
            f"{shown} has a compiler of unknown version.",
            hint="Give a whole ROCm, with its developer files.",
        )
    return f"clang {max(numbers, key=_numbers)}"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall("[0-9]+", version)]


def device_library_folder(root: Path) -> str:
    """Return the first folder below a prefix that has device libraries.

    The other folders are links. Empty for none.
    """
    for glob in parts()["device_libraries"]["folders"]:
        for folder in sorted(root.glob(glob)):
            if next(folder.glob("*.bc"), None) is not None:
                return folder.relative_to(root).as_posix()
    return ""


def hidden_device_libraries(root: Path, folder: str) -> str:
    """Return the device libraries' folder if clang needs HIP_DEVICE_LIB_PATH, else empty.

    With `--rocm-path` clang searches `amdgcn/bitcode` below that prefix, and
    `lib/amdgcn/bitcode` in its resource folder (RocmInstallationDetector in
    clang/lib/Driver/ToolChains/AMDGPU.cpp, LLVM 18 to 21).
    """
    found = (root / "amdgcn" / "bitcode").is_dir() or re.search(
        r"/lib/clang/[^/]+/lib/amdgcn/bitcode$", folder
    )
    return "" if found else folder


def _device_libraries(root: Path) -> dict[str, str]:
    """Return the sha256 of the device libraries."""
    if not (folder := device_library_folder(root)):
        return {}
    return {
        path.relative_to(root).as_posix(): sha256_of(path)
        for path in sorted((root / folder).glob("*.bc"))
    }


def _processors(row: Mapping[str, Any], names: Iterable[str]) -> tuple[str, ...]:
    """Return the processors for which a library has kernels, from `parts.toml`."""
    pack = re.compile(re.escape(row["packs"]).replace(r"\{target\}", "(gfx[0-9a-f]+)"))
    folders = tuple(folder + "/" for folder in row["folders"])
    words: set[str] = set()
    for name in names:
        if match := pack.fullmatch(name):
            words.add(match[1])
        elif name.startswith(folders):
            words.update(re.findall(r"gfx[0-9a-f]+", name))
    # A number of compute units may follow: gfx942130 is gfx942. No processor's name is
    # the prefix of another name.
    served = []
    for name, target in targets.load_table().targets.items():
        if target.covers == (name,) and any(word.startswith(name) for word in words):
            served.append(name)
    return tuple(served)
