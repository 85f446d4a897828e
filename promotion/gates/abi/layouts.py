"""The checks of the ABI gate that need the loader simulated: each declared way of installing ROCm, for each Python."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from core.model import Finding, GfxTarget, Severity
from promotion.gates.abi.loader import SYSTEM, InstalledLibrary, LoadResult, Scenario, in_site_packages, load, scenarios
from promotion.gates.abi.members import ElfMember
from promotion.gates.abi.symbols import abbreviate
from promotion.gates.common.gate import Check, error
from wheelkit.rocm_manifest import RocmLibrary

_LAYOUT = "Add the folder to the layouts in core/layouts.toml, which RUNPATH and the loader of the wheel are made of."
_OTHERS = "Its users have to set LD_LIBRARY_PATH, or install ROCm in another way."


def layout_checks(
    members: Sequence[ElfMember],
    libraries: Iterable[RocmLibrary],
    targets: Sequence[GfxTarget],
    *,
    system: Collection[str],
    suffix: str,
) -> Iterator[Check]:
    """One check for each layout.

    Args:
        members: the libraries of all wheels that one Python installs.
        libraries: those of the ROCm.
        targets: what the set is for.
        system: sonames of the platform.
        suffix: of the checks' names.
    """
    at = {member.path: _installed(member) for member in members}
    wheels = {library.path: library for library in at.values()}
    libraries = tuple(libraries)
    brought = {library.soname for library in libraries} | {path.name for path in wheels}
    for scenario in scenarios(libraries, targets):
        loads = [
            (member, load(at[member.path], scenario, wheels, system=system, preload=member.preload))
            for member in members
        ]
        findings = (*_unfound(loads, scenario, at, brought), *_unfound_by_rocm(loads, scenario, at))
        files = _files([done for _, done in loads])
        yield Check(name=f"layout {scenario.name}{suffix}", findings=findings, details={"files": files})


def _installed(member: ElfMember) -> InstalledLibrary:
    assert member.elf is not None
    elf = member.elf
    path = elf.rpath if elf.runpath is None else elf.runpath
    return in_site_packages(member.path, soname=elf.soname or "", needed=elf.needed, runpath=path or "")


def _unfound(
    loads: Sequence[tuple[ElfMember, LoadResult]],
    scenario: Scenario,
    at: Mapping[str, InstalledLibrary],
    brought: Collection[str],
) -> Iterator[Finding]:
    """For each wheel what its libraries do not find; what nobody brings is told elsewhere."""
    found: dict[str, tuple[list[ElfMember], dict[str, None]]] = {}
    for member, done in loads:
        sonames = [name for path, name in done.missing if path == at[member.path].path and name in brought]
        if sonames:
            users, missing = found.setdefault(member.wheel.filename, ([], {}))
            users.append(member)
            missing |= dict.fromkeys(sonames)
    for filename, (users, missing) in found.items():
        first = users[0]
        who = abbreviate([member.path for member in users])
        text = f"{filename}: {who} would not find {', '.join(missing)} where ROCm is installed as {scenario.name}."
        if not first.wheel.as_published:
            yield error("layout-unresolved", text, _LAYOUT, member=first.path)
        else:
            yield _warning(text, _OTHERS, first)


def _unfound_by_rocm(
    loads: Sequence[tuple[ElfMember, LoadResult]], scenario: Scenario, at: Mapping[str, InstalledLibrary]
) -> Iterator[Finding]:
    """What ROCm's own libraries do not find of each other: whose RUNPATH is to blame is not for a wheel to say."""
    told: set[tuple[PurePosixPath, str]] = set()
    for member, done in loads:
        for path, soname in done.missing:
            if path != at[member.path].path and (path, soname) not in told:
                told.add((path, soname))
                text = f"{member.name} brings in {path}, which would not find {soname} ({scenario.name})."
                yield _warning(text, "Check the RUNPATH of that library of ROCm.", member)


def _warning(text: str, remedy: str, member: ElfMember) -> Finding:
    return Finding(code="layout-unresolved", severity=Severity.WARNING, message=text, remedy=remedy, member=member.path)


def _files(loads: Iterable[LoadResult]) -> Mapping[str, str]:
    """Soname -> the file that it comes from; several where the libraries do not agree."""
    found: dict[str, dict[str, None]] = {}
    for done in loads:
        for soname, path in done.found.items():
            if path != SYSTEM:
                found.setdefault(soname, {})[path] = None
    return {soname: " and ".join(paths) for soname, paths in sorted(found.items())}
