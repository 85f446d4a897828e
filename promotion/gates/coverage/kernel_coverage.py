"""Coverage of a wheel of kernel modules: the code that its manifest promises for each target.

Device code inside libraries is checked as in any other wheel, for the targets that the manifest names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from core.errors import ArchiveError
from core.model import Finding, GfxTarget, Severity, Wheel
from core.targets import machs
from promotion.gates.common.gate import Check, GateContext, error
from wheelkit import kernel_wheel
from wheelkit.archive.reader import WheelArchive
from wheelkit.findings import finding
from wheelkit.kernel_wheel import KernelManifest, PackagedModule


def is_kernel_wheel(context: GateContext, wheel: Wheel) -> bool:
    """Report whether a wheel of the set has a manifest of kernel modules."""
    with WheelArchive(context.wheel(wheel)) as archive:
        return kernel_wheel.is_kernel_wheel(archive)


def checks(context: GateContext, wheel: Wheel) -> Iterator[Check]:
    """Yield a check for each module and target, and one for the wheel if it has other findings."""
    context.progress.step(f"kernels of {wheel.filename}")
    with WheelArchive(context.wheel(wheel)) as archive:
        found = kernel_wheel.check_kernel_wheel(archive, machs(), {})
        promised = {member.path: member.targets for member in wheel.members}
        objects = kernel_wheel.member_infos(archive, kernel_wheel.code_objects(archive), archive.record(), machs())
        try:
            manifest = kernel_wheel.read_manifest(archive)
        except ArchiveError:
            yield Check(name=wheel.filename, findings=found)
            return
    errors = [item for item in found if item.severity is Severity.ERROR and item.code != "target-missing"]
    for info in objects:
        if promised.get(info.path, ()) != info.targets:
            recorded = ", ".join(promised.get(info.path, ())) or "nothing"
            text = (
                f"{info.path} is code for {', '.join(info.targets) or 'an unknown target'}; wheels.json has {recorded}."
            )
            errors.append(error("wheels-json-untrue", text, "Build and stage the set again.", member=info.path))
    if errors:
        yield Check(name=wheel.filename, findings=tuple(errors))
    yield from _modules(context, wheel, manifest)


def targets_by_library(context: GateContext, wheel: Wheel) -> Mapping[str, tuple[str, ...]]:
    """Return library -> targets of the set that its module supports; empty when the manifest cannot be read."""
    with WheelArchive(context.wheel(wheel)) as archive:
        try:
            manifest = kernel_wheel.read_manifest(archive)
        except ArchiveError:
            return {}
    return {
        module.library: tuple(t for t in context.targets if GfxTarget.parse(t).processor in module.targets)
        for module in manifest.modules
    }


def _modules(context: GateContext, wheel: Wheel, manifest: KernelManifest) -> Iterator[Check]:
    for target in context.targets:
        processor = GfxTarget.parse(target).processor
        if processor not in manifest.targets:
            text = f"{wheel.filename} was not built for {target}, only for {', '.join(manifest.targets)}."
            yield Check(name=wheel.filename, target=target, findings=(finding("target-missing", text),))
            continue
        missing = tuple(kernel_wheel.check_target(manifest, processor))
        for module in manifest.modules:
            if processor in module.targets:
                yield _module(wheel, module, target, [item for item in missing if item.member == module.library])


def _module(wheel: Wheel, module: PackagedModule, target: str, findings: list[Finding]) -> Check:
    files = module.objects.get(GfxTarget.parse(target).processor, {})
    details = {"kind": module.kind, "code_objects": len(files)}
    return Check(name=f"{wheel.filename}: {module.name}", target=target, findings=tuple(findings), details=details)
