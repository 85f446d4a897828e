"""The ABI gate: check that the libraries of a set can be loaded, without running them.

Each library is compared with manylinux_2_28 (auditwheel's policy, the history of libstdc++) and with the manifest of
a ROCm, and loading it is simulated for every installation layout of ROCm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from core import layouts
from core.model import GfxTarget, RocmVersion, Tier, WheelSet
from promotion.gates.abi.layouts import layout_checks
from promotion.gates.abi.members import PLATFORM, ElfMember, read_members
from promotion.gates.abi.symbols import LibraryExports, unmet_needs, unmet_symbols
from promotion.gates.common.gate import Check, Gate, GateContext, warning
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


def _reference_rocm(manifest: RocmManifest | None, wheel_set: WheelSet) -> tuple[RocmManifest, str]:
    """Return the ROCm that a set is compared with, and the reason if symbols cannot be compared.

    Without a manifest these are the libraries that wheels may need, with names and paths only.
    """
    if manifest is not None:
        return manifest, _WEAK_MANIFEST if manifest.weak else ""
    declared = {}
    for name in sorted(layouts.allowed_sonames(RocmVersion(text=wheel_set.rocm_version))):
        # TheRock, build_tools/_therock_utils/py_packaging.py.
        folder = "lib/rocm_sysdeps/lib" if name.startswith("librocm_sysdeps_") else "lib"
        declared[name] = RocmLibrary(soname=name, path=f"{folder}/{name}", symbols={})
    return RocmManifest(rocm_version=wheel_set.rocm_version, libraries=declared, weak=True), _NO_MANIFEST


def _run(context: GateContext, manifest: RocmManifest | None) -> Iterator[Check]:
    rocm, unproved = _reference_rocm(manifest, context.wheel_set)
    members: list[ElfMember] = []
    for wheel in context.wheel_set.wheels:
        checks, read = read_members(context, wheel)
        members += read
        yield from checks
    yield from _rocm_checks(context.wheel_set, members, rocm, unproved)
    targets = [GfxTarget.parse(target) for target in context.wheel_set.targets]
    for version in context.wheel_set.python_versions:
        context.progress.step(f"load the libraries for Python {version} from every layout of ROCm {rocm.rocm_version}")
        installed = _installed_together(context.wheel_set, members, version)
        system, suffix = platform_libraries(PLATFORM), f", Python {version}"
        yield from layout_checks(installed, rocm.libraries.values(), targets, system=system, suffix=suffix)


def _rocm_checks(
    wheel_set: WheelSet, members: Sequence[ElfMember], rocm: RocmManifest, unproved: str
) -> Iterator[Check]:
    """Check NEEDED and symbols of each library once, with the wheels of the first Python that installs it."""
    system, checked, rocm_name = platform_libraries(PLATFORM), set[str](), f"ROCm {rocm.rocm_version}"
    rocm_exports = {
        name: LibraryExports.of(name, rocm_name, library.symbols, library.needed)
        for name, library in rocm.libraries.items()
    }
    for version in wheel_set.python_versions:
        installed = _installed_together(wheel_set, members, version)
        exports = {**rocm_exports, **_exports(installed)}
        for member in (member for member in installed if member.name not in checked):
            checked.add(member.name)
            findings = list(unmet_needs(member.elf, system, exports, rocm_name))
            if not unproved:
                findings += unmet_symbols(member.elf, exports, system, rocm_name)
            yield Check(name=f"{member.name}: {rocm_name}", findings=tuple(map(member.named, findings)))
    if unproved:
        unknown = warning("rocm-unknown", unproved, _ADD_MANIFEST)
        yield Check(name=f"symbols of {rocm_name}", skipped=f"{unproved} {_ADD_MANIFEST}", findings=(unknown,))


def _installed_together(wheel_set: WheelSet, members: Sequence[ElfMember], version: str) -> list[ElfMember]:
    """Return the libraries that one Python installs."""
    names = {wheel.filename for wheel in wheels_for(wheel_set, version)}
    return [member for member in members if member.wheel.filename in names]


def _exports(members: Sequence[ElfMember]) -> dict[str, LibraryExports]:
    """Return the exports of the wheels' libraries by soname and by file name; the loader uses both."""
    exports: dict[str, LibraryExports] = {}
    for member in members:
        for name in (member.elf.soname, PurePosixPath(member.path).name):
            if name:
                elf = member.elf
                exports[name] = LibraryExports.of(name, member.wheel.filename, elf.offered, elf.needed)
    return exports
