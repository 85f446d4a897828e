"""The ABI gate: whether the libraries of a set can be loaded, by what they want and what others offer; nothing runs.

Each library is compared with manylinux_2_28 (auditwheel's policy, the history of libstdc++) and with the manifest of
a ROCm, and its loading is simulated for every way in which ROCm may be installed.
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

_NONE = f"The set has no {ROCM_MANIFEST}, so nobody knows what its ROCm exports; symbols were not compared."
_WEAK = "The manifest was made from what wheels need, which proves nothing about a ROCm; symbols were not compared."
_MAKE_ONE = (
    "Make one from that ROCm with `ci_build rocm manifest PATH` and build the set with --rocm-manifest, or give this "
    "gate --rocm PATH."
)


def make_gate(manifest: RocmManifest | None = None) -> Gate:
    """The gate.

    Args:
        manifest: what the ROCm exports that the set shall run with; None takes the one that the set carries.
    """

    def run(context: GateContext) -> Iterator[Check]:
        return _run(context, manifest or set_manifest(context))

    told = manifest_digest(manifest) if manifest is not None else "the set's own"
    settings = {"manifest": told, "platform": PLATFORM}
    return Gate(name="abi", tier=Tier.STRUCTURE, per_target=False, run=run, settings=settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class _ReferenceRocm:
    """The ROCm that a set is compared with.

    Attributes:
        name: for people.
        libraries: what it brings; without a manifest those that wheels for it may need, of which only names and
            places are known.
        unproved: why symbols cannot be compared; empty when they can.
    """

    name: str
    libraries: Mapping[str, RocmLibrary]
    unproved: str = ""

    @classmethod
    def of(cls, manifest: RocmManifest | None, wheel_set: WheelSet) -> _ReferenceRocm:
        """Of a manifest, or of what is declared for the set's version."""
        if manifest is not None:
            weak = _WEAK if manifest.weak else ""
            return cls(name=f"ROCm {manifest.rocm_version}", libraries=manifest.libraries, unproved=weak)
        sonames = layouts.allowed_sonames(RocmVersion(text=wheel_set.rocm_version))
        declared = {name: RocmLibrary(soname=name, path=_place(name), symbols={}) for name in sorted(sonames)}
        return cls(name=f"ROCm {wheel_set.rocm_version}", libraries=declared, unproved=_NONE)


def _place(soname: str) -> str:
    """Where a library is in a ROCm tree, as a rule (TheRock, build_tools/_therock_utils/py_packaging.py)."""
    folder = "lib/rocm_sysdeps/lib" if soname.startswith("librocm_sysdeps_") else "lib"
    return f"{folder}/{soname}"


def _run(context: GateContext, manifest: RocmManifest | None) -> Iterator[Check]:
    rocm = _ReferenceRocm.of(manifest, context.wheel_set)
    members: list[ElfMember] = []
    for wheel in context.wheel_set.wheels:
        found = read_members(context, wheel)
        members += found
        if not found:
            yield Check(name=f"{wheel.filename}: platform", details={"libraries": 0})
        yield from (Check(name=f"{member.name}: platform", findings=member.findings) for member in found)
    readable = [member for member in members if member.elf is not None]
    yield from _rocm_checks(context.wheel_set, readable, rocm)
    targets = [GfxTarget.parse(target) for target in context.wheel_set.targets]
    for version in context.wheel_set.python_versions:
        context.progress.step(f"load the libraries for Python {version} from every layout of {rocm.name}")
        together = _together(context.wheel_set, readable, version)
        system, suffix = platform_libraries(PLATFORM), f", Python {version}"
        yield from layout_checks(together, rocm.libraries.values(), targets, system=system, suffix=suffix)


def _rocm_checks(wheel_set: WheelSet, members: Sequence[ElfMember], rocm: _ReferenceRocm) -> Iterator[Check]:
    """NEEDED and symbols of each library, once, beside the wheels of the first Python that installs it."""
    system, done = platform_libraries(PLATFORM), set[str]()
    theirs = {name: LibraryExports.of_library(library, rocm.name) for name, library in rocm.libraries.items()}
    for version in wheel_set.python_versions:
        together = _together(wheel_set, members, version)
        offers = {**theirs, **_offers(together)}
        for member in (member for member in together if member.name not in done):
            done.add(member.name)
            assert member.elf is not None
            findings = list(unmet_needs(member.elf, system, offers, rocm.name))
            if not rocm.unproved:
                findings += unmet_symbols(member.elf, offers, system, rocm.name)
            yield Check(name=f"{member.name}: {rocm.name}", findings=tuple(map(member.named, findings)))
    if rocm.unproved:
        told = Finding(code="rocm-unknown", severity=Severity.WARNING, message=rocm.unproved, remedy=_MAKE_ONE)
        yield Check(name=f"symbols of {rocm.name}", skipped=f"{rocm.unproved} {_MAKE_ONE}", findings=(told,))


def _together(wheel_set: WheelSet, members: Sequence[ElfMember], version: str) -> list[ElfMember]:
    """The libraries that one Python installs."""
    names = {wheel.filename for wheel in wheels_for(wheel_set, version)}
    return [member for member in members if member.wheel.filename in names]


def _offers(members: Sequence[ElfMember]) -> dict[str, LibraryExports]:
    """What the libraries of the wheels offer, by soname and by file name: the loader goes by both."""
    offers: dict[str, LibraryExports] = {}
    for member in members:
        assert member.elf is not None
        for name in (member.elf.soname, PurePosixPath(member.path).name):
            if name:
                offers[name] = LibraryExports.of_elf(member.elf, name, member.wheel.filename)
    return offers
