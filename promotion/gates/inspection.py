"""The inspection gate: every staged wheel is inspected, and wheels.json and the staged index tell the truth."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from core.errors import BucketError
from core.model import Finding, GfxTarget, MemberInfo, Severity, Tier, Wheel
from core.targets import covers, lists, machs
from promotion.gates.common.gate import Check, Gate, GateContext, error
from promotion.index.core_metadata import core_metadata
from promotion.index.pages import metadata_name
from promotion.storage.bucket import sha256_of
from promotion.storage.keys import project_pages
from wheelkit.findings import as_published
from wheelkit.inspect.inspect import inspect_wheel
from wheelkit.inspect.model import WheelReport, member_infos
from wheelkit.inspect.wheel_set import check_set

_UNTRUE = "Build and stage the set again."


def run(context: GateContext) -> Iterator[Check]:
    """One check for each wheel, one for the set, one for its index."""
    reports = []
    for wheel in context.wheel_set.wheels:
        path = context.wheel(wheel)
        report = _inspect(context, path)
        reports.append(report)
        findings = (*_counted(report, wheel), *_untrue_members(report, wheel))
        yield Check(name=wheel.filename, findings=findings, details=_summary(report))
    yield Check(name="set", findings=tuple(_placed(finding, "") for finding in check_set(reports)))
    yield Check(name="index", findings=tuple(_index_findings(context)))


GATE = Gate(name="inspection", tier=Tier.STRUCTURE, per_target=False, run=run)


def _inspect(context: GateContext, path: Path) -> WheelReport:
    return inspect_wheel(
        path,
        expected=[GfxTarget.parse(target) for target in context.wheel_set.targets],
        covers=covers(),
        machs=machs(),
        allow_list=lists()["compiler-supported"],
        verify=True,
        scratch=context.work,
        progress=context.progress,
    )


def _counted(report: WheelReport, wheel: Wheel) -> Iterator[Finding]:
    """The findings, each naming the wheel."""
    for finding in as_published(report.findings) if wheel.as_published else report.findings:
        yield _placed(finding, report.filename)


def _placed(finding: Finding, filename: str) -> Finding:
    """The finding with wheel and file in its sentence, which is all that some people get to see."""
    member = "" if finding.member in finding.message else finding.member
    return dataclasses.replace(finding, message=": ".join(filter(None, (filename, member, finding.message))))


def _summary(report: WheelReport) -> dict[str, object]:
    notes = sorted({f.code for f in report.findings if f.severity is Severity.NOTE})
    return {"sha256": report.sha256, "notes": notes}


def _untrue_members(report: WheelReport, wheel: Wheel) -> Iterator[Finding]:
    """Where wheels.json says something else about the libraries than their bytes do."""
    found = {member.path: member for member in member_infos(report)}
    promised = {member.path: member for member in wheel.members}
    for path in sorted(found.keys() | promised.keys()):
        differences = _differences(found.get(path), promised.get(path))
        if differences:
            text = f"{wheel.filename}: wheels.json is wrong about {path}: {differences}."
            yield error("wheels-json-untrue", text, _UNTRUE, member=path)


def _differences(found: MemberInfo | None, promised: MemberInfo | None) -> str:
    if found is None:
        return "there is no such library"
    if promised is None:
        return "it is not listed"
    names = (field.name for field in dataclasses.fields(found))
    return "; ".join(
        f"{name} is {_plain(getattr(found, name))!r}, not {_plain(getattr(promised, name))!r}"
        for name in names
        if _plain(getattr(found, name)) != _plain(getattr(promised, name))
    )


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, tuple) else value


def _index_findings(context: GateContext) -> Iterator[Finding]:
    """Whether the staged index offers every wheel with its hash, and metadata that is the wheel's own."""
    for wheel in context.wheel_set.wheels:
        try:
            _, page_key = project_pages(context.staged.simple, wheel.name)
            files = json.loads(context.bucket.get(page_key))["files"]
            (entry,) = [file for file in files if file["filename"] == wheel.filename]
            said = (entry["hashes"]["sha256"], entry["core-metadata"]["sha256"])
            sidecar = context.bucket.get(context.staged.file(metadata_name(wheel.filename)))
        except (BucketError, ValueError, KeyError, TypeError) as problem:
            yield error("index-incomplete", f"{wheel.filename} is not offered properly: {problem}.", _UNTRUE)
            continue
        with context.bucket.open(context.staged.file(wheel.filename)) as file:
            own = core_metadata(file, wheel.filename)
        if sidecar != own:
            text = f"{metadata_name(wheel.filename)} is not the METADATA of {wheel.filename}."
            yield error("index-untrue", text, _UNTRUE)
        if said != (wheel.sha256, sha256_of(own)):
            yield error("index-untrue", f"The staged index gives other hashes for {wheel.filename}.", _UNTRUE)
