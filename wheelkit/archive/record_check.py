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
        return (
            finding(
                "record-unreadable",
                f"RECORD cannot be read: {error}",
                member=record_path,
            ),
        )
    findings = [
        finding(
            "record-malformed", f"RECORD is malformed: {problem}.", member=record_path
        )
        for problem in malformed
    ]
    counts = Counter(path for path, _ in rows)
    findings += [
        finding(
            "record-duplicate-entry", f"RECORD lists {path} {count} times.", member=path
        )
        for path, count in counts.items()
        if count > 1
    ]
    findings += [
        finding(
            "record-no-such-file",
            f"RECORD lists {path}, which the archive does not contain.",
            member=path,
        )
        for path in counts
        if path not in archive
    ]
    without_hash = {
        record_path,
        *(f"{archive.dist_info}/{name}" for name in SIGNATURES),
    }
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
            findings.append(
                finding("member-damaged", error.message, member=member.name)
            )
            continue
        if member.name not in without_hash:
            findings += _compare(
                member.name, member.size, digest, entries.get(member.name)
            )
    return tuple(findings)


def _compare(
    name: str, size: int, digest: str, entry: RecordEntry | None
) -> Iterator[Finding]:
    if entry is None:
        yield finding("record-missing-entry", f"{name} is not in RECORD.", member=name)
        return
    if entry.sha256 is None:
        what = f"the {entry.algorithm} hash" if entry.algorithm else "no hash"
        yield finding(
            "record-no-sha256",
            f"RECORD has {what} instead of a sha256 for {name}.",
            member=name,
        )
    elif entry.sha256 != digest:
        yield finding(
            "record-wrong-hash",
            f"{name} has sha256 {digest}; RECORD lists {entry.sha256}.",
            member=name,
        )
    if entry.size is not None and entry.size != size:
        yield finding(
            "record-wrong-size",
            f"{name} has {size} bytes; RECORD lists {entry.size}.",
            member=name,
        )
