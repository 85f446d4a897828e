"""The dynamic loader, simulated: which file each library of a wheel would come from where ROCm is installed in one way.

Followed are ld.so(8) and the gABI: a library that is loaded already satisfies every later need for its soname; else
the RUNPATH of the one that needs it is searched, then the system's folders; the needs of one library are met before
those of what it brings in. LD_LIBRARY_PATH is not set. What the loader of our wheels does first (preload) is part of
it; `pjrt/payload/_rocm.py` describes that.
"""

from __future__ import annotations

import posixpath
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from core.layouts import ROCM_PATH, SITE_PACKAGES, Layout, family_packages, load_layouts, package_of, search_dirs
from core.model import GfxTarget
from wheelkit.rocm_manifest import RocmLibrary

SYSTEM = "(system)"
"""Where a library of the platform, or one that ROCm itself takes from the system, comes from."""

_SITE, _PREFIX = PurePosixPath(SITE_PACKAGES), PurePosixPath(f"${ROCM_PATH}")
_FAMILY = "{family}"


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledLibrary:
    """A library as it lies on a disk.

    Attributes:
        path: absolute, or below `site-packages` or `$ROCM_PATH`.
        needed: DT_NEEDED sonames in order.
        runpath: entries as they are written.
    """

    path: PurePosixPath
    soname: str
    needed: tuple[str, ...]
    runpath: tuple[str, ...]

    def folders(self) -> Iterator[PurePosixPath]:
        """What its RUNPATH means."""
        for entry in self.runpath:
            words = entry.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", str(self.path.parent))
            yield PurePosixPath(posixpath.normpath(words))


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One machine: ROCm is installed in exactly one way.

    Attributes:
        name: of the layout, and of the GPU family where that has packages of its own.
        prefix: only ROCM_PATH says where it is.
        folders: what the loader of our wheels searches, in order.
        files: the libraries of ROCm by path.
    """

    name: str
    prefix: bool
    folders: tuple[PurePosixPath, ...]
    files: Mapping[PurePosixPath, InstalledLibrary]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadResult:
    """What came of loading one library.

    Attributes:
        found: soname -> path, or SYSTEM.
        missing: (path of the library that needs it, soname) of what was found nowhere.
    """

    found: Mapping[str, str]
    missing: tuple[tuple[PurePosixPath, str], ...]


def scenarios(libraries: Iterable[RocmLibrary], targets: Sequence[GfxTarget] | None) -> tuple[Scenario, ...]:
    """Every declared way of installing these libraries, for the targets of a set; None means all of them."""
    libraries = tuple(libraries)
    return tuple(
        Scenario(
            name=f"{layout.name} {family}".rstrip(),
            prefix=layout.root == ROCM_PATH,
            folders=tuple(
                PurePosixPath(folder)
                for folder in search_dirs(
                    layout, site_packages=Path(_SITE), rocm_path=Path(_PREFIX), targets=targets
                )
            ),
            files={file.path: file for library in libraries for file in _placed(library, layout, family)},
        )
        for layout in load_layouts().layouts.values()
        for family in (family_packages(targets) if _per_family(layout) else ("",))
    )  # fmt: skip


def in_site_packages(path: str, *, soname: str, needed: tuple[str, ...], runpath: str) -> InstalledLibrary:
    """A library of a wheel, installed.

    Args:
        path: inside the wheel.
        soname: may be empty; then its file name stands in.
    """
    entries = tuple(runpath.split(":")) if runpath else ()
    place = _SITE / path
    return InstalledLibrary(path=place, soname=soname or place.name, needed=needed, runpath=entries)


def load(
    library: InstalledLibrary,
    scenario: Scenario,
    wheels: Mapping[PurePosixPath, InstalledLibrary],
    *,
    system: Collection[str],
    preload: Sequence[str] = (),
) -> LoadResult:
    """Load one library of a wheel.

    Args:
        wheels: the libraries of all installed wheels, by path.
        system: sonames that every system of the platform has.
        preload: sonames that the wheel's own loader loads first, where the RUNPATH would find another file or none.
    """
    process = _Process(files={**scenario.files, **wheels}, wheels=wheels, system=system)
    for soname in preload:
        ours = next((folder / soname for folder in scenario.folders if folder / soname in process.files), None)
        if ours is not None and ours != process.search(library, soname):
            process.open(process.files[ours], asked=soname)
    process.open(library, asked=library.soname)
    del process.found[library.soname]
    return LoadResult(found=process.found, missing=tuple(process.missing))


@dataclass(kw_only=True, slots=True)
class _Process:
    """A process: the files that it may see, and what it has loaded."""

    files: Mapping[PurePosixPath, InstalledLibrary]
    wheels: Mapping[PurePosixPath, InstalledLibrary]
    system: Collection[str]
    found: dict[str, str] = field(default_factory=dict)
    missing: list[tuple[PurePosixPath, str]] = field(default_factory=list)

    def search(self, library: InstalledLibrary, soname: str) -> PurePosixPath | None:
        """The file that the library's RUNPATH leads to."""
        return next((folder / soname for folder in library.folders() if folder / soname in self.files), None)

    def open(self, library: InstalledLibrary, *, asked: str) -> None:
        """Load a library with everything that it needs, breadth first, unless it is loaded already."""
        if asked in self.found:
            return
        self.found[asked] = str(library.path)
        waiting = deque([library])
        while waiting:
            current = waiting.popleft()
            for soname in current.needed:
                if soname in self.found:
                    continue
                path = self.search(current, soname)
                if path is not None:
                    self.found[soname] = str(path)
                    waiting.append(self.files[path])
                elif self._from_system(current, soname):
                    self.found[soname] = SYSTEM
                else:
                    self.missing.append((current.path, soname))

    def _from_system(self, library: InstalledLibrary, soname: str) -> bool:
        """Whether the system has it; what ROCm needs and does not bring is the system's as well."""
        if soname in self.system:
            return True
        return library.path not in self.wheels and all(file.soname != soname for file in self.files.values())


def _per_family(layout: Layout) -> bool:
    return any(_FAMILY in folder for folder in layout.folders)


def _placed(library: RocmLibrary, layout: Layout, family: str) -> Iterator[InstalledLibrary]:
    """The library's file in a layout; nothing where that does not bring it."""
    path = PurePosixPath(library.path)
    package = path.parts[0] if path.parts[0].startswith("_rocm_sdk_") else ""
    inside = path.relative_to(package) if package else path
    if layout.root == SITE_PACKAGES:
        folder = _package(library.soname, package, layout)
        root = _SITE / folder.replace(_FAMILY, family) if folder else None
    else:
        root = _PREFIX if layout.root == ROCM_PATH else PurePosixPath(layout.root)
    if root is not None:
        yield InstalledLibrary(
            path=root / inside, soname=library.soname, needed=library.needed, runpath=library.runpath
        )  # fmt: skip


def _package(soname: str, package: str, layout: Layout) -> str:
    """The folder of the package that brings a library in this layout, such as _rocm_sdk_libraries_{family}."""
    project = package_of(soname)
    name = package or (f"_{project.replace('-', '_')}" if project else "")
    folders = {folder.partition("/")[0] for folder in layout.folders}
    stems = {folder.removesuffix(f"_{_FAMILY}"): folder for folder in folders}
    return next((folder for stem, folder in stems.items() if name == stem or name.startswith(f"{stem}_")), "")
