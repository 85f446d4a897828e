"""The coverage gate.

Each library contains the device code that the set promises, intact and complete.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import chain
from pathlib import Path

from core.digests import sha256_of
from core.errors import ArchiveError
from core.frozen import frozen
from core.model import Finding, GfxTarget, RocmVersion, Severity, Tier, Wheel, WheelSet
from promotion.gates.common.gate_context import Check, Gate, GateContext, error, warning
from promotion.gates.common.libraries import SharedLibraries
from promotion.gates.coverage.kernel_rules import (
    RULES_FILE,
    KernelRule,
    foreign_targets,
    missing_kernels,
    rules_for,
)
from promotion.policy.promotion_policy import device_members_digest, load_policy
from promotion.policy.set_rules import missing_targets, unused_targets
from wheelkit import kernel_wheel
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.elf.constants import MAGIC
from wheelkit.findings import finding
from wheelkit.gpu.fatbin import FatbinReport
from wheelkit.gpu.launch_stub import name_problems, stub_problems
from wheelkit.gpu.registration import (
    RegisteredKernels,
    registered_kernels,
    registration_problems,
)
from wheelkit.kernel_wheel import KernelManifest

_SHOWN = 3
"""Maximum number of kernels that a finding names."""
_NEVER_REGISTERED = re.compile("rocprim")
"""Kernels that host code need not register.

RocPRIM compiles some for the configurations of other GPUs.
"""
_REBUILD = "Build and stage the set again."


@frozen
class _LibraryCode:
    """Device code of one library.

    Attributes:
        promised: targets in wheels.json; empty for a library without device code.
        owed: whether the policy requires code for every target.
        code: target -> size of the code objects in bytes.
        damage: errors in the library's fat binaries and in their registration.
        registered: kernels that the library's host code registers, per bundle.
        kernels: address of a bundle -> target -> kernels with code; empty when the
            library is damaged.
    """

    wheel: str
    path: str
    promised: tuple[str, ...]
    owed: bool
    code: Mapping[str, int] = field(default_factory=dict)
    damage: tuple[Finding, ...] = ()
    registered: tuple[RegisteredKernels, ...] = ()
    kernels: Mapping[int, Mapping[str, Collection[str]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the display name."""
        return f"{self.wheel}: {self.path}"


def run(context: GateContext) -> Iterator[Check]:
    """Yield for each target the checks of device libraries."""
    major = str(RocmVersion(text=context.wheel_set.rocm_version).major)
    # Project -> libraries that must have code for every target by policy.
    owed = {}
    for project, paths in load_policy(context.staged.index).device_members.items():
        own = tuple(path.replace("{major}", major) for path in paths)
        owed[project.replace("{major}", major)] = own
    for wheel in context.wheel_set.wheels:
        if not owed.get(wheel.name) and not wheel.targets:
            continue
        targets_by_library: Mapping[str, tuple[str, ...]] = {}
        with WheelArchive(context.wheel(wheel)) as archive:
            if kernel_wheel.is_kernel_wheel(archive):
                modules, targets_by_library = _check_modules(context, wheel, archive)
                yield from modules
            context.progress.step(f"device code of {wheel.filename}")
            for library in _libraries(
                context, wheel, archive, owed.get(wheel.name, ())
            ):
                targets = targets_by_library.get(library.path, context.targets)
                own_rules = rules_for(context.wheel_set, library.path)
                yield from _checks(library, context.wheel_set, targets, own_rules)


GATE = Gate(
    name="coverage",
    tier=Tier.STRUCTURE,
    per_target=True,
    run=run,
    settings={
        RULES_FILE.name: sha256_of(RULES_FILE),
        "device_members": device_members_digest(),
    },
)


def _libraries(
    context: GateContext, wheel: Wheel, archive: WheelArchive, owed: Collection[str]
) -> Iterator[_LibraryCode]:
    # Separate code object files belong to wheels of kernel modules, whose manifest
    # names them.
    promised: dict[str, tuple[str, ...]] = {}
    for member in wheel.members:
        if not member.path.endswith(".co"):
            promised[member.path] = member.targets
    shared = SharedLibraries(context, wheel)
    present: list[str] = []
    for item in archive.members:
        is_elf = archive.head(item.name).startswith(MAGIC)
        if is_elf and not item.name.endswith(".co"):
            present.append(item.name)
    expected = {*owed, *(path for path, targets in promised.items() if targets)}
    for path in (*present, *sorted(expected.difference(present))):
        library = _LibraryCode(
            wheel=wheel.filename,
            path=path,
            promised=promised.get(path, ()),
            owed=path in owed,
        )
        if path in present:
            file = shared.unpack(archive, path)
            report = shared.device_code(archive, path)
            debug = context.debug_file(wheel, path) if library.promised else None
            library = _read(library, file, report, debug)
        yield library


