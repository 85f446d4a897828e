"""The coverage gate: each library holds exactly the device code that the set promises, and all of it is sound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ci_build.model import Finding, Severity, Tier, Wheel
from ci_build.targets import machs
from ci_build.wheel.archive import WheelArchive
from ci_build.wheel.fatbin import read_targets
from ci_build.wheel.findings import finding
from promotion.gates import Check, Gate, Room, error
from promotion.policy import lacking, superfluous

_MAGIC = b"\x7fELF"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Library:
    """What one library holds.

    Attributes:
        promised: targets that wheels.json says it holds; empty when it says that there is no device code.
        code: target -> bytes of code objects.
        damage: errors in its fat binaries.
    """

    wheel: str
    path: str
    promised: tuple[str, ...]
    code: dict[str, int]
    damage: tuple[Finding, ...]


def run(room: Room) -> Iterator[Check]:
    """One check for each library and target, and one for each library that holds what nobody promised."""
    for wheel in room.wheel_set.wheels:
        if any(member.targets for member in wheel.members):
            room.progress.step(f"device code of {wheel.filename}")
            for library in _libraries(room, wheel):
                yield from _checks(library, room.wheel_set.targets)


GATE = Gate(name="coverage", tier=Tier.STRUCTURE, per_target=True, run=run)


def _libraries(room: Room, wheel: Wheel) -> Iterator[_Library]:
    promised = {member.path: member.targets for member in wheel.members}
    with WheelArchive(room.wheel(wheel)) as archive:
        present = [member.name for member in archive.members if _is_library(archive, member.name)]
        for path in present:
            out = room.work / "library.so"
            archive.extract(path, out)
            report = read_targets(out, verify=True, machs=machs(), name=path)
            out.unlink()
            yield _Library(
                wheel=wheel.filename,
                path=path,
                promised=promised.get(path, ()),
                code={code.target: code.code_bytes for code in report.device.targets},
                damage=tuple(item for item in report.findings if item.severity is Severity.ERROR),
            )
    for path in sorted(promised.keys() - set(present)):
        yield _Library(wheel=wheel.filename, path=path, promised=promised[path], code={}, damage=())


def _is_library(archive: WheelArchive, name: str) -> bool:
    return next(iter(archive.chunks(name)), b"").startswith(_MAGIC)


def _checks(library: _Library, targets: Iterable[str]) -> Iterator[Check]:
    """The checks of one library: for each target of the set its code is there, and nothing else is."""
    targets = tuple(targets)
    name = f"{library.wheel}: {library.path}"
    held = tuple(target for target, size in library.code.items() if size)
    stray = _stray(library, held, targets)
    if not library.promised:
        if stray or library.damage:
            yield Check(name=name, findings=(*library.damage, *stray))
        return
    for target in targets:
        findings = [*library.damage, *stray]
        if lacking(held, [target]):
            findings.append(finding("target-missing", f"{name} has no code for {target}.", member=library.path))
        serving = {t: library.code[t] for t in held if not lacking([t], [target])}
        yield Check(name=name, findings=tuple(findings), target=target, details={"code_bytes": serving})


def _stray(library: _Library, held: tuple[str, ...], targets: tuple[str, ...]) -> tuple[Finding, ...]:
    """Code that was not asked for, or not promised, and promised code that is not there."""
    name = f"{library.wheel}: {library.path}"
    extra = superfluous(held, targets)
    findings = [finding("target-extra", f"{name} has code for {t}.", member=library.path) for t in extra]
    if set(held) != set(library.promised):
        has, says = (", ".join(sorted(group)) or "nothing" for group in (held, library.promised))
        text = f"{name} has code for {has}; wheels.json says {says}."
        findings.append(error("wheels-json-untrue", text, "Build and stage the set again.", member=library.path))
    return tuple(findings)
