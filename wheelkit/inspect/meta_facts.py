"""What a wheel says of itself, read from dist-info and version.py, with a finding for each file that cannot be read."""

from __future__ import annotations

import configparser
import re
from collections.abc import Callable
from email.message import Message

from packaging.tags import parse_tag

from core.errors import ArchiveError
from core.model import Finding
from wheelkit.archive.archive import WheelArchive
from wheelkit.inspect.findings import finding
from wheelkit.inspect.model import Metadata

_STAMP = re.compile(r"^_release_version\b[^=\n]*=\s*(?:None|(['\"])(?P<version>.*?)\1)", re.MULTILINE)
_MAX_TEXT = 4 << 20


def read_metadata(archive: WheelArchive) -> tuple[Metadata, list[Finding]]:
    """Read METADATA, WHEEL, entry_points.txt and every version.py; what is missing reads as empty."""
    findings: list[Finding] = []

    def headers(read: Callable[[], Message], name: str) -> Message:
        try:
            return read()
        except ArchiveError as error:
            findings.append(finding("metadata-unreadable", error.message, member=f"{archive.dist_info}/{name}"))
            return Message()

    def text(message: Message, field: str) -> str:
        return " ".join(str(message.get(field, "")).split())

    def texts(message: Message, field: str) -> tuple[str, ...]:
        return tuple(" ".join(str(value).split()) for value in message.get_all(field, []))

    meta, wheel = headers(archive.metadata, "METADATA"), headers(archive.wheel_info, "WHEEL")
    return Metadata(
        name=text(meta, "Name"),
        version=text(meta, "Version"),
        summary=text(meta, "Summary"),
        requires_python=text(meta, "Requires-Python"),
        requires_dist=texts(meta, "Requires-Dist"),
        extras=texts(meta, "Provides-Extra"),
        license=text(meta, "License-Expression") or text(meta, "License")[:80],
        license_files=_license_files(archive, texts(meta, "License-File")),
        purelib=text(wheel, "Root-Is-Purelib").lower() == "true",
        tags=tuple(sorted({str(tag) for line in texts(wheel, "Tag") for tag in parse_tag(line)})),
        generator=", ".join(texts(wheel, "Generator")),
        entry_points=_entry_points(archive, findings),
        stamped=_stamps(archive),
    ), findings


def _license_files(archive: WheelArchive, declared: tuple[str, ...]) -> tuple[str, ...]:
    """License-File values whose file is there (PEP 639), else files of dist-info that are named like a licence."""
    roots = (f"{archive.dist_info}/licenses/", f"{archive.dist_info}/")
    there = tuple(name for name in declared if any(root + name in archive for root in roots))
    named = re.compile(re.escape(archive.dist_info) + r"/(licenses/.+|(LICEN[CS]E|COPYING|NOTICE)[^/]*)", re.IGNORECASE)
    return there or tuple(m.name.rpartition("/")[2] for m in archive.members if named.fullmatch(m.name))


def _entry_points(archive: WheelArchive, findings: list[Finding]) -> dict[str, dict[str, str]]:
    """entry_points.txt (entry points specification); empty when there is none."""
    name = f"{archive.dist_info}/entry_points.txt"
    if name not in archive:
        return {}
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(archive.read(name, _MAX_TEXT).decode())
    except (ArchiveError, UnicodeDecodeError, configparser.Error) as error:
        findings.append(finding("entry-point-broken", f"it cannot be read: {error}", member=name))
        return {}
    return {group: dict(parser[group]) for group in parser.sections()}


def _stamps(archive: WheelArchive) -> dict[str, str]:
    """`_release_version` of each version.py that has one; "" where it is None."""
    stamps: dict[str, str] = {}
    for member in archive.members:
        if not member.name.endswith("/version.py") or member.size > _MAX_TEXT:
            continue
        try:
            found = _STAMP.search(archive.read(member.name).decode())
        except (ArchiveError, UnicodeDecodeError):
            continue  # RECORD and CRC checks name a damaged member
        if found:
            stamps[member.name] = found["version"] or ""
    return stamps
