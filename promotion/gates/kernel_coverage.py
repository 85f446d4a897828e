"""Coverage of a wheel of kernel modules: what its manifest promises for each target is there, sound and its own.

Device code inside of libraries is looked at as in any other wheel, for the targets that the manifest names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ci_build.errors import ArchiveError
from ci_build.model import Finding, GfxTarget, Severity, Wheel
from ci_build.targets import machs
from ci_build.wheel import kernelwheel
from ci_build.wheel.archive import WheelArchive
from ci_build.wheel.findings import finding
from ci_build.wheel.kernelwheel import KernelManifest, KernelModule
from promotion.gates import Check, Room, error


def is_kernel_wheel(room: Room, wheel: Wheel) -> bool:
    """Whether a wheel of the set has a manifest of kernel modules."""
    with WheelArchive(room.wheel(wheel)) as archive:
        return kernelwheel.is_kernel_wheel(archive)


def checks(room: Room, wheel: Wheel) -> Iterator[Check]:
    """One check for each module and target, and one for the wheel where something in it is not true."""
    room.progress.step(f"kernels of {wheel.filename}")
    with WheelArchive(room.wheel(wheel)) as archive:
        found = kernelwheel.findings(archive, machs(), {})
        told = {member.path: member.targets for member in wheel.members}
        held = kernelwheel.member_infos(archive, kernelwheel.code_objects(archive), archive.record(), machs())
        try:
            manifest = kernelwheel.read_manifest(archive)
        except ArchiveError:
            yield Check(name=wheel.filename, findings=found)
            return
    errors = [item for item in found if item.severity is Severity.ERROR and item.code != "target-missing"]
    for info in held:
        if told.get(info.path, ()) != info.targets:
            says = ", ".join(told.get(info.path, ())) or "nothing"
            text = f"{info.path} is code for {', '.join(info.targets) or 'an unknown target'}; wheels.json says {says}."
            errors.append(error("wheels-json-untrue", text, "Build and stage the set again.", member=info.path))
    if errors:
        yield Check(name=wheel.filename, findings=tuple(errors))
    yield from _modules(room, wheel, manifest)


def served(room: Room, wheel: Wheel) -> Mapping[str, tuple[str, ...]]:
    """Library -> targets of the set that its module is for; nothing where the manifest cannot be read."""
    with WheelArchive(room.wheel(wheel)) as archive:
        try:
            manifest = kernelwheel.read_manifest(archive)
        except ArchiveError:
            return {}
    return {
        module.library: tuple(t for t in room.targets if GfxTarget.parse(t).processor in module.targets)
        for module in manifest.modules
    }


def _modules(room: Room, wheel: Wheel, manifest: KernelManifest) -> Iterator[Check]:
    for target in room.targets:
        processor = GfxTarget.parse(target).processor
        if processor not in manifest.targets:
            text = f"{wheel.filename} was not built for {target}, only for {', '.join(manifest.targets)}."
            yield Check(name=wheel.filename, target=target, findings=(finding("target-missing", text),))
            continue
        lost = tuple(kernelwheel.target_findings(manifest, processor))
        for module in manifest.modules:
            if processor in module.targets:
                yield _module(wheel, module, target, [item for item in lost if item.member == module.library])


def _module(wheel: Wheel, module: KernelModule, target: str, findings: list[Finding]) -> Check:
    files = module.objects.get(GfxTarget.parse(target).processor, {})
    details = {"kind": module.kind, "code_objects": len(files)}
    return Check(name=f"{wheel.filename}: {module.name}", target=target, findings=tuple(findings), details=details)
