"""The ABI gate: check that the libraries of a set can be loaded, without running them.

Each library is compared with manylinux_2_28 (auditwheel's policy, the history of libstdc++) and with the manifest of
a ROCm, and loading it is simulated for every installation layout of ROCm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from core import layouts
from core.model import Finding, GfxTarget, RocmVersion, Severity, Tier, WheelSet
from promotion.gates.abi.layouts import layout_checks
from promotion.gates.abi.members import PLATFORM, ElfMember, read_members
from promotion.gates.abi.symbols import LibraryExports, unmet_needs, unmet_symbols
from promotion.gates.common.gate import Check, Gate, GateContext
from promotion.gates.common.requirements import wheels_for
from promotion.gates.common.rocm_manifest import manifest_digest, set_manifest
from wheelkit.inspect.manylinux import platform_libraries
from wheelkit.rocm_manifest import ROCM_MANIFEST, RocmLibrary, RocmManifest

_NO_MANIFEST = f"The set has no {ROCM_MANIFEST}, so the exports of its ROCm are unknown; symbols were not compared."
_WEAK_MANIFEST = "The manifest was derived from wheels, which proves nothing about a ROCm; symbols were not compared."
_ADD_MANIFEST = (
    "Write one with `ci_build rocm manifest PATH` and build the set with --rocm-manifest, or pass --rocm PATH to this "
    "gate."
)


def make_gate(manifest: RocmManifest | None = None) -> Gate:
    """Return the gate.

    Args:
        manifest: exports of the ROCm that the set will run with; None selects the manifest in the set.
    """

    def run(context: GateContext) -> Iterator[Check]:
        return _run(context, manifest or set_manifest(context))

    manifest_id = manifest_digest(manifest) if manifest is not None else "the set's own"
    settings = {"manifest": manifest_id, "platform": PLATFORM}
    return Gate(name="abi", tier=Tier.STRUCTURE, per_target=False, run=run, settings=settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class _ReferenceRocm:
    """The ROCm that a set is compared with.

    Attributes:
        name: display name.
        libraries: its libraries; without a manifest those that wheels may need, with names and paths only.
        unproved: reason why symbols cannot be compared; empty when they can.
    """

    name: str
    libraries: Mapping[str, RocmLibrary]
    unproved: str = ""

    @classmethod
    def of(cls, manifest: RocmManifest | None, wheel_set: WheelSet) -> _ReferenceRocm:
        """Return the ROCm of a manifest, or the declared libraries of the set's version."""
        if manifest is not None:
            weak = _WEAK_MANIFEST if manifest.weak else ""
            return cls(name=f"ROCm {manifest.rocm_version}", libraries=manifest.libraries, unproved=weak)
        sonames = layouts.allowed_sonames(RocmVersion(text=wheel_set.rocm_version))
        declared = {name: RocmLibrary(soname=name, path=_usual_path(name), symbols={}) for name in sorted(sonames)}
        return cls(name=f"ROCm {wheel_set.rocm_version}", libraries=declared, unproved=_NO_MANIFEST)


def _usual_path(soname: str) -> str:
    """Return the usual path of a library in a ROCm tree (TheRock, build_tools/_therock_utils/py_packaging.py)."""
    folder = "lib/rocm_sysdeps/lib" if soname.startswith("librocm_sysdeps_") else "lib"
    return f"{folder}/{soname}"


def _run(context: GateContext, manifest: RocmManifest | None) -> Iterator[Check]:
    rocm = _ReferenceRocm.of(manifest, context.wheel_set)
    members: list[ElfMember] = []
    for wheel in context.wheel_set.wheels:
        read = read_members(context, wheel)
        members += read
        if not read:
            yield Check(name=f"{wheel.filename}: platform", details={"libraries": 0})
        yield from (Check(name=f"{member.name}: platform", findings=member.findings) for member in read)
    readable = [member for member in members if member.elf is not None]
    yield from _rocm_checks(context.wheel_set, readable, rocm)
    targets = [GfxTarget.parse(target) for target in context.wheel_set.targets]
    for version in context.wheel_set.python_versions:
        context.progress.step(f"load the libraries for Python {version} from every layout of {rocm.name}")
        installed = _installed_together(context.wheel_set, readable, version)
        system, suffix = platform_libraries(PLATFORM), f", Python {version}"
        yield from layout_checks(installed, rocm.libraries.values(), targets, system=system, suffix=suffix)


def _rocm_checks(wheel_set: WheelSet, members: Sequence[ElfMember], rocm: _ReferenceRocm) -> Iterator[Check]:
    """Check NEEDED and symbols of each library once, with the wheels of the first Python that installs it."""
    system, checked = platform_libraries(PLATFORM), set[str]()
    rocm_exports = {name: LibraryExports.of_library(library, rocm.name) for name, library in rocm.libraries.items()}
    for version in wheel_set.python_versions:
        installed = _installed_together(wheel_set, members, version)
        exports = {**rocm_exports, **_exports(installed)}
        for member in (member for member in installed if member.name not in checked):
            checked.add(member.name)
            assert member.elf is not None
            findings = list(unmet_needs(member.elf, system, exports, rocm.name))
            if not rocm.unproved:
                findings += unmet_symbols(member.elf, exports, system, rocm.name)
            yield Check(name=f"{member.name}: {rocm.name}", findings=tuple(map(member.named, findings)))
    if rocm.unproved:
        unknown = Finding(code="rocm-unknown", severity=Severity.WARNING, message=rocm.unproved, remedy=_ADD_MANIFEST)
        yield Check(name=f"symbols of {rocm.name}", skipped=f"{rocm.unproved} {_ADD_MANIFEST}", findings=(unknown,))


def _installed_together(wheel_set: WheelSet, members: Sequence[ElfMember], version: str) -> list[ElfMember]:
    """Return the libraries that one Python installs."""
    names = {wheel.filename for wheel in wheels_for(wheel_set, version)}
    return [member for member in members if member.wheel.filename in names]


def _exports(members: Sequence[ElfMember]) -> dict[str, LibraryExports]:
    """Return the exports of the wheels' libraries by soname and by file name; the loader uses both."""
    exports: dict[str, LibraryExports] = {}
    for member in members:
        assert member.elf is not None
        for name in (member.elf.soname, PurePosixPath(member.path).name):
            if name:
                exports[name] = LibraryExports.of_elf(member.elf, name, member.wheel.filename)
    return exports
