"""Locations of ROCm: its install layouts, in search order.

The order is LD_LIBRARY_PATH, as for every program; the `_rocm_sdk_*` packages of the
rocm-sdk wheels; the prefix that ROCM_PATH names; and /opt/rocm.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _gpus, _machine

LIBRARY_FOLDERS = ("lib", "lib64", "lib/rocm_sysdeps/lib")
BITCODE_FOLDERS = ("lib/llvm/amdgcn/bitcode", "amdgcn/bitcode", "llvm/amdgcn/bitcode")
LINKER_FOLDERS = ("lib/llvm/bin", "llvm/bin")
_LD_LIBRARY_PATH = "LD_LIBRARY_PATH"
_CORE = "_rocm_sdk_core"
_LIBRARIES = "_rocm_sdk_libraries"


@dataclass(frozen=True)
class Layout:
    """An install layout of ROCm.

    Attributes:
        name: name in messages.
        prefixes: install prefixes, or with `flat` the library folders; empty if the
            layout is not present.
        flat: whether the prefixes contain the libraries directly, not in `lib`.
        absent: text that messages show instead of the folders if there are none.
    """

    name: str
    prefixes: tuple[Path, ...]
    flat: bool = False
    absent: str = "not there"

    def folders(self) -> list[Path]:
        """Return the existing folders that may contain libraries."""
        folders: list[Path] = []
        for prefix in self.prefixes:
            folders += self.folders_of(prefix)
        return folders

    def folders_of(self, prefix: Path) -> list[Path]:
        """Return the existing folders of a prefix that may contain libraries."""
        if self.flat:
            return [prefix]
        folders = [prefix / name for name in LIBRARY_FOLDERS]
        return [folder for folder in folders if folder.is_dir()]

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(map(str, self.folders())) or self.absent})"


def layouts(
    environ: Mapping[str, str], path: Sequence[str], families: Iterable[str]
) -> tuple[Layout, ...]:
    """Return the layouts on this machine, in search order.

    Args:
        environ: environment variables.
        path: folders with Python packages.
        families: GPU families whose rocm-sdk wheels are searched, such as gfx94X_dcgpu.
    """
    found: list[Layout] = []
    if folders := environ.get(_LD_LIBRARY_PATH, ""):
        user = tuple(Path(entry) for entry in folders.split(":") if entry)
        found.append(Layout(_LD_LIBRARY_PATH, user, flat=True))
    names = (_CORE, _LIBRARIES, *(f"{_LIBRARIES}_{family}" for family in families))
    wheels: list[Path] = []
    for entry in dict.fromkeys(filter(None, path)):
        packages = [Path(entry, name) for name in names]
        wheels += [package for package in packages if package.is_dir()]
    found.append(Layout("rocm-sdk wheels", tuple(wheels)))
    if prefix := environ.get("ROCM_PATH", ""):
        found.append(Layout(f"ROCM_PATH={prefix}", (Path(prefix),)))
    else:
        found.append(Layout("ROCM_PATH", (), absent="not set"))
    system = _gpus.ROOT / "opt/rocm"
    return (*found, Layout(str(system), (system,)))


def find(soname: str, where: Iterable[Layout]) -> Path | None:
    """Return the first file with a soname as its name; None if there is none."""
    for layout in where:
        for folder in layout.folders():
            if (folder / soname).is_file():
                return folder / soname
    return None


def missing(sonames: Iterable[str], where: Sequence[Layout]) -> tuple[str, ...]:
    """Return the libraries that neither the layouts nor the system have."""
    return tuple(
        name for name in sonames if find(name, where) is None and not _system_has(name)
    )


def relatives(soname: str, where: Iterable[Layout]) -> list[Path]:
    """Return files of the same library with the soname of another ROCm release."""
    pattern = f"{soname.partition('.so')[0]}.so.[0-9]*"
    files: list[Path] = []
    for layout in where:
        for folder in layout.folders():
            files += sorted(folder.glob(pattern))
    return files


def _system_has(soname: str) -> bool:
    # Only the dynamic loader knows its cache and its default folders.
    try:
        ctypes.CDLL(soname)
    except OSError:
        return False
    return True


def needed(info: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the sonames of ROCm's libraries that a wheel needs, in load order.

    Args:
        info: its build information.
    """
    rocm = set(info.get("rocm_sonames", ()))
    names: list[str] = []
    for member in info.get("members", ()):
        names += [name for name in member["needed"] if name in rocm]
    return tuple(dict.fromkeys(names))


