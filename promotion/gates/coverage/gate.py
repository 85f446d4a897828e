"""The coverage gate: each library holds exactly the device code that the set promises, all of it sound and complete."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from core.errors import ElfError, FatbinError
from core.model import Finding, GfxTarget, RocmVersion, Severity, Tier, Wheel, WheelSet
from core.targets import lists, machs
from promotion.gates.common.gate import Check, Gate, GateContext, error
from promotion.gates.coverage import kernel_coverage
from promotion.gates.coverage.kernel_rules import RULES_FILE, KernelRule, load_rules, missing, rules_for
from promotion.policy.policy import device_members_digest, load_policy
from promotion.policy.set_rules import missing_targets, unused_targets
from promotion.storage.bucket import sha256_of
from wheelkit.archive.reader import WheelArchive
from wheelkit.findings import finding
from wheelkit.gpu.fatbin import fatbin_kernels, read_targets
from wheelkit.gpu.registration import RegisteredKernels, registered_kernels

_MAGIC = b"\x7fELF"
_SHOWN = 3
"""Kernels that a finding names; there can be thousands."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _LibraryCode:
    """What one library holds.

    Attributes:
        promised: targets that wheels.json says it holds; empty when it says that there is no device code.
        owed: the policy says that it must have code for every target.
        code: target -> bytes of code objects.
        damage: errors in its fat binaries.
        registered: what its host code registers, per bundle.
        kernels: address of a bundle -> target -> kernels that it has code for; empty when it is damaged.
    """

    wheel: str
    path: str
    promised: tuple[str, ...]
    owed: bool
    code: Mapping[str, int]
    damage: tuple[Finding, ...] = ()
    registered: tuple[RegisteredKernels, ...] = ()
    kernels: Mapping[int, Mapping[str, Collection[str]]]

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.wheel}: {self.path}"


def run(context: GateContext) -> Iterator[Check]:
    """For each target: one check for each library with code, and one for XLA; one for each library with stray code."""
    owed, rules, looked = _owed(context), load_rules(), False
    for wheel in context.wheel_set.wheels:
        if not owed.get(wheel.name) and not any(member.targets for member in wheel.members):
            continue
        served: Mapping[str, tuple[str, ...]] = {}
        if kernel_coverage.is_kernel_wheel(context, wheel):
            yield from kernel_coverage.checks(context, wheel)
            served = kernel_coverage.served(context, wheel)
        context.progress.step(f"device code of {wheel.filename}")
        for library in _libraries(context, wheel, owed.get(wheel.name, ())):
            targets = served.get(library.path, context.targets)
            checks = tuple(
                _checks(library, context.wheel_set, targets, rules_for(rules, context.wheel_set, library.path))
            )
            looked = looked or bool(checks)
            yield from checks
    yield from (_accepted(target) for target in context.targets if looked)


GATE = Gate(
    name="coverage",
    tier=Tier.STRUCTURE,
    per_target=True,
    run=run,
    settings={RULES_FILE.name: sha256_of(RULES_FILE), "device_members": device_members_digest()},
)


def _owed(context: GateContext) -> Mapping[str, tuple[str, ...]]:
    """Project -> libraries that must have code for every target, as the policy says."""
    major = str(RocmVersion(text=context.wheel_set.rocm_version).major)
    return {
        project.replace("{major}", major): tuple(path.replace("{major}", major) for path in paths)
        for project, paths in load_policy(context.staged.index).device_members.items()
    }


def _libraries(context: GateContext, wheel: Wheel, owed: Collection[str]) -> Iterator[_LibraryCode]:
    # Code objects that are files of their own belong to a wheel of kernel modules, whose manifest names them.
    promised = {member.path: member.targets for member in wheel.members if not member.path.endswith(".co")}
    with WheelArchive(context.wheel(wheel)) as archive:
        present = [member.name for member in archive.members if _is_library(archive, member.name)]
        for path in present:
            out = context.work / "library.so"
            archive.extract(path, out)
            yield _read(out, wheel.filename, path, promised.get(path, ()), owed=path in owed)
            out.unlink()
    for path in sorted({*(path for path, held in promised.items() if held), *owed} - set(present)):
        held = promised.get(path, ())
        yield _LibraryCode(wheel=wheel.filename, path=path, promised=held, owed=path in owed, code={}, kernels={})


