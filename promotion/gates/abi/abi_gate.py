"""The ABI gate: check that the libraries of a set can be loaded, without running them.

Each library is compared with the manifest of a ROCm, and the dynamic loader is simulated
for every installation layout of ROCm. The gate inspection compares libraries with their
platform tags.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from core import rocm_layouts as layouts
from core.model import Finding, GfxTarget, RocmVersion, Severity, Tier, WheelSet
from promotion.gates.abi.loader import (
    SITE,
    LoadResult,
    Scenario,
    load,
    scenarios,
)
from promotion.gates.abi.members import ElfMember, read_members
from promotion.gates.abi.symbols import LibraryExports, unmet_needs, unmet_symbols
from promotion.gates.common.gate_context import Check, Gate, GateContext, error, warning
from promotion.gates.common.gate_rocm import manifest_digest, set_manifest
from promotion.gates.common.set_requirements import wheels_for
from wheelkit.findings import some
from wheelkit.inspect.platform_rules import platform_libraries
from wheelkit.repair.platform_tags import PLATFORM
from wheelkit.rocm_manifest import (
    ROCM_MANIFEST,
    RocmLibrary,
    RocmManifest,
    shipped_manifest,
)

_NO_MANIFEST = (
    f"The set has no {ROCM_MANIFEST}, and none is shipped for its ROCm, so that its"
    " exports are unknown; symbols were not compared."
)
_WEAK_MANIFEST = (
    "The manifest was derived from wheels and proves nothing about a real ROCm; symbols"
    " were not compared."
)
_ADD_MANIFEST = (
    "Build the set with --rocm-manifest DIR, or pass --rocm DIR to this gate."
)
_ADD_LAYOUT = (
    "Add the folder to core/rocm_layouts.toml, from which RUNPATH and the loader of the"
    " wheel are generated."
)


def make_gate(manifest: RocmManifest | None = None) -> Gate:
    """Return the gate.

    Args:
        manifest: exports of the ROCm that the set will run with; None selects the
            manifest in the set.
    """

    def run(context: GateContext) -> Iterator[Check]:
        return _run(context, manifest or set_manifest(context))

    manifest_id = manifest_digest(manifest) if manifest is not None else "the set's own"
    settings = {"manifest": manifest_id, "platform": PLATFORM}
    return Gate(
        name="abi", tier=Tier.STRUCTURE, per_target=False, run=run, settings=settings
    )


def _reference_rocm(
    manifest: RocmManifest | None, wheel_set: WheelSet
) -> tuple[RocmManifest, str]:
    """Return the ROCm to compare a set with, and why symbols are not comparable, or "".

    Without a manifest, the returned ROCm has the libraries that wheels may need, with
    names and paths. Their symbols are those of the shipped manifest, if there is one; a
    library without symbols is not compared.
    """
    if manifest is not None:
        return manifest, _WEAK_MANIFEST if manifest.weak else ""
    shipped = shipped_manifest(RocmVersion(text=wheel_set.rocm_version))
    declared = {}
    for name in sorted(
        layouts.allowed_sonames(RocmVersion(text=wheel_set.rocm_version))
    ):
        # Directories as in TheRock, build_tools/_therock_utils/py_packaging.py.
        folder = (
            "lib/rocm_sysdeps/lib" if name.startswith("librocm_sysdeps_") else "lib"
        )
        known = shipped.libraries.get(name) if shipped else None
        symbols, needed = (known.symbols, known.needed) if known else ({}, ())
        declared[name] = RocmLibrary(
            soname=name, path=f"{folder}/{name}", symbols=symbols, needed=needed
        )
    rocm = RocmManifest(
        rocm_version=wheel_set.rocm_version, libraries=declared, weak=True
    )
    return rocm, "" if shipped else _NO_MANIFEST


def _run(context: GateContext, manifest: RocmManifest | None) -> Iterator[Check]:
    rocm, unproved = _reference_rocm(manifest, context.wheel_set)
    members: list[ElfMember] = []
    for wheel in context.wheel_set.wheels:
        members += read_members(context, wheel)
    yield from _rocm_checks(context.wheel_set, members, rocm, unproved)
    targets = tuple(map(GfxTarget.parse, context.wheel_set.targets))
    for version in context.wheel_set.python_versions:
        context.progress.step(
            f"load the libraries for Python {version} from every layout of ROCm"
            f" {rocm.rocm_version}"
        )
        installed = _installed_together(context.wheel_set, members, version)
        yield from _layout_checks(installed, rocm, targets, version)


def _rocm_checks(
    wheel_set: WheelSet, members: Sequence[ElfMember], rocm: RocmManifest, unproved: str
) -> Iterator[Check]:
    """Check NEEDED and symbols of each library once, with the first Python's wheels."""
    system = platform_libraries(PLATFORM)
    checked = set[str]()
    rocm_name = f"ROCm {rocm.rocm_version}"
    rocm_exports = {
        name: LibraryExports(
            origin=rocm_name, symbols=library.symbols, needed=library.needed
        )
        for name, library in rocm.libraries.items()
    }
    for version in wheel_set.python_versions:
        installed = _installed_together(wheel_set, members, version)
        exports = {**rocm_exports, **_exports(installed)}
        compared = {
            name: library
            for name, library in exports.items()
            if library.symbols or not rocm.weak
        }
        for member in installed:
            if member.name in checked:
                continue
            checked.add(member.name)
            findings = list(unmet_needs(member.elf, system, exports, rocm_name))
            if not unproved:
                missing = [*unmet_symbols(member.elf, compared, system, rocm_name)]
                # Wheels of others may need functions that no published wheel needs.
                if rocm.weak and member.wheel.as_published:
                    missing = [
                        replace(item, severity=Severity.WARNING) for item in missing
                    ]
                findings += missing
            yield Check(
                name=f"{member.name}: {rocm_name}",
                findings=tuple(map(member.named, findings)),
            )
    if unproved:
        published = all(wheel.as_published for wheel in wheel_set.wheels)
        if published:
            finding = warning("rocm-unknown", unproved, _ADD_MANIFEST)
        else:
            finding = error("rocm-unknown", unproved, _ADD_MANIFEST)
        yield Check(
            name=f"symbols of {rocm_name}",
            skipped=f"{unproved} {_ADD_MANIFEST}" if published else "",
            findings=(finding,),
        )


