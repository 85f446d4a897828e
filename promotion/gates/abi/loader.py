"""Simulation of the dynamic loader, which resolves libraries in one ROCm installation.

The rules are those of ld.so(8) and the gABI: a loaded library satisfies every later
need for its soname; otherwise the RUNPATH of the library with the need is searched,
then the system's directories; loading is breadth first. LD_LIBRARY_PATH is not set. The
preloading of our wheels' loader (`pjrt/payload/_rocm.py`) is included.
"""

from __future__ import annotations

import functools
import posixpath
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from core.frozen import frozen
from core.model import GfxTarget
from core.rocm_layouts import (
    ROCM_PATH,
    SITE_PACKAGES,
    InstallLayout,
    family_packages,
    load_layouts,
    package_of,
    search_dirs,
)
from wheelkit.rocm_manifest import RocmLibrary

SYSTEM = "(system)"
"""Origin of the platform's libraries and of libraries that ROCm requires from the system."""

SITE = PurePosixPath(SITE_PACKAGES)
_PREFIX = PurePosixPath(f"${ROCM_PATH}")
_FAMILY = "{family}"


@frozen
class InstalledLibrary:
    """A library on disk.

    Attributes:
        path: absolute path, or path that starts with `site-packages` or `$ROCM_PATH`.
        needed: DT_NEEDED sonames in order.
        runpath: entries of RUNPATH, unexpanded.
    """

    path: PurePosixPath
    soname: str
    needed: tuple[str, ...]
    runpath: tuple[str, ...]

    @property
    def folders(self) -> tuple[PurePosixPath, ...]:
        """Return the directories of the RUNPATH, expanded."""
        return _expanded(self.runpath, self.path.parent)


@functools.lru_cache(maxsize=4096)
def _expanded(
    runpath: tuple[str, ...], origin: PurePosixPath
) -> tuple[PurePosixPath, ...]:
    """Return the directories of a RUNPATH; each library is loaded in dozens of scenarios."""
    words = (
        entry.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", str(origin))
        for entry in runpath
    )
    return tuple(PurePosixPath(posixpath.normpath(word)) for word in words)


@frozen
class Scenario:
    """A machine with one installation of ROCm.

    Attributes:
        name: name of the layout, with the GPU family if the layout has a package for
            each family.
        folders: directories that the loader of our wheels searches, in order.
        files: libraries of ROCm by path.
    """

    name: str
    folders: tuple[PurePosixPath, ...]
    files: Mapping[PurePosixPath, InstalledLibrary]


def scenarios(
    libraries: Collection[RocmLibrary], targets: Sequence[GfxTarget]
) -> tuple[Scenario, ...]:
    """Return a scenario for each declared layout, or for each layout and GPU family."""
    found = []
    for layout in load_layouts().layouts.values():
        folders = search_dirs(
            layout.name,
            site_packages=Path(SITE),
            rocm_path=Path(_PREFIX),
            targets=targets,
        )
        families: tuple[str, ...] = ("",)
        if any(_FAMILY in folder for folder in layout.folders):
            families = family_packages(targets)
        for family in families:
            files: dict[PurePosixPath, InstalledLibrary] = {}
            for library in libraries:
                placed = _placed(library, layout, family)
                files |= {file.path: file for file in placed}
            scenario = Scenario(
                name=f"{layout.name} {family}".rstrip(),
                folders=tuple(map(PurePosixPath, folders)),
                files=files,
            )
            found.append(scenario)
    return tuple(found)


def load(
    library: InstalledLibrary,
    scenario: Scenario,
    wheels: Mapping[PurePosixPath, InstalledLibrary],
    *,
    system: Collection[str],
    preload: Sequence[str] = (),
) -> LoadResult:
    """Simulate loading one library of a wheel in a new process.

    Args:
        wheels: libraries of all installed wheels by path.
        system: sonames of the platform.
        preload: sonames that the wheel's loader loads first if the RUNPATH does not
            find the same file.
    """
    process = LoadResult(
        files={**scenario.files, **wheels}, wheels=wheels, system=system
    )
    for soname in preload:
        ours = process.search(scenario.folders, soname)
        if ours is not None and ours != process.search(library.folders, soname):
            process.open(process.files[ours], name=soname)
    process.open(library, name=library.soname)
    del process.found[library.soname]
    return process


@dataclass(kw_only=True, slots=True)
class LoadResult:
    """A simulated process with its visible files and loaded libraries.

    Attributes:
        found: soname -> path, or SYSTEM.
        missing: (path of the library, needed soname) of each unresolved need.
    """

    files: Mapping[PurePosixPath, InstalledLibrary]
    wheels: Mapping[PurePosixPath, InstalledLibrary]
    system: Collection[str]
    found: dict[str, str] = field(default_factory=dict)
    missing: list[tuple[PurePosixPath, str]] = field(default_factory=list)

    def search(
        self, folders: Iterable[PurePosixPath], soname: str
    ) -> PurePosixPath | None:
        """Return the first file with this name in some folders; None without one."""
        for folder in folders:
            if folder / soname in self.files:
                return folder / soname
        return None

    def open(self, library: InstalledLibrary, *, name: str) -> None:
        """Load a library and its needs, breadth first, unless the library is already loaded."""
        if name in self.found:
            return
        self.found[name] = str(library.path)
        contained = {file.soname for file in self.files.values()}
        waiting = deque([library])
        while waiting:
            current = waiting.popleft()
            for soname in current.needed:
                if soname in self.found:
                    continue
                path = self.search(current.folders, soname)
                if path is not None:
                    self.found[soname] = str(path)
                    waiting.append(self.files[path])
                elif soname in self.system or (
                    current.path not in self.wheels and soname not in contained
                ):
                    self.found[soname] = (
                        SYSTEM  # or a library that ROCm needs but does not contain
                    )
                else:
                    self.missing.append((current.path, soname))


def _placed(
    library: RocmLibrary, layout: InstallLayout, family: str
) -> Iterator[InstalledLibrary]:
    """Yield the library's file in a layout, if the layout contains it."""
    path = PurePosixPath(library.path)
    package = path.parts[0] if path.parts[0].startswith("_rocm_sdk_") else ""
    inside = path.relative_to(package) if package else path
    if layout.root == SITE_PACKAGES:
        folder = _package(library.soname, package, layout)
        root = SITE / folder.replace(_FAMILY, family) if folder else None
    else:
        root = _PREFIX if layout.root == ROCM_PATH else PurePosixPath(layout.root)
    if root is not None:
        yield InstalledLibrary(
            path=root / inside,
            soname=library.soname,
            needed=library.needed,
            runpath=library.runpath,
        )


def _package(soname: str, package: str, layout: InstallLayout) -> str:
    """Return the directory of the package that contains a library, or ""."""
    project = package_of(soname)
    name = package or (f"_{project.replace('-', '_')}" if project else "")
    folders = {folder.partition("/")[0] for folder in layout.folders}
    stems = {folder.removesuffix(f"_{_FAMILY}"): folder for folder in folders}
    return next(
        (
            folder
            for stem, folder in stems.items()
            if name == stem or name.startswith(f"{stem}_")
        ),
        "",
    )
