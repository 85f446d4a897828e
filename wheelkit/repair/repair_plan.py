"""Plan and result of a repair: data classes without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from core.frozen import frozen
from core.model import Finding, GfxTarget, Wheel
from wheelkit.repair.platform_tags import AUTO


@frozen
class RepairPlan:
    """Plan of a repair: the changes to a wheel; all other bytes stay.

    Paths are member paths in the new wheel; globs are `fnmatch` patterns on whole
    member paths.

    Attributes:
        project: project name as in METADATA; the source must be a wheel of this
            project.
        version: new version (PEP 440) with its local part, such as 0.10.2+rocm7.2.0.
        platform: new platform tag, which auditwheel has to confirm; `AUTO` computes it.
        targets: gfx targets whose code every fat binary keeps; other code is removed.
            None keeps all code.
        rocm_version: ROCm release that must have compiled the device code, according to
            the compiler's marks; empty skips the check.
        strip: move symbol tables out of the libraries.
        verify_bundles: check the MD5 of each compressed bundle before slimming it.
        runpath: glob -> new DT_RUNPATH; the first matching glob counts, and every
            library with a RUNPATH must match one. Empty keeps every RUNPATH.
        hip_soname: soname of the HIP runtime, such as libamdhip64.so.7; added to NEEDED
            of libraries that use hip* symbols without it, unless other libraries of the
            wheel need another one. Empty adds none.
        members: exact list of the libraries in the wheel; empty allows any libraries.
        device_members: globs of the libraries with device code; each glob must match a
            library, and no other library may have device code.
        summary: METADATA Summary.
        requires_python: METADATA Requires-Python, such as >=3.11.
        requires_dist: all Requires-Dist values without a marker; the source's
            requirements and extras are removed.
        extras: extra -> its requirements.
        license_text: content of `licenses/LICENSE.txt` in the dist-info folder.
        entry_points: group -> name -> object reference; None keeps the source's
            entry_points.txt.
        files: path -> content of new or replaced files; libraries are refused, since
            they would not be checked.
        build_info: JSON values written to `build_info_path`; the repair adds `members`,
            a MemberInfo per library.
        build_info_path: path of the build information file; empty writes none.
        allowed_sonames: exact sonames outside the wheel and the platform that libraries
            may need.
    """

    project: str
    version: str
    platform: str = AUTO
    targets: tuple[GfxTarget, ...] | None = None
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
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    license_text: bytes
    entry_points: Mapping[str, Mapping[str, str]] | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    build_info: Mapping[str, Any] = field(default_factory=dict)
    build_info_path: str = ""
    allowed_sonames: frozenset[str] = frozenset()


@frozen
class RepairResult:
    """A repaired wheel on disk, and the parts that the repair removed.

    Attributes:
        wheel: record of the wheel, with every ELF member in the wheel's order.
        targets_kept: gfx targets whose code was kept in any member, sorted.
        targets_dropped: gfx targets whose code was removed from any member, sorted.
        code_before, code_after: bytes of device code in all libraries before and after
            the repair.
        symbols_saved: bytes of the removed symbol tables.
        findings: warnings and notes; errors raise RepairError instead.
        debug_files: member path -> debug file with the member's symbols.
    """

    path: Path
    wheel: Wheel
    targets_kept: tuple[str, ...]
    targets_dropped: tuple[str, ...]
    code_before: int
    code_after: int
    symbols_saved: int
    findings: tuple[Finding, ...]
    debug_files: Mapping[str, Path]