def _read(
    library: _LibraryCode, file: Path, report: FatbinReport, debug: Path | None
) -> _LibraryCode:
    """Compare the device code of an unpacked library with its host code.

    `debug` has its symbol table.
    """
    wheel = library.wheel
    errors = (item for item in report.findings if item.severity is Severity.ERROR)
    damage = [replace(item, message=f"{wheel}: {item.message}") for item in errors]
    host = registered_kernels(file)
    bundles = {bundle.address for bundle in report.bundles}
    missing = registration_problems(file, bundles)[:_SHOWN]
    wrong = _wrong_registrations(file, host, report.arguments, debug)
    # Modules of kernel libraries may have more kernels than they register.
    if wheel.startswith("jax_rocm") and not (damage or missing or wrong):
        missing = _unregistered(host, report.kernels)
    for code, clauses in (
        ("registration-missing", missing),
        ("registration-wrong", wrong),
    ):
        for clause in clauses:
            text = f"{library.name} {clause}."
            damage.append(finding(code, text, member=library.path))
    for names in foreign_targets(library.path, report.alike):
        text = (
            f"{library.name} has the same machine code for {' and '.join(names)}, which"
            " differs in published wheels."
        )
        damage.append(finding("code-object-wrong", text, member=library.path))
    return replace(
        library,
        code={
            code.target: code.code_bytes
            for code in report.device.targets
            if code.code_bytes
        },
        damage=tuple(damage),
        registered=host,
        kernels={} if damage else report.kernels,
    )


def _wrong_registrations(
    file: Path,
    host: Sequence[RegisteredKernels],
    arguments: Mapping[int, Mapping[str, int]],
    debug: Path | None,
) -> list[str]:
    """Return a clause for the first kernels registered or launched for others."""
    repeated = chain.from_iterable(sorted(bundle.repeated) for bundle in host)
    problems = [f"registers kernel {kernel} twice" for kernel in repeated]
    problems += stub_problems(file, host, arguments)
    if debug is not None and host:
        problems += name_problems(debug, host)
    return problems[:_SHOWN]


def _unregistered(
    host: Sequence[RegisteredKernels],
    kernels: Mapping[int, Mapping[str, frozenset[str]]],
) -> list[str]:
    """Return a clause about kernels in the code of a library that it does not register with HIP.

    Libraries with a registration that cannot be read are skipped.
    """
    if not host or any(bundle.unread for bundle in host):
        return []
    known = _registrable(chain.from_iterable(bundle.kernels for bundle in host))
    code: dict[str, set[str]] = {}
    for targets in kernels.values():
        for target, names in targets.items():
            code.setdefault(target, set()).update(names)
    # If the code lacks a registered kernel, it is reported as missing; the code may
    # have it under another name.
    complete = [names for names in map(_registrable, code.values()) if known <= names]
    lost = sorted(frozenset[str]().union(*complete) - known)
    if not lost:
        return []
    count = "a kernel" if len(lost) == 1 else f"{len(lost)} kernels"
    some = ", ".join(lost[:_SHOWN])
    return [f"has code of {count} that it does not register with HIP: {some}"]


def _registrable(kernels: Iterable[str]) -> frozenset[str]:
    return frozenset(
        kernel for kernel in kernels if not _NEVER_REGISTERED.search(kernel)
    )


def _missing(library: _LibraryCode, target: str, names: Sequence[str]) -> Finding:
    """Return the finding on registered kernels that have no code."""
    some = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    count = f"{len(names)} registered kernel{'s' if len(names) > 1 else ''}"
    bundles = library.kernels.values()
    in_any = frozenset[str]().union(*(held.get(target, ()) for held in bundles))
    if in_any.issuperset(names):
        text = (
            f"{library.name} names another bundle than that with the {target} code of"
            f" {count}: {some}."
        )
        return finding("registration-wrong", text, member=library.path)
    text = f"{library.name} has no code for {target} of {count}: {some}."
    remedy = (
        f"Build the library again for {target}, or add the reason why {target} does not"
        f" need the kernels to {RULES_FILE.name}."
    )
    return error("kernel-missing", text, remedy, member=library.path)