def _installed_together(
    wheel_set: WheelSet, members: Sequence[ElfMember], version: str
) -> list[ElfMember]:
    """Return the libraries of the wheels for one Python version."""
    names = {wheel.filename for wheel in wheels_for(wheel_set, version)}
    return [member for member in members if member.wheel.filename in names]


def _exports(members: Sequence[ElfMember]) -> dict[str, LibraryExports]:
    """Return the exports of the wheels' libraries by soname and by file name.

    The loader uses both.
    """
    exports: dict[str, LibraryExports] = {}
    for member in members:
        for name in (member.elf.soname, PurePosixPath(member.path).name):
            if name:
                elf = member.elf
                exports[name] = LibraryExports(
                    origin=member.wheel.filename,
                    symbols=elf.offered,
                    needed=elf.needed,
                )
    return exports


def _layout_checks(
    members: Sequence[ElfMember],
    rocm: RocmManifest,
    targets: Sequence[GfxTarget],
    version: str,
) -> Iterator[Check]:
    """Yield one check for each layout.

    Args:
        members: libraries of the wheels for this Python version.
        rocm: the ROCm; a weak manifest does not have the RUNPATHs of its libraries.
        targets: targets of the set.
    """
    system = platform_libraries(PLATFORM)
    installed = [member.installed for member in members]
    wheels = {library.path: library for library in installed}
    libraries = rocm.libraries.values()
    provided = {library.soname for library in libraries}
    provided |= {path.name for path in wheels}
    for scenario in scenarios(libraries, targets):
        loads = []
        for member, library in zip(members, installed, strict=True):
            preload = member.preload
            result = load(library, scenario, wheels, system=system, preload=preload)
            loads.append((member, result))
        findings = tuple(_unresolved(loads, scenario, provided))
        yield Check(name=f"layout {scenario.name}, Python {version}", findings=findings)


def _unresolved(
    loads: Sequence[tuple[ElfMember, LoadResult]],
    scenario: Scenario,
    provided: Collection[str],
) -> Iterator[Finding]:
    """Yield a finding for each wheel that would not find libraries of the set or of ROCm.

    Users of wheels published by others set LD_LIBRARY_PATH.
    """
    unresolved: dict[str, tuple[list[ElfMember], dict[str, None]]] = {}
    for member, result in loads:
        sonames = [
            name
            for path, name in result.missing
            if path == SITE / member.path and name in provided
        ]
        if sonames and not member.wheel.as_published:
            users, missing = unresolved.setdefault(member.wheel.filename, ([], {}))
            users.append(member)
            missing |= dict.fromkeys(sonames)
    for filename, (users, missing) in unresolved.items():
        first = users[0]
        names = some([member.path for member in users])
        text = (
            f"{filename}: {names} would not find {', '.join(missing)} with ROCm in"
            f" layout {scenario.name}."
        )
        yield error("layout-unresolved", text, _ADD_LAYOUT, member=first.path)
