"""Libraries of a staged wheel for the ABI gate, with the findings that are independent of ROCm."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePosixPath

from core.errors import ArchiveError, CiBuildError
from core.frozen import frozen
from core.model import Finding, Severity, Wheel
from promotion.gates.abi.loader import SITE, InstalledLibrary
from promotion.gates.common.gate_context import Check, GateContext
from promotion.gates.common.libraries import SharedLibraries
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.elf.constants import MAGIC
from wheelkit.elf.snapshot import Elf
from wheelkit.findings import as_published, finding
from wheelkit.gpu.code_object import is_code_object
from wheelkit.inspect.library import check_search_path
from wheelkit.inspect.platform_rules import platform_libraries, platform_verdict
from wheelkit.repair.platform_tags import promised_platform

BUILD_INFO = "build_info.json"

_REPLACED = "needed-not-allowed"
"""Code of platform findings that the gate drops, since it reports needs itself."""


@frozen
class ElfMember:
    """One library of a wheel.

    Attributes:
        path: path inside the wheel.
        preload: sonames that the wheel's loader loads first.
    """

    wheel: Wheel
    path: str
    elf: Elf
    preload: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the library's name in findings."""
        return f"{self.wheel.filename}: {self.path}"

    @property
    def installed(self) -> InstalledLibrary:
        """Return the library with its path after installation."""
        path = SITE / self.path
        return InstalledLibrary(
            path=path,
            soname=self.elf.soname or path.name,
            needed=self.elf.needed,
            runpath=self.elf.search_path,
        )

    def named(self, found: Finding) -> Finding:
        """Add the library to a finding."""
        return replace(found, message=f"{self.name} {found.message}", member=self.path)


def read_members(
    context: GateContext, wheel: Wheel
) -> tuple[list[Check], list[ElfMember]]:
    """Read every ELF file of a wheel, and check each for faults that are independent of ROCm."""
    context.progress.step(f"libraries of {wheel.filename}")
    members: dict[str, ElfMember] = {}
    try:
        with WheelArchive(context.wheel(wheel)) as archive:
            found = {
                member.name: _unpack(context, wheel, archive, member.name)
                for member in archive.members
            }
            preload = _preload(archive)
    except ArchiveError as problem:
        broken = finding("archive-damaged", f"{wheel.filename} {problem.message}")
        return [Check(name=f"{wheel.filename}: platform", findings=(broken,))], []
    files = {path: file for path, file in found.items() if isinstance(file, Path)}
    problems = {
        path: [damage] for path, damage in found.items() if isinstance(damage, Finding)
    }
    for path, file in files.items():
        try:
            members[path] = ElfMember(
                wheel=wheel, path=path, elf=Elf.read(file), preload=preload
            )
        except CiBuildError as problem:
            problems[path] = [
                finding("elf-unreadable", f"cannot be read: {problem.message}")
            ]
    problems |= _platform_findings(files, members, promised_platform(wheel.tags))
    for path, member in members.items():
        problems[path] += _search_path_findings(member)
    checks = []
    reported = set[str]()
    for path in (path for path in found if path in problems):
        name = f"{wheel.filename}: {path}"
        findings = problems[path]
        if wheel.as_published:
            findings = [*_deduplicated(as_published(findings, wheel.name), reported)]
        named = tuple(
            replace(item, message=f"{name} {item.message}", member=path)
            for item in findings
        )
        checks.append(Check(name=f"{name}: platform", findings=named))
    return checks or [
        Check(name=f"{wheel.filename}: platform", details={"libraries": 0})
    ], [*members.values()]


def _unpack(
    context: GateContext, wheel: Wheel, archive: WheelArchive, name: str
) -> Path | Finding | None:
    """Return a member's unpacked ELF file, or a finding if the member is damaged."""
    try:
        head = archive.head(name)
        # Code objects run on the GPU; the coverage gate and the inspection check them.
        if not head.startswith(MAGIC) or is_code_object(head):
            return None
        return SharedLibraries(context, wheel).unpack(archive, name)
    except ArchiveError as problem:
        return finding("member-damaged", f"is damaged: {problem.message}")


def _preload(archive: WheelArchive) -> tuple[str, ...]:
    """Return the sonames that the loader of our wheels loads first, in order."""
    sonames: dict[str, None] = {}
    for member in archive.members:
        if PurePosixPath(member.name).name != BUILD_INFO:
            continue
        with contextlib.suppress(
            ArchiveError, ValueError, LookupError, TypeError
        ):  # another project's file
            data = json.loads(archive.read(member.name))
            rocm = frozenset(data["rocm_sonames"])
            needed = chain.from_iterable(row["needed"] for row in data["members"])
            sonames |= dict.fromkeys(soname for soname in needed if soname in rocm)
    return tuple(sonames)


def _deduplicated(findings: Iterable[Finding], reported: set[str]) -> Iterator[Finding]:
    """Keep one warning of each code for an adopted wheel, and no notes."""
    for item in findings:
        if item.severity is Severity.ERROR or (
            item.severity is Severity.WARNING and item.code not in reported
        ):
            reported.add(item.code)
            yield item


def _platform_findings(
    unpacked: Mapping[str, Path], members: Mapping[str, ElfMember], platform: str
) -> dict[str, list[Finding]]:
    """Return findings on needs beyond the wheel's platform for each library.

    The inspection gate reports notes.
    """
    if not members:
        return {}
    files = {path: unpacked[path] for path in members}
    elves = {path: member.elf for path, member in members.items()}
    needed = chain.from_iterable(member.elf.needed for member in members.values())
    others = set(needed) - platform_libraries(platform)
    try:
        result = platform_verdict(
            files, allowed_sonames=frozenset(others), platform=platform, elves=elves
        )
    except CiBuildError as problem:
        text = f"cannot be compared with {platform}: {problem.message}"
        return {path: [finding("elf-unreadable", text)] for path in files}
    findings: dict[str, list[Finding]] = {path: [] for path in files}
    for item in result.findings:
        if item.severity is not Severity.NOTE and item.code != _REPLACED:
            findings[item.member].append(
                replace(item, message=item.message.removeprefix("It "))
            )
    return findings


def _search_path_findings(member: ElfMember) -> Iterator[Finding]:
    """Yield findings about paths of the build machine in RUNPATH."""
    for item in check_search_path(member.elf.search_path, member.path):
        if item.severity is Severity.ERROR:
            yield replace(
                item, message=f"has a RUNPATH of the build machine: {item.message}"
            )