def _read(file: Path, wheel: str, path: str, promised: tuple[str, ...], *, owed: bool) -> _LibraryCode:
    """Look into an unpacked library; its kernels are read only where some are registered."""
    report = read_targets(file, verify=True, machs=machs(), name=path)
    errors = (item for item in report.findings if item.severity is Severity.ERROR)
    damage = [replace(item, message=f"{wheel}: {item.message}") for item in errors]
    host: tuple[RegisteredKernels, ...] = ()
    held: Mapping[int, Mapping[str, Collection[str]]] = {}
    try:
        host = registered_kernels(file)
        held = fatbin_kernels(file, name=path) if host and not damage else {}
    except (ElfError, FatbinError) as error:
        text = f"{wheel}: {error}".replace(file.name, path)  # some of them know only the unpacked file
        damage.append(finding("code-object-wrong", text, member=path))
    return _LibraryCode(
        wheel=wheel,
        path=path,
        promised=promised,
        owed=owed,
        code={code.target: code.code_bytes for code in report.device.targets if code.code_bytes},
        damage=tuple(damage),
        registered=host,
        kernels=held,
    )


def _is_library(archive: WheelArchive, name: str) -> bool:
    return not name.endswith(".co") and next(iter(archive.chunks(name)), b"").startswith(_MAGIC)


def _checks(
    library: _LibraryCode, wheel_set: WheelSet, targets: Iterable[str], rules: Sequence[KernelRule]
) -> Iterator[Check]:
    """The checks of one library: for each target all its code is there, and nothing else is."""
    stray = _stray(library, wheel_set.targets)
    if not (library.promised or library.owed):
        if stray or library.damage:
            yield Check(name=library.name, findings=(*library.damage, *stray))
        return
    for target in targets:
        findings = [*library.damage, *stray, *_unread(library)]
        if missing_targets(library.code, [target]):
            text = f"{library.name} has no code for {target}."
            findings.append(finding("target-missing", text, member=library.path))
        elif not library.damage:
            findings += _kernels(library, target, missing(library.registered, library.kernels, target, rules))
        serving = {t: size for t, size in library.code.items() if not missing_targets([t], [target])}
        details = {"code_bytes": serving, "kernels": sum(len(bundle.kernels) for bundle in library.registered)}
        yield Check(name=library.name, findings=tuple(findings), target=target, details=details)


def _stray(library: _LibraryCode, targets: tuple[str, ...]) -> tuple[Finding, ...]:
    """Code that was not asked for, or not promised, and promised code that is not there."""
    extra = unused_targets(library.code, targets)
    findings = [finding("target-extra", f"{library.name} has code for {t}.", member=library.path) for t in extra]
    if set(library.code) != set(library.promised):
        has, says = (", ".join(sorted(group)) or "nothing" for group in (library.code, library.promised))
        text = f"{library.name} has code for {has}; wheels.json says {says}."
        findings.append(error("wheels-json-untrue", text, "Build and stage the set again.", member=library.path))
    return tuple(findings)


def _kernels(library: _LibraryCode, target: str, lost: tuple[str, ...]) -> Iterator[Finding]:
    """Kernels that fail at their first launch."""
    if lost:
        some = ", ".join(lost[:_SHOWN]) + (", ..." if len(lost) > _SHOWN else "")
        count = f"{len(lost)} registered kernel{'s' if len(lost) > 1 else ''}"
        text = f"{library.name} has no code for {target} of {count}: {some}."
        remedy = f"Build it again for {target}, or say in {RULES_FILE.name} why {target} does not need them."
        yield error("kernel-missing", text, remedy, member=library.path)


def _unread(library: _LibraryCode) -> Iterator[Finding]:
    """What could not be looked at, since the host code has another form than expected."""
    known = {bundle.address for bundle in library.registered}
    silent = len(library.kernels.keys() - known) if known else 0
    names = sum(bundle.unread for bundle in library.registered)
    if silent or names:
        text = f"{library.name}: who registers {silent} bundles, and the names of {names} kernels, cannot be told."
        remedy = "Compare wheelkit/gpu/registration.py with what the compiler makes of a module constructor now."
        yield Finding(
            code="kernels-unread", severity=Severity.WARNING, message=text, remedy=remedy, member=library.path
        )


def _accepted(target: str) -> Check:
    """Whether XLA runs on a target at all; its list changes with JAX, so that this is no error."""
    refused = unused_targets([GfxTarget.parse(target).processor], lists()["compiler-supported"])
    text = f"XLA refuses {target} at run time: nobody can use the code for it."
    findings = (finding("target-refused", text),) if refused else ()
    return Check(name=f"XLA accepts {target}", target=target, findings=findings)
