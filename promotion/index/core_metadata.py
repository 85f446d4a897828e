"""Core metadata of a wheel as a file of its own, so that resolvers need not fetch the wheel (PEP 658, PEP 714)."""

from __future__ import annotations

import email.parser
import re
import zipfile
import zlib
from typing import BinaryIO

from packaging.utils import canonicalize_name

from core.errors import ArchiveError
from core.model import Wheel

_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
_MAX_BYTES = 4 << 20


def core_metadata(file: BinaryIO, filename: str) -> bytes:
    """Read METADATA out of a wheel; of a seekable stream only the directory and this member are read.

    Raises:
        ArchiveError: not a wheel, or not exactly one METADATA of a sensible size.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = [member for member in archive.infolist() if _METADATA.fullmatch(member.filename)]
            if len(members) != 1 or members[0].file_size > _MAX_BYTES:
                raise ArchiveError(f"{filename} has {len(members)} METADATA files of usable size, not one.")
            return archive.read(members[0])
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError) as error:
        raise ArchiveError(f"{filename} cannot be read as a wheel: {error}.", hint="Build it again.") from error


def disagreements(metadata: bytes, wheel: Wheel) -> tuple[str, ...]:
    """Sentences on what METADATA says otherwise than `wheels.json`, whose words the index repeats."""
    message = email.parser.BytesParser().parsebytes(metadata, headersonly=True)
    says = {
        "Name": canonicalize_name(message.get("Name", "")),
        "Version": message.get("Version", ""),
        "Requires-Python": message.get("Requires-Python", ""),
        "Requires-Dist": tuple(message.get_all("Requires-Dist", ())),
    }
    promised = {
        "Name": wheel.name,
        "Version": wheel.version,
        "Requires-Python": wheel.requires_python,
        "Requires-Dist": wheel.requires_dist,
    }
    return tuple(
        f"{wheel.filename}: METADATA has {field} {says[field]!r}, wheels.json says {promised[field]!r}."
        for field in says
        if says[field] != promised[field]
    )
