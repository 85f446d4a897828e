"""Checks of the ABI gate with the simulated loader: each declared layout of ROCm."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from core.model import Finding, GfxTarget
from promotion.gates.abi.loader import SYSTEM, InstalledLibrary, LoadResult, Scenario, in_site_packages, load, scenarios
from promotion.gates.abi.members import ElfMember
from promotion.gates.abi.symbols import abbreviate
from promotion.gates.common.gate import Check, error, warning
from wheelkit.rocm_manifest import RocmLibrary

_ADD_LAYOUT = "Add the folder to core/layouts.toml, from which RUNPATH and the loader of the wheel are generated."
_SET_PATH = "Users must set LD_LIBRARY_PATH or install ROCm in another layout."


def layout_checks(
    members: Sequence[ElfMember],
    libraries: Iterable[RocmLibrary],
    targets: Sequence[GfxTarget],
    *,
    system: Collection[str],
    suffix: str,
) -> Iterator[Check]:
    """Yield one check for each layout.

    Args:
        members: libraries of all wheels that one Python installs.
        libraries: libraries of the ROCm.
        targets: targets of the set.
        system: sonames of the platform.
        suffix: suffix of the checks' names.
    """
    installed = {
        m.path: in_site_packages(m.path, soname=m.elf.soname or "", needed=m.elf.needed, runpath=m.runpath)
        for m in members
    }
    wheels = {library.path: library for library in installed.values()}
    libraries = tuple(libraries)
    provided = {library.soname for library in libraries} | {path.name for path in wheels}
    for scenario in scenarios(libraries, targets):
        loads = [
            (member, load(installed[member.path], scenario, wheels, system=system, preload=member.preload))
            for member in members
        ]
        findings = (
            *_unresolved(loads, scenario, installed, provided),
            *_unresolved_in_rocm(loads, scenario, installed),
        )
        files = _files([result for _, result in loads])
        yield Check(name=f"layout {scenario.name}{suffix}", findings=findings, details={"files": files})


def _unresolved(
    loads: Sequence[tuple[ElfMember, LoadResult]],
    scenario: Scenario,
    installed: Mapping[str, InstalledLibrary],
    provided: Collection[str],
) -> Iterator[Finding]:
    """Yield the libraries that each wheel would not find, if some library of the set or ROCm has that name."""
    found: dict[str, tuple[list[ElfMember], dict[str, None]]] = {}
    for member, result in loads:
        sonames = [name for path, name in result.missing if path == installed[member.path].path and name in provided]
        if sonames:
            users, missing = found.setdefault(member.wheel.filename, ([], {}))
            users.append(member)
            missing |= dict.fromkeys(sonames)
    for filename, (users, missing) in found.items():
        first = users[0]
        names = abbreviate([member.path for member in users])
        text = f"{filename}: {names} would not find {', '.join(missing)} with ROCm in layout {scenario.name}."
        finding, remedy = (warning, _SET_PATH) if first.wheel.as_published else (error, _ADD_LAYOUT)
        yield finding("layout-unresolved", text, remedy, member=first.path)


def _unresolved_in_rocm(
    loads: Sequence[tuple[ElfMember, LoadResult]], scenario: Scenario, installed: Mapping[str, InstalledLibrary]
) -> Iterator[Finding]:
    """Yield warnings about ROCm's libraries that would not find each other, which a wheel cannot fix."""
    reported: set[tuple[PurePosixPath, str]] = set()
    for member, result in loads:
        for path, soname in result.missing:
            if path != installed[member.path].path and (path, soname) not in reported:
                reported.add((path, soname))
                text = f"{member.name} loads {path}, which would not find {soname} ({scenario.name})."
                remedy = "Check the RUNPATH of that library of ROCm."
                yield warning("layout-unresolved", text, remedy, member=member.path)


def _files(loads: Iterable[LoadResult]) -> Mapping[str, str]:
    """Return soname -> file; several files where the libraries resolve it differently."""
    found: dict[str, dict[str, None]] = {}
    for result in loads:
        for soname, path in result.found.items():
            if path != SYSTEM:
                found.setdefault(soname, {})[path] = None
    return {soname: " and ".join(paths) for soname, paths in sorted(found.items())}
