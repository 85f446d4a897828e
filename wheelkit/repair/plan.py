"""Plan and result of a repair: data classes without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.model import Finding, GfxTarget, MemberInfo

PLATFORM = "manylinux_2_28_x86_64"
"""Platform tag of every repaired wheel; auditwheel decides whether it is true."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairPlan:
    """Everything that a repair changes; all other bytes stay.

    Paths are those of the new wheel; globs are `fnmatch` patterns on whole member paths.

    Attributes:
        project: name of the project as in METADATA; the source must be one of its wheels.
        version: the new version (PEP 440) with local part: 0.10.2+rocm7.2.0.
        targets: gfx targets to keep in every fat binary, exactly these; None keeps all.
        covers: generic target -> the processors that run its code.
        machs: processor -> EF_AMDGPU_MACH, to name the target of members that are plain code objects; these stay
            unchanged. Required if there are any.
        rocm_version: ROCm release that must have compiled the device code, according to the compiler's marks; empty
            skips the check.
        strip: move symbol tables out of the libraries.
        verify_bundles: check the MD5 of each compressed bundle before slimming it.
        runpath: glob -> DT_RUNPATH; the first match counts, and each member with a RUNPATH must match one; empty
            keeps them all.
        hip_soname: NEEDED entry to add where hip* symbols are used without it, such as libamdhip64.so.7; empty adds
            none.
        members: every library that the wheel must contain, and no others; empty allows any.
        device_members: globs of the members with device code; each must match at least one, and no other member may
            have device code.
        summary: METADATA Summary.
        requires_python: METADATA Requires-Python, such as >=3.11.
        requires_dist: every requirement; those of the source and its extras are dropped.
        license_text: content of `licenses/LICENSE.txt` in the dist-info folder.
        entry_points: group -> name -> object; None keeps the source's entry_points.txt.
        files: path -> content of new or replaced files; not for libraries, which would not be checked.
        build_info: JSON values written to `build_info_path`; the repair adds `members`, a MemberInfo per library.
        build_info_path: path of that file, or empty for none.
        allowed_sonames: exact names of libraries outside the wheel and the platform that members may need.
    """

    project: str
    version: str
    targets: tuple[GfxTarget, ...] | None = None
    covers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    machs: Mapping[str, int] = field(default_factory=dict)
    rocm_version: str = ""
    strip: bool = True
    verify_bundles: bool = True
    runpath: Mapping[str, str] = field(default_factory=dict)
    hip_soname: str = ""
    members: tuple[str, ...] = ()
    device_members: tuple[str, ...] = ()
    summary: str
    requires_python: str
    requires_dist: tuple[str, ...] = ()
    license_text: bytes
    entry_points: Mapping[str, Mapping[str, str]] | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    build_info: Mapping[str, Any] = field(default_factory=dict)
    build_info_path: str = ""
    allowed_sonames: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairedWheel:
    """A repaired wheel on disk.

    Attributes:
        size: bytes of the wheel.
        sha256: of the wheel, 64 hexadecimal digits.
        members: every ELF member after the repair, in the wheel's order.
        targets_kept: over all members, sorted.
        targets_dropped: over all members, sorted.
        code_before, code_after: bytes of the device code in the libraries.
        symbols_saved: bytes of the removed symbol tables.
        findings: warnings and notes; errors raise RepairError instead.
        debug_files: member path -> file with its symbols.
    """

    path: Path
    size: int
    sha256: str
    members: tuple[MemberInfo, ...]
    targets_kept: tuple[str, ...]
    targets_dropped: tuple[str, ...]
    code_before: int
    code_after: int
    symbols_saved: int
    findings: tuple[Finding, ...]
    debug_files: Mapping[str, Path]