def preload(info: Mapping[str, Any], where: Sequence[Layout], origin: Path) -> None:
    """Load the libraries that the dynamic loader would not find, or would find in a later layout.

    A loaded library satisfies every later need for its soname, so RTLD_GLOBAL is not
    necessary.

    Args:
        info: build information of a wheel.
        where: the layouts, in search order.
        origin: folder of the wheel's libraries.

    Raises:
        OSError: a library exists but cannot be loaded.
    """
    entries = info.get("runpath", "").replace("$ORIGIN", str(origin)).split(":")
    own = tuple(Path(entry) for entry in entries if entry)
    runpath = (Layout("RUNPATH", own, flat=True),)
    for soname in needed(info):
        ours = find(soname, where)
        theirs = find(soname, runpath)
        if ours is not None and (theirs is None or not ours.samefile(theirs)):
            ctypes.CDLL(str(ours))


def set_variables(
    where: Sequence[Layout], environ: MutableMapping[str, str] = os.environ
) -> None:
    """Set unset locations of bitcode and linker for XLA and HIP if the files exist."""
    bitcode = _folder_with("ocml.bc", where, BITCODE_FOLDERS)
    linker = _folder_with("ld.lld", where, LINKER_FOLDERS)
    if bitcode:
        environ.setdefault("JAX_ROCM_PLUGIN_INTERNAL_BITCODE_PATH", bitcode)
        environ.setdefault("HIP_DEVICE_LIB_PATH", bitcode)
    if linker:
        environ.setdefault("JAX_ROCM_PLUGIN_INTERNAL_LLD_PATH", linker)


def _folder_with(name: str, where: Sequence[Layout], folders: Sequence[str]) -> str:
    for layout in where:
        for prefix in () if layout.flat else layout.prefixes:
            for folder in folders:
                if (prefix / folder / name).is_file():
                    return str(prefix / folder)
    return ""


@dataclass(frozen=True)
class InstalledRocm:
    """An installed ROCm.

    Attributes:
        layout: name of its layout, such as "/opt/rocm".
        version: full version, such as 7.2.0; "of unknown version" if unknown.
    """

    layout: str
    folder: str
    version: str

    @property
    def major(self) -> int:
        """The major version; 0 if unknown."""
        match = re.match(r"[0-9]+", self.version)
        return int(match[0]) if match else 0

    def __str__(self) -> str:
        return f"{self.version} in {self.folder}"


def installed(where: Sequence[Layout], core_version: str) -> tuple[InstalledRocm, ...]:
    """Return the installed ROCms, in search order.

    Args:
        core_version: version of the rocm-sdk-core wheel; empty if it is not installed.
    """
    found: list[InstalledRocm] = []
    for layout in where:
        for prefix in layout.prefixes:
            folders = layout.folders_of(prefix)
            # The packages of libraries belong to the ROCm of the core package.
            if not any([*folder.glob("libamdhip64.so.*")] for folder in folders):
                continue
            version = core_version if prefix.name == _CORE else ""
            version = version or _version(prefix, folders) or "of unknown version"
            found.append(InstalledRocm(layout.name, str(prefix), version))
    return tuple(found)


def _version(prefix: Path, folders: Sequence[Path]) -> str:
    # Packages of TheRock make /opt/rocm/lib a link to /opt/rocm/core-X.Y/lib, and only
    # core-X.Y has the version.
    targets = [folder.resolve().parent for folder in folders]
    for place in (prefix, prefix.parent, *targets):
        version = _machine.text_of(place / ".info/version")
        if match := re.match(r"[0-9][0-9a-z.]*", version):
            return match[0]
    return ""


def elsewhere() -> str:
    """Return the newest ROCm below /opt that no layout finds; empty if there is none."""
    folders = (_gpus.ROOT / "opt").glob("rocm-*")
    found = [folder for folder in folders if [*folder.glob("lib/libamdhip64.so.*")]]
    return str(max(found)) if found else ""
