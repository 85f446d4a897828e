"""Installed ROCms with their versions, in the search order of the loader."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci_build.doctor.examined import ExaminedSystem
from ci_build.doctor.examined import rocm as finder
from core.rocm_layouts import rocm_majors

_CORE = "_rocm_sdk_core"


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledRocm:
    """An installed ROCm that the loader searches.

    Attributes:
        layout: the loader's name of its layout, such as "/opt/rocm".
        folder: its prefix.
        version: full version, such as 7.2.0; empty if unknown.
        hip_majors: major versions of its HIP runtimes, from their sonames.
    """

    layout: str
    folder: str
    version: str
    hip_majors: tuple[int, ...]

    @property
    def number(self) -> tuple[int, int]:
        """The major and minor version; (0, 0) if unknown."""
        match = re.match(r"([0-9]+)\.([0-9]+)", self.version)
        return (int(match[1]), int(match[2])) if match else (0, 0)

    @property
    def majors(self) -> tuple[int, ...]:
        """The ROCm major; without a version, all majors whose releases have this HIP runtime."""
        if match := re.match(r"[0-9]+", self.version):
            return (int(match[0]),)
        return tuple(
            sorted({major for hip in self.hip_majors for major in rocm_majors(hip)})
        )

    @property
    def shown_version(self) -> str:
        """The version for display, or `7.? or 10.?` if only HIP's is known."""
        return self.version or " or ".join(f"{major}.?" for major in self.majors)


@dataclass(frozen=True, kw_only=True)
class Trees:
    """ROCm installations of a machine.

    Attributes:
        found: installed ROCms that the loader searches, in search order.
        elsewhere: folders under /opt with a ROCm that the loader does not search.
        prefix_empty: whether ROCM_PATH names a folder without libraries.
        wsl_library: whether a ROCm has librocdxg, which connects it to WSL's GPUs.
        layouts: layouts of the loader, for searches of libraries.
    """

    found: tuple[InstalledRocm, ...]
    elsewhere: tuple[str, ...]
    prefix_empty: bool
    wsl_library: bool
    layouts: tuple[Any, ...]


def look(here: ExaminedSystem, core_version: str) -> Trees:
    """Find the ROCm installations.

    Args:
        here: examined system.
        core_version: version of the installed rocm-sdk-core wheel, or empty.
    """
    folders = [Path(entry) for entry in here.python.path]
    families = {
        p.name.removeprefix("_rocm_sdk_libraries_")
        for f in folders
        for p in f.glob("_rocm_sdk_libraries_*")
    }
    layouts = finder.layouts(here.environ, here.python.path, families=sorted(families))
    installed: list[InstalledRocm] = []
    for layout in layouts:
        for prefix in layout.prefixes:
            libraries = [
                folder
                for folder in layout.folders()
                if folder == prefix or prefix in folder.parents
            ]
            rocm = _rocm(layout.name, prefix, libraries, core_version)
            if rocm.hip_majors or (rocm.version and not layout.flat):
                installed.append(rocm)
    elsewhere = sorted(
        str(path)
        for path in finder.OPT_ROCM.parent.glob("rocm-*")
        if _hip_majors([path / "lib"])
    )
    reached = {str(Path(rocm.folder).resolve()) for rocm in installed}
    return Trees(
        found=tuple(installed),
        elsewhere=tuple(
            path for path in elsewhere if str(Path(path).resolve()) not in reached
        ),
        prefix_empty=any(
            layout.name.startswith("ROCM_PATH=") and not layout.folders()
            for layout in layouts
        ),
        wsl_library=any(
            [*f.glob("librocdxg.so*")] for layout in layouts for f in layout.folders()
        ),
        layouts=layouts,
    )


def _rocm(
    layout: str, prefix: Path, folders: Sequence[Path], core_version: str
) -> InstalledRocm:
    version = core_version if prefix.name == _CORE else ""
    # Packages of TheRock make /opt/rocm/lib a link to /opt/rocm/core-X.Y/lib, and only
    # core-X.Y has the version.
    for place in (
        prefix,
        prefix.parent,
        *(folder.resolve().parent for folder in folders),
    ):
        try:
            version = (
                version
                or (place / ".info/version")
                .read_text(encoding="utf-8", errors="replace")
                .strip()
            )
        except OSError:
            continue
    release = re.match(r"[0-9][0-9a-z.]*", version)
    return InstalledRocm(
        layout=layout,
        folder=str(prefix),
        version=release[0] if release else "",
        hip_majors=_hip_majors(folders),
    )


def _hip_majors(folders: Sequence[Path]) -> tuple[int, ...]:
    names = (
        path.name for folder in folders for path in folder.glob("libamdhip64.so.*")
    )
    return tuple(
        sorted(
            {
                int(match[1])
                for name in names
                if (match := re.fullmatch(r"libamdhip64\.so\.([0-9]+)", name))
            }
        )
    )
