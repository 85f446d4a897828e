"""The inspection gate.

Inspect every staged wheel, and compare wheels.json and the staged index with the
wheels.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from isal import isal_zlib

from core.digests import sha256_of
from core.errors import ArchiveError
from core.model import Finding, Tier, Wheel
from promotion.gates.common.gate_context import Check, Gate, GateContext, error
from promotion.gates.common.libraries import SharedLibraries
from promotion.gates.recipe_check import ExpectedSet, check_files, check_wheel
from promotion.gates.set_record import (
    REBUILD,
    debug_differences,
    file_differences,
    read_build_info,
    set_differences,
    url_differences,
    wheel_differences,
)
from promotion.index.core_metadata import core_metadata
from promotion.index.pages import metadata_name
from promotion.storage.bucket import AbsentError
from promotion.storage.object_keys import page_keys
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.findings import as_published
from wheelkit.inspect.inspection_model import WheelReport
from wheelkit.inspect.inspector import inspect_wheel
from wheelkit.inspect.wheel_set import check_set

_BLOCK = 1 << 20


def make_gate(expected: ExpectedSet | None = None) -> Gate:
    """Return the gate.

    Args:
        expected: content that this program writes for the set; None skips the
            comparison with it.
    """
    return Gate(
        name="inspection",
        tier=Tier.STRUCTURE,
        per_target=False,
        run=lambda context: _run(context, expected),
        settings={} if expected is None else {"program": expected.program},
    )


def _run(context: GateContext, expected: ExpectedSet | None) -> Iterator[Check]:
    """Yield checks of the wheels, the set, its other files and the staged index.

    The gate coverage compares device code with the targets of the set.
    """
    reports = []
    infos = []
    for wheel in context.wheel_set.wheels:
        path = context.wheel(wheel)
        report = inspect_wheel(
            path,
            scratch=context.work,
            progress=context.progress,
            sha256=context.sha256(path),
            libraries=SharedLibraries(context, wheel),
        )
        reports.append(report)
        with path.open("rb") as file:
            infos.append(read_build_info(file))
        relevant: Iterable[Finding] = report.findings
        if wheel.as_published:
            relevant = as_published(relevant, wheel.name)
        findings = [_with_location(item, report.filename) for item in relevant]
        findings += wheel_differences(report, wheel, infos[-1])
        findings += url_differences(context.wheel_set, wheel, path)
        if expected:
            findings += _recipe_findings(context, wheel, report, infos[-1], expected)
        yield Check(
            name=wheel.filename,
            findings=tuple(findings),
            details={"sha256": report.sha256},
        )
    between = (_with_location(finding, "") for finding in check_set(reports))
    yield Check(
        name="set",
        findings=(*between, *set_differences(context.wheel_set, reports, infos)),
    )

    def read(name: str) -> bytes:
        return context.bucket.get(context.staged.file(name))

    files = tuple(file_differences(context.wheel_set, read))
    if expected and not files:  # these name the cause
        files = tuple(check_files(read, expected))

    def crc32(name: str) -> int:
        crc = 0
        with context.bucket.open(context.staged.file(name)) as file:
            while block := file.read(_BLOCK):
                crc = isal_zlib.crc32(block, crc)
        return crc

    debug = debug_differences(context.wheel_set, reports, crc32)
    yield Check(name="files", findings=(*files, *debug))
    yield Check(name="index", findings=tuple(_index_findings(context)))


GATE = make_gate()
"""The gate without a comparison with what this program writes."""


def _recipe_findings(
    context: GateContext,
    wheel: Wheel,
    report: WheelReport,
    info: Mapping[str, Any],
    expected: ExpectedSet,
) -> tuple[Finding, ...]:
    """Compare a wheel with what its recipe writes.

    A damaged archive is reported by its inspection.
    """
    try:
        with WheelArchive(context.wheel(wheel)) as archive:
            found = check_wheel(
                archive, report.elfs, wheel, context.wheel_set, info, expected
            )
            return tuple(found)
    except ArchiveError:
        return ()


def _with_location(finding: Finding, filename: str) -> Finding:
    """Add wheel and file to the message of a finding."""
    member = "" if finding.member in finding.message else finding.member
    parts = filter(None, (filename, member, finding.message))
    return dataclasses.replace(finding, message=": ".join(parts))


def _index_findings(context: GateContext) -> Iterator[Finding]:
    """Compare hashes and metadata in the staged index with the wheels."""
    for wheel in context.wheel_set.wheels:
        try:
            _, page_key = page_keys(f"{context.staged.simple}{wheel.name}/")
            files = json.loads(context.bucket.get(page_key))["files"]
            (entry,) = [file for file in files if file["filename"] == wheel.filename]
            listed = (entry["hashes"]["sha256"], entry["core-metadata"]["sha256"])
            sidecar_name = metadata_name(wheel.filename)
            sidecar = context.bucket.get(context.staged.file(sidecar_name))
        except (AbsentError, ValueError, KeyError, TypeError) as problem:
            yield error(
                "index-incomplete",
                f"{wheel.filename} is missing or incomplete in the staged index:"
                f" {problem}.",
                REBUILD,
            )
            continue
        with context.bucket.open(context.staged.file(wheel.filename)) as file:
            own = core_metadata(file, wheel.filename)
        if sidecar != own:
            text = f"{sidecar_name} is not the METADATA of {wheel.filename}."
            yield error("index-untrue", text, REBUILD)
        if listed != (wheel.sha256, sha256_of(own)):
            yield error(
                "index-untrue",
                f"The staged index has wrong hashes for {wheel.filename}.",
                REBUILD,
            )
