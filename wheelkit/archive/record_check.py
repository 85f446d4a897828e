"""Verification of a wheel against its RECORD; every member is inflated and hashed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from core.errors import ArchiveError
from core.model import Finding, Progress
from wheelkit.archive.record import SIGNATURES, RecordEntry, parse_record
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.findings import finding


def verify_record(
    archive: WheelArchive,
    *,
    extract: Mapping[str, Path] | None = None,
    digests: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> tuple[Finding, ...]:
    """Compare every member with RECORD and with its CRC.

    Args:
        extract: member name -> file to which the member is also written, so that
            nothing is inflated twice.
        digests: member name -> SHA-256 of members that the caller has unpacked and
            compared with their CRC; they are not inflated again.

    Returns:
        A finding for each wrong hash or size, damaged member, member without row, row
        without member, duplicate or malformed row; empty if the wheel is intact.
    """
    record_path = f"{archive.dist_info}/RECORD"
    try:
        rows, malformed = parse_record(archive.read(record_path).decode())
    except (ArchiveError, UnicodeDecodeError) as error:
        text = f"RECORD cannot be read: {error}"
        return (finding("record-unreadable", text, member=record_path),)
    findings = []

    def report(code: str, text: str, member: str) -> None:
        findings.append(finding(code, text, member=member))

    for problem in malformed:
        report("record-malformed", f"RECORD is malformed: {problem}.", record_path)
    for path, count in Counter(path for path, _ in rows).items():
        if count > 1:
            text = f"RECORD lists {path} {count} times."
            report("record-duplicate-entry", text, path)
        if path not in archive:
            text = f"RECORD lists {path}, which the archive does not contain."
            report("record-no-such-file", text, path)
    signatures = [f"{archive.dist_info}/{name}" for name in SIGNATURES]
    entries = dict(rows)
    for member in archive.members:
        try:
            if known := (digests or {}).get(member.name):
                digest = known
            elif target := (extract or {}).get(member.name):
                digest = archive.extract(member.name, target, progress=progress)
            else:
                digest = archive.digest(member.name)
        except ArchiveError as error:
            report("member-damaged", error.message, member.name)
            continue
        if member.name not in (record_path, *signatures):
            entry = entries.get(member.name)
            for code, text in _compare(member.name, member.size, digest, entry):
                report(code, text, member.name)
    return tuple(findings)


def _compare(
    name: str, size: int, digest: str, entry: RecordEntry | None
) -> Iterator[tuple[str, str]]:
    """Yield the code and text of a finding for each difference from a row."""
    if entry is None:
        yield "record-missing-entry", f"{name} is not in RECORD."
        return
    if entry.sha256 is None:
        what = f"the {entry.algorithm} hash" if entry.algorithm else "no hash"
        text = f"RECORD has {what} instead of a sha256 for {name}."
        yield "record-no-sha256", text
    elif entry.sha256 != digest:
        text = f"{name} has sha256 {digest}; RECORD lists {entry.sha256}."
        yield "record-wrong-hash", text
    if entry.size is not None and entry.size != size:
        text = f"{name} has {size} bytes; RECORD lists {entry.size}."
        yield "record-wrong-size", text
