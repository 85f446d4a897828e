"""The libraries of a staged wheel for the ABI gate: unpacked, read, and judged against the platform on their own."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from core.errors import ArchiveError, CiBuildError
from core.model import Finding, Progress, Severity, Wheel
from promotion.gates.abi.symbols import abbreviate
from promotion.gates.common.gate import GateContext
from wheelkit.archive.reader import WheelArchive
from wheelkit.elf.build_paths import build_paths
from wheelkit.elf.snapshot import Elf
from wheelkit.findings import as_published, finding
from wheelkit.gpu.code_object import is_code_object
from wheelkit.inspect.library import check_search_path
from wheelkit.inspect.manylinux import platform_libraries, platform_verdict

PLATFORM = "manylinux_2_28_x86_64"
"""The oldest systems that the wheels are for."""
BUILD_INFO = "build_info.json"

_MAGIC = b"\x7fELF"
_RESOLVED_HERE = ("needed-not-allowed",)
"""What the platform's verdict says and the gate itself knows better."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ElfMember:
    """One library of a wheel.

    Attributes:
        path: inside the wheel.
        elf: None when it cannot be read; then a finding says so.
        preload: what the loader of its wheel loads first; empty for wheels without one.
        findings: what is wrong with it whatever ROCm there is; each names the wheel and the member.
    """

    wheel: Wheel
    path: str
    elf: Elf | None
    preload: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def name(self) -> str:
        """What findings call it."""
        return f"{self.wheel.filename}: {self.path}".removesuffix(": ")

    def named(self, found: Finding) -> Finding:
        """A finding that says which library it is about."""
        return replace(found, message=f"{self.name} {found.message}", member=self.path)


def read_members(context: GateContext, wheel: Wheel) -> tuple[ElfMember, ...]:
    """Every ELF file of a wheel, or one entry for a wheel that cannot be opened; no unpacked file is left."""
    context.progress.step(f"libraries of {wheel.filename}")
    folder = context.work / "unpacked"
    folder.mkdir()
    try:
        with WheelArchive(context.wheel(wheel)) as archive:
            names = [member.name for member in archive.members]
            damage = {name: problem for name in names if (problem := _unpack(archive, name, folder, context.progress))}
            paths = [name for name in names if name in damage or (folder / name).exists()]
            preload = _preload(archive)
        return tuple(_judged(wheel, folder, paths, damage, preload))
    except ArchiveError as problem:
        member = ElfMember(wheel=wheel, path="", elf=None)
        return (replace(member, findings=(member.named(finding("archive-damaged", problem.message)),)),)
    finally:
        shutil.rmtree(folder)


def _unpack(archive: WheelArchive, name: str, folder: Path, progress: Progress) -> Finding | None:
    """Unpack a member if it is an ELF file; what is wrong with it."""
    try:
        head = next(iter(archive.chunks(name)), b"")
        # A code object is for the GPU: the coverage gate and the inspection look at those.
        if head.startswith(_MAGIC) and not is_code_object(head):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            archive.extract(name, folder / name, progress=progress)
    except ArchiveError as problem:
        return finding("member-damaged", f"is damaged: {problem.message}")
    return None


def _preload(archive: WheelArchive) -> tuple[str, ...]:
    """What the loader of our wheels loads before anything else, in its order (`needed` in build_info.py)."""
    names = [member.name for member in archive.members if PurePosixPath(member.name).name == BUILD_INFO]
    wanted: dict[str, None] = {}
    for name in names:
        with contextlib.suppress(ArchiveError, ValueError, LookupError, TypeError):  # somebody else's file of that name
            data = json.loads(archive.read(name))
            rocm = frozenset(data["rocm_sonames"])
            wanted |= dict.fromkeys(soname for row in data["members"] for soname in row["needed"] if soname in rocm)
    return tuple(wanted)


def _judged(
    wheel: Wheel, folder: Path, paths: Sequence[str], damaged: Mapping[str, Finding], preload: tuple[str, ...]
) -> Iterator[ElfMember]:
    elves: dict[str, Elf] = {}
    damage = dict(damaged)
    for path in (path for path in paths if path not in damaged):
        try:
            elves[path] = Elf.read(folder / path)
        except CiBuildError as problem:
            damage[path] = finding("elf-unreadable", f"cannot be read: {problem.message}")
    found = _against_platform({path: folder / path for path in elves}, elves)
    told: set[str] = set()
    for path in paths:
        elf = elves.get(path)
        member = ElfMember(wheel=wheel, path=path, elf=elf, preload=preload)
        own = (damage[path],) if elf is None else (*found.get(path, ()), *_left_by_the_build(elf, folder / path))
        if wheel.as_published:
            own = tuple(_once(as_published(own), told))
        yield replace(member, findings=tuple(map(member.named, own)))


def _once(findings: Iterable[Finding], told: set[str]) -> Iterator[Finding]:
    """Of what nobody here can mend, one of each kind for a wheel: a jaxlib has the same in dozens of libraries."""
    for item in findings:
        if item.severity is Severity.ERROR or item.code not in told:
            told.add(item.code)
            yield item


def _against_platform(files: Mapping[str, Path], elves: Mapping[str, Elf]) -> dict[str, list[Finding]]:
    """What the libraries want of the system that manylinux_2_28 does not promise; notes are the inspection's."""
    if not files:
        return {}
    system = platform_libraries(PLATFORM)
    others = frozenset(soname for elf in elves.values() for soname in elf.needed) - system
    try:
        result = platform_verdict(files, allowed_sonames=others, platform=PLATFORM)
    except CiBuildError as problem:
        text = f"cannot be judged against {PLATFORM}: {problem.message}"
        return {path: [finding("elf-unreadable", text)] for path in files}
    found: dict[str, list[Finding]] = {path: [] for path in files}
    for item in result.findings:
        if item.severity is not Severity.NOTE and item.code not in _RESOLVED_HERE:
            found[item.member].append(replace(item, message=_continued(item.message)))
    return found


def _continued(message: str) -> str:
    """The sentence without its subject, since the library's name stands in front."""
    return message.removeprefix("It ")


def _left_by_the_build(elf: Elf, file: Path) -> Iterator[Finding]:
    """Paths of the machine that built it, in RUNPATH and in strings."""
    path = elf.rpath if elf.runpath is None else elf.runpath
    for item in check_search_path(path.split(":") if path else (), ""):
        if item.severity is Severity.ERROR:
            yield replace(item, message=f"has a RUNPATH that only its builder can use: {item.message}")
    known = set(path.split(":")) if path else set()
    strings = [text for text in build_paths(file, elf.sections.values()) if not any(text in entry for entry in known)]
    if strings:
        yield Finding(
            code="build-path-in-strings",
            severity=Severity.WARNING,
            message=f"holds paths of the machine that built it: {abbreviate(strings)}.",
            remedy="Compile with -ffile-prefix-map, and give tools relative paths.",
        )
