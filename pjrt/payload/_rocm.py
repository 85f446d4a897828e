"""Locations of ROCm: its install layouts, in search order.

The order is LD_LIBRARY_PATH, as for every program; the `_rocm_sdk_*` packages of the
rocm-sdk wheels; the prefix that ROCM_PATH names; and /opt/rocm.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LIBRARY_FOLDERS = ("lib", "lib64", "lib/rocm_sysdeps/lib")
BITCODE_FOLDERS = ("lib/llvm/amdgcn/bitcode", "amdgcn/bitcode", "llvm/amdgcn/bitcode")
LINKER_FOLDERS = ("lib/llvm/bin", "llvm/bin")
OPT_ROCM = Path("/opt/rocm")


@dataclass(frozen=True, kw_only=True)
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

    def folders(self) -> tuple[Path, ...]:
        """Return the existing folders that may contain libraries."""
        if self.flat:
            return self.prefixes
        return tuple(
            p / sub
            for p in self.prefixes
            for sub in LIBRARY_FOLDERS
            if (p / sub).is_dir()
        )

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(map(str, self.folders())) or self.absent})"


def packages(families: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return the names of the rocm-sdk packages for GPU families."""
    if families is None:
        from . import build_info

        families = build_info.FAMILIES
    return (
        "_rocm_sdk_core",
        "_rocm_sdk_libraries",
        *(f"_rocm_sdk_libraries_{name}" for name in families),
    )


def layouts(
    environ: Mapping[str, str] = os.environ,
    path: Sequence[str] | None = None,
    families: Iterable[str] | None = None,
) -> tuple[Layout, ...]:
    """Return the layouts on this machine, in search order.

    Args:
        environ: environment variables.
        path: folders with Python packages; `sys.path` by default.
        families: GPU families whose rocm-sdk wheels are searched, such as gfx94X_dcgpu;
            by default those of this wheel.
    """
    sites = [Path(entry) for entry in (sys.path if path is None else path) if entry]
    wheels = [site / package for site in sites for package in packages(families)]
    prefix = environ.get("ROCM_PATH", "")
    user = [
        Path(entry) for entry in environ.get("LD_LIBRARY_PATH", "").split(":") if entry
    ]
    named = Layout(name=f"ROCM_PATH={prefix}", prefixes=(Path(prefix),))
    unnamed = Layout(name="ROCM_PATH", prefixes=(), absent="not set")
    return (
        *(
            [Layout(name="LD_LIBRARY_PATH", prefixes=tuple(user), flat=True)]
            if user
            else []
        ),
        Layout(
            name="rocm-sdk wheels",
            prefixes=tuple(dict.fromkeys(w for w in wheels if w.is_dir())),
        ),
        named if prefix else unnamed,
        Layout(name=str(OPT_ROCM), prefixes=(OPT_ROCM,)),
    )


def find(soname: str, where: Iterable[Layout]) -> Path | None:
    """Return the first file with a soname as its name; None if there is none."""
    return next(
        (
            f / soname
            for layout in where
            for f in layout.folders()
            if (f / soname).is_file()
        ),
        None,
    )


def missing(sonames: Iterable[str], where: Sequence[Layout]) -> tuple[str, ...]:
    """Return the libraries that neither the layouts nor the system have."""
    return tuple(
        name for name in sonames if find(name, where) is None and not _system_has(name)
    )


def relatives(soname: str, where: Iterable[Layout]) -> tuple[Path, ...]:
    """Return files of the same library with the soname of another ROCm release."""
    stem = soname.partition(".so")[0]
    return tuple(
        f
        for layout in where
        for folder in layout.folders()
        for f in sorted(folder.glob(f"{stem}.so.[0-9]*"))
    )


def _system_has(soname: str) -> bool:
    # Only the dynamic loader knows its cache and its default folders.
    try:
        ctypes.CDLL(soname)
    except OSError:
        return False
    return True


def preload(
    sonames: Iterable[str], where: Sequence[Layout], *, runpath: str, origin: Path
) -> None:
    """Load the libraries that the dynamic loader would not find, or would find in a later layout.

    A loaded library satisfies every later need for its soname, so RTLD_GLOBAL is not
    necessary.

    Args:
        sonames: sonames of the libraries, in order of dependency.
        where: the layouts, in search order.
        runpath: DT_RUNPATH of the library that needs the sonames.
        origin: folder of the library that needs the sonames.

    Raises:
        OSError: a library exists but cannot be loaded.
    """
    own = tuple(
        Path(entry.replace("$ORIGIN", str(origin)))
        for entry in runpath.split(":")
        if entry
    )
    alone = (Layout(name="RUNPATH", prefixes=own, flat=True),)
    for soname in sonames:
        ours = find(soname, where)
        theirs = find(soname, alone)
        if ours is not None and (theirs is None or not ours.samefile(theirs)):
            ctypes.CDLL(str(ours))


def set_variables(
    where: Sequence[Layout], environ: MutableMapping[str, str] = os.environ
) -> None:
    """Set unset locations of bitcode and linker for XLA and HIP if the files exist."""
    prefixes = [
        prefix for layout in where if not layout.flat for prefix in layout.prefixes
    ]
    bitcode = _holding("ocml.bc", prefixes, BITCODE_FOLDERS)
    linker = _holding("ld.lld", prefixes, LINKER_FOLDERS)
    if bitcode:
        environ.setdefault("JAX_ROCM_PLUGIN_INTERNAL_BITCODE_PATH", bitcode)
        environ.setdefault("HIP_DEVICE_LIB_PATH", bitcode)
    if linker:
        environ.setdefault("JAX_ROCM_PLUGIN_INTERNAL_LLD_PATH", linker)


def _holding(name: str, prefixes: Iterable[Path], folders: Iterable[str]) -> str:
    folders = tuple(folders)
    return next(
        (
            str(p / sub)
            for p in prefixes
            for sub in folders
            if (p / sub / name).is_file()
        ),
        "",
    )
