"""Data classes of an inspection.

Frozen, without behaviour, converted to JSON by `core.model.to_json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from core.frozen import frozen
from core.model import Finding, MemberInfo
from wheelkit.gpu.fatbin import DeviceCode, TargetCode


@frozen
class ElfFacts:
    """Facts about one library.

    Attributes:
        path: path inside the wheel.
        machine: as in `Elf.machine`, such as x86_64.
        runpath: entries of DT_RUNPATH, or of DT_RPATH if `rpath` is set.
        symbol_versions: highest version per prefix, such as {"GLIBC": "2.27"}.
        symbol_table_bytes: size of .symtab and .strtab; 0 if stripped.
        debug_file: name of the separate debug file; empty if there is none.
        debug_crc32: CRC-32 of the debug file.
        compilers: strings of .comment.
        rocm: ROCm version that compiled the device code; empty if unknown.
        modules: names of the Python modules that the library can initialise
            (`PyInit_<name>`).
        exported: names of the exported symbols, sorted.
        hip_symbols: undefined symbols of the HIP runtime, sorted.
        sections: bytes per part, named as in `parts`.
    """

    path: str
    size: int
    sha256: str
    machine: str
    needed: tuple[str, ...]
    runpath: tuple[str, ...]
    rpath: bool
    soname: str
    symbol_versions: Mapping[str, str]
    symbol_table_bytes: int
    build_id: str
    debug_file: str
    debug_crc32: int
    compilers: tuple[str, ...]
    rocm: str
    modules: tuple[str, ...]
    exported: tuple[str, ...]
    hip_symbols: tuple[str, ...]
    device: DeviceCode
    sections: Mapping[str, int]


@frozen
class WheelMetadata:
    """METADATA, WHEEL and entry_points.txt of a wheel.

    Attributes:
        purelib: `Root-Is-Purelib` of WHEEL.
        tags: expanded Tag lines of WHEEL.
        entry_points: group -> name -> object reference.
        stamped: path of each version.py -> its `_release_version`, or "" for None.
    """

    name: str
    version: str
    summary: str
    requires_python: str
    requires_dist: tuple[str, ...]
    extras: tuple[str, ...]
    license: str
    license_files: tuple[str, ...]
    purelib: bool
    tags: tuple[str, ...]
    generator: str
    entry_points: Mapping[str, Mapping[str, str]]
    stamped: Mapping[str, str]


@frozen
class PlatformSupport:
    """The platform tag that the libraries allow.

    Attributes:
        policy: oldest platform that the libraries run on if users have `external`.
        external: sonames of allowed libraries outside the wheel and the policy, sorted.
    """

    policy: str
    external: tuple[str, ...]


@frozen
class WheelReport:
    """Result of the inspection of one wheel.

    Attributes:
        project: normalized project name (PEP 503), from the file name.
        tags: expanded tags of the file name, sorted.
        metadata: None if the archive could not be opened.
        platform: None for wheels without libraries, or if only the integrity was
            checked.
        verified: True if RECORD hashes and the MD5 of device code were checked.
        rocm: ROCm versions that compiled device code in the wheel, sorted.
        files: number of members.
        parts: kind of content -> unpacked bytes, largest first.
        findings: errors first.
    """

    filename: str
    size: int
    sha256: str
    project: str = ""
    version: str = ""
    build: str = ""
    tags: tuple[str, ...] = ()
    verified: bool
    files: int = 0
    metadata: WheelMetadata | None = None
    platform: PlatformSupport | None = None
    rocm: tuple[str, ...] = ()
    parts: Mapping[str, int] = field(default_factory=dict)
    targets: tuple[TargetCode, ...] = ()
    elfs: tuple[ElfFacts, ...] = ()
    findings: tuple[Finding, ...] = ()


def member_infos(report: WheelReport) -> tuple[MemberInfo, ...]:
    """Return the libraries of a wheel as `wheels.json` lists them."""
    infos = []
    for elf in report.elfs:
        infos.append(
            MemberInfo(
                path=elf.path,
                size=elf.size,
                sha256=elf.sha256,
                targets=tuple(code.target for code in elf.device.targets),
                needed=elf.needed,
                symbol_versions=elf.symbol_versions,
            )
        )
    return tuple(infos)
