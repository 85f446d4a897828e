"""Coverage of a wheel of kernel modules: the code that its manifest promises for each target.

Device code inside libraries is checked as in any other wheel, for the targets that the manifest names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from core.errors import ArchiveError
from core.model import GfxTarget, Severity, Wheel
from core.targets import machs
from promotion.gates.common.gate import Check, GateContext, error
from wheelkit import kernel_wheel
from wheelkit.archive.reader import WheelArchive
from wheelkit.findings import finding
from wheelkit.kernel_wheel import KernelManifest


def check_modules(
    context: GateContext, wheel: Wheel, archive: WheelArchive
) -> tuple[list[Check], Mapping[str, tuple[str, ...]]]:
    """Check the modules of a wheel for each target.

    Returns:
        A check for each module and target and one for the wheel if it has other findings; and library -> targets of
        the set that its module supports, which is empty when the manifest cannot be read.
    """
    context.progress.step(f"kernels of {wheel.filename}")
    found = kernel_wheel.check_kernel_wheel(archive, machs(), {})
    promised = {member.path: member.targets for member in wheel.members}
    objects = kernel_wheel.member_infos(archive, kernel_wheel.code_objects(archive), archive.record(), machs())
    try:
        manifest = kernel_wheel.read_manifest(archive)
    except ArchiveError:
        return [Check(name=wheel.filename, findings=found)], {}
    errors = [item for item in found if item.severity is Severity.ERROR and item.code != "target-missing"]
    for info in objects:
        if promised.get(info.path, ()) != info.targets:
            recorded = ", ".join(promised.get(info.path, ())) or "nothing"
            target = ", ".join(info.targets) or "an unknown target"
            text = f"{info.path} is code for {target}; wheels.json has {recorded}."
            errors.append(error("wheels-json-untrue", text, "Build and stage the set again.", member=info.path))
    checks = [Check(name=wheel.filename, findings=tuple(errors))] if errors else []
    for target in context.targets:
        checks += _modules(wheel, manifest, target)
    targets_by_library = {
        module.library: tuple(t for t in context.targets if GfxTarget.parse(t).processor in module.targets)
        for module in manifest.modules
    }
    return checks, targets_by_library


def _modules(wheel: Wheel, manifest: KernelManifest, target: str) -> Iterator[Check]:
    processor = GfxTarget.parse(target).processor
    if processor not in manifest.targets:
        text = f"{wheel.filename} was not built for {target}, only for {', '.join(manifest.targets)}."
        yield Check(name=wheel.filename, target=target, findings=(finding("target-missing", text),))
        return
    missing = tuple(kernel_wheel.check_target(manifest, processor))
    for module in manifest.modules:
        if processor in module.targets:
            yield Check(
                name=f"{wheel.filename}: {module.name}",
                target=target,
                findings=tuple(item for item in missing if item.member == module.library),
                details={"kind": module.kind, "code_objects": len(module.objects.get(processor, {}))},
            )
