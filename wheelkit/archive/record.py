"""RECORD, the list of a wheel's files with hashes and sizes (PEP 376, PEP 427, PEP 627)."""

from __future__ import annotations

import base64
import binascii
import csv
import io
import re
from collections.abc import Iterable
from typing import NamedTuple

SIGNATURES = ("RECORD.jws", "RECORD.p7s")
"""Signatures of RECORD, which are listed without a hash (PEP 427)."""


class RecordEntry(NamedTuple):
    """One row of a wheel's RECORD.

    Attributes:
        sha256: SHA-256 in hexadecimal; None if the row has no hash, as for RECORD
            itself, or another kind of hash.
        size: size in bytes; None if the row has no size.
        algorithm: algorithm of the hash; empty if the row has no hash.
    """

    sha256: str | None
    size: int | None
    algorithm: str = ""


def parse_record(text: str) -> tuple[list[tuple[str, RecordEntry]], list[str]]:
    """Parse RECORD.

    Returns:
        The rows in order, duplicates included, and a description of each malformed
        line.
    """
    entries: list[tuple[str, RecordEntry]] = []
    problems: list[str] = []
    try:
        for number, row in enumerate(csv.reader(io.StringIO(text, newline="")), 1):
            if not row:
                continue
            entry = _parse_row(row)
            if entry is None:
                problems.append(f"line {number} is not path,hash,size")
            else:
                entries.append((row[0], entry))
    except csv.Error as error:
        # For example, a quote without its end makes one field of all following lines.
        problems.append(f"it is not CSV: {error}")
    return entries, problems


def _parse_row(row: list[str]) -> RecordEntry | None:
    if len(row) != 3 or not row[0] or not re.fullmatch(r"[0-9]{0,19}", row[2]):
        return None
    size = int(row[2]) if row[2] else None
    algorithm, _, digest = row[1].partition("=")
    if algorithm != "sha256":
        return RecordEntry(None, size, algorithm)
    try:
        raw = base64.b64decode(
            digest + "=" * (-len(digest) % 4), altchars=b"-_", validate=True
        )
    except (binascii.Error, ValueError):
        return None
    return RecordEntry(raw.hex(), size, algorithm) if len(raw) == 32 else None


def format_record(entries: Iterable[tuple[str, RecordEntry]]) -> bytes:
    """Return the bytes of RECORD for these rows, in this order.

    Hashes are urlsafe base64 without padding (PEP 427).
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    for path, entry in entries:
        digest = ""
        if entry.sha256 is not None:
            digest = (
                "sha256="
                + base64.urlsafe_b64encode(bytes.fromhex(entry.sha256))
                .rstrip(b"=")
                .decode()
            )
        writer.writerow((path, digest, "" if entry.size is None else entry.size))
    return out.getvalue().encode()