def _checks(
    library: _LibraryCode,
    wheel_set: WheelSet,
    targets: Iterable[str],
    rules: Sequence[KernelRule],
) -> Iterator[Check]:
    """Yield the checks of one library: complete code for each target, and no other code."""
    unexpected = _unexpected_code(library, wheel_set.targets)
    if not (library.promised or library.owed):
        if unexpected or library.damage:
            yield Check(name=library.name, findings=(*library.damage, *unexpected))
        return
    for target in targets:
        findings = [*library.damage, *unexpected, *_unread_kernels(library)]
        if missing_targets(library.code, [target]):
            text = f"{library.name} has no code for {target}."
            findings.append(finding("target-missing", text, member=library.path))
        elif not library.damage and (
            names := missing_kernels(library.registered, library.kernels, target, rules)
        ):
            findings.append(_missing(library, target, names))
        serving = {
            own: size
            for own, size in library.code.items()
            if not missing_targets([own], [target])
        }
        kernels = sum(len(bundle.kernels) for bundle in library.registered)
        details = {"code_bytes": serving, "kernels": kernels}
        yield Check(
            name=library.name, findings=tuple(findings), target=target, details=details
        )


def _unexpected_code(
    library: _LibraryCode, targets: tuple[str, ...]
) -> tuple[Finding, ...]:
    """Return findings about code that was not requested, and about differences from wheels.json."""
    findings = []
    for extra in unused_targets(library.code, targets):
        text = f"{library.name} has code for {extra}."
        findings.append(finding("target-extra", text, member=library.path))
    if set(library.code) != set(library.promised):
        has = ", ".join(sorted(library.code)) or "nothing"
        recorded = ", ".join(sorted(library.promised)) or "nothing"
        text = f"{library.name} has code for {has}; wheels.json has {recorded}."
        findings.append(
            error("wheels-json-untrue", text, _REBUILD, member=library.path)
        )
    return tuple(findings)


def _unread_kernels(library: _LibraryCode) -> Iterator[Finding]:
    """Yield a warning if the form of the host code hides its kernels."""
    registered = {bundle.address for bundle in library.registered}
    unknown = len(library.kernels.keys() - registered) if registered else 0
    names = sum(bundle.unread for bundle in library.registered)
    if unknown or names:
        text = (
            f"{library.name}: cannot read the registration of {unknown} bundles and the"
            f" names of {names} kernels."
        )
        remedy = (
            "Compare wheelkit/gpu/registration.py with the module constructors that the"
            " compiler generates."
        )
        yield warning("kernels-unread", text, remedy, member=library.path)


def _check_modules(
    context: GateContext, wheel: Wheel, archive: WheelArchive
) -> tuple[list[Check], Mapping[str, tuple[str, ...]]]:
    """Check the modules of a wheel for each target.

    Returns:
        A check for each module and target, and a check of the wheel if it has other
        findings; and library -> targets of the set that the library's module supports,
        empty if the manifest cannot be read.
    """
    context.progress.step(f"kernels of {wheel.filename}")
    problems = kernel_wheel.check_kernel_wheel(archive, {})
    promised = {member.path: member.targets for member in wheel.members}
    objects = kernel_wheel.member_infos(
        archive, kernel_wheel.code_objects(archive), archive.record()
    )
    try:
        manifest = kernel_wheel.read_manifest(archive)
    except ArchiveError:
        return [Check(name=wheel.filename, findings=problems)], {}
    errors = [
        item
        for item in problems
        if item.severity is Severity.ERROR and item.code != "target-missing"
    ]
    for info in objects:
        if promised.get(info.path, ()) != info.targets:
            recorded = ", ".join(promised.get(info.path, ())) or "nothing"
            target = ", ".join(info.targets) or "an unknown target"
            text = f"{info.path} is code for {target}; wheels.json has {recorded}."
            errors.append(error("wheels-json-untrue", text, _REBUILD, member=info.path))
    checks = [Check(name=wheel.filename, findings=tuple(errors))] if errors else []
    for target in context.targets:
        checks += _modules(wheel, manifest, target)
    targets_by_library: dict[str, tuple[str, ...]] = {}
    for module in manifest.modules:
        targets_by_library[module.library] = tuple(
            target
            for target in context.targets
            if GfxTarget.parse(target).processor in module.targets
        )
    return checks, targets_by_library


def _modules(wheel: Wheel, manifest: KernelManifest, target: str) -> Iterator[Check]:
    processor = GfxTarget.parse(target).processor
    if processor not in manifest.targets:
        text = (
            f"{wheel.filename} was not built for {target}, only for"
            f" {', '.join(manifest.targets)}."
        )
        unbuilt = finding("target-missing", text)
        yield Check(name=wheel.filename, target=target, findings=(unbuilt,))
        return
    missing = tuple(kernel_wheel.check_target(manifest, processor))
    for module in manifest.modules:
        if processor in module.targets:
            findings = tuple(item for item in missing if item.member == module.library)
            objects = len(module.objects.get(processor, {}))
            yield Check(
                name=f"{wheel.filename}: {module.name}",
                target=target,
                findings=findings,
                details={"kind": module.kind, "code_objects": objects},
            )
