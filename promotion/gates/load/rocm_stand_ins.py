"""ROCms of simulated machines, made from one ROCm with the libraries that a set needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from core import rocm_layouts as layouts
from core.model import GfxTarget, RocmVersion
from core.targets import processors_of
from wheelkit.elf.writer import Export, shared_library

CORE_PACKAGE = "_rocm_sdk_core"
"""Python package of ROCm; wheels have looked for another one (ROCm/TheRock#8163)."""
BITCODE = "lib/llvm/amdgcn/bitcode/ocml.bc"
LINKER = "lib/llvm/bin/ld.lld"
_LLVM = "lib/llvm"


def libraries_of(rocm: Path, version: RocmVersion) -> dict[str, Path]:
    """Return soname -> file of a prefix, for the libraries that wheels may need."""
    folders = layouts.search_dirs("prefix", site_packages=rocm, rocm_path=rocm)
    found: dict[str, Path] = {}
    for name in sorted(layouts.allowed_sonames(version)):
        for folder in folders:
            if (folder / name).exists():
                found.setdefault(name, (folder / name).resolve())
    return found


def write_prefix(folder: Path, rocm: Path) -> Path:
    """Write links to a ROCm, with stubs if needed, and return the folder."""
    (folder / "lib").mkdir(parents=True)
    for place in (rocm / "lib").iterdir():
        (folder / "lib" / place.name).symlink_to(place.resolve())
    for place in rocm.iterdir():
        if place.name not in ("lib", "lib64"):
            (folder / place.name).symlink_to(place.resolve())
    if not (rocm / _LLVM).exists():
        _write_llvm(folder, rocm)
    return folder


def _write_llvm(folder: Path, rocm: Path) -> None:
    """Write a link to the compiler of a ROCm, or files with the names that XLA looks for."""
    if (rocm / _LLVM).exists():
        (folder / _LLVM).symlink_to((rocm / _LLVM).resolve())
        return
    for name in (BITCODE, LINKER):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()


def write_older_major(folder: Path, hip: str) -> Path:
    """Write the HIP library of the previous major, and return its path.

    The loader only looks at its name.
    """
    stem, _, major = hip.rpartition(".")
    path = folder / "lib" / f"{stem}.{int(major) - 1}"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def write_older_minor(folder: Path, hip: str, rocm: Path) -> Path:
    """Write links to a ROCm's libraries and a HIP without symbols, return the folder."""
    write_prefix(folder, rocm)
    (folder / "lib" / hip).unlink(missing_ok=True)
    (folder / "lib" / hip).write_bytes(
        shared_library(hip, [Export(name="hipOlder", code=b"\xc3")])
    )
    return folder


def write_packages(
    folder: Path,
    rocm: Path,
    version: RocmVersion,
    layout: str,
    targets: Sequence[GfxTarget],
) -> None:
    """Write forwarders to the libraries of a ROCm where the rocm-sdk wheels install them.

    Args:
        folder: folder of the packages.
        rocm: the ROCm, as a prefix.
        layout: pip-multi-arch or pip-family.
    """
    core, sysdeps, others, *_ = layouts.search_dirs(
        layout, site_packages=folder, targets=targets
    )
    for name, library in libraries_of(rocm, version).items():
        place = core
        if name.startswith("librocm_sysdeps_"):
            place = sysdeps
        elif layouts.package_of(name) == "rocm-sdk-libraries":
            place = others
        write_forwarder(place / name, library)
    _write_llvm(folder / CORE_PACKAGE, rocm)
    devices = [f"_rocm_sdk_device_{name}" for name in processors_of(targets)]
    for package in (CORE_PACKAGE, others.parent.name, *devices):
        (folder / f"{package.lstrip('_')}-{version}.dist-info").mkdir()


def write_forwarder(path: Path, library: Path | None) -> None:
    """Write a library that loads another one, which finds its own libraries as before.

    A link would not do: the dynamic loader looks for $ORIGIN beside the link.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    needed = [str(library)] if library else []
    path.write_bytes(shared_library(f"forwarder-{path.name}", [], needed=needed))
