"""RECORD: the list of a wheel's files with their hashes and sizes (PEP 376, PEP 427, PEP 627)."""

from __future__ import annotations

import base64
import binascii
import csv
import io
import re
from collections.abc import Iterable
from typing import NamedTuple

SIGNATURES = ("RECORD.jws", "RECORD.p7s")
"""Signatures of RECORD, which cannot be in it with a hash (PEP 427)."""


class RecordEntry(NamedTuple):
    """What RECORD says about one file.

    Attributes:
        sha256: hexadecimal; None where RECORD gives no hash (for RECORD itself) or one of another kind.
        size: bytes; None where RECORD gives none.
        algorithm: of the hash; empty where there is none.
    """

    sha256: str | None
    size: int | None
    algorithm: str = ""


def parse_record(text: str) -> tuple[list[tuple[str, RecordEntry]], list[str]]:
    """Read RECORD.

    Returns:
        The entries in order (a path that is listed twice comes twice), and what is wrong with malformed lines.
    """
    entries: list[tuple[str, RecordEntry]] = []
    problems: list[str] = []
    for number, row in enumerate(csv.reader(io.StringIO(text, newline="")), 1):
        if not row:
            continue
        entry = _parse_row(row)
        if entry is None:
            problems.append(f"line {number} is not path,hash,size")
        else:
            entries.append((row[0], entry))
    return entries, problems


def _parse_row(row: list[str]) -> RecordEntry | None:
    if len(row) != 3 or not row[0] or not re.fullmatch(r"[0-9]{0,19}", row[2]):
        return None
    size = int(row[2]) if row[2] else None
    algorithm, _, digest = row[1].partition("=")
    if algorithm != "sha256":
        return RecordEntry(None, size, algorithm)
    try:
        raw = base64.b64decode(digest + "=" * (-len(digest) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return RecordEntry(raw.hex(), size, algorithm) if len(raw) == 32 else None


def format_record(entries: Iterable[tuple[str, RecordEntry]]) -> bytes:
    """The bytes of RECORD for these entries, in this order; hashes are urlsafe base64 without padding (PEP 427)."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    for path, entry in entries:
        digest = ""
        if entry.sha256 is not None:
            digest = "sha256=" + base64.urlsafe_b64encode(bytes.fromhex(entry.sha256)).rstrip(b"=").decode()
        writer.writerow((path, digest, "" if entry.size is None else entry.size))
    return out.getvalue().encode()
