"""Core metadata of a wheel as a separate file for resolvers (PEP 658, PEP 714)."""

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
    """Return METADATA of a wheel; only the archive's directory and this member are read.

    Raises:
        ArchiveError: the file is not a wheel, or does not contain exactly one METADATA
            of a plausible size.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = [
                member
                for member in archive.infolist()
                if _METADATA.fullmatch(member.filename)
            ]
            if len(members) != 1 or members[0].file_size > _MAX_BYTES:
                raise ArchiveError(
                    f"{filename} does not have exactly one METADATA file of plausible"
                    f" size: {len(members)} files."
                )
            return archive.read(members[0])
    except (
        zipfile.BadZipFile,
        zlib.error,
        OSError,
        EOFError,
        RuntimeError,
        ValueError,
    ) as error:
        raise ArchiveError(
            f"{filename} is not a valid wheel: {error}.", hint="Build the wheel again."
        ) from error


def disagreements(metadata: bytes, wheel: Wheel) -> tuple[str, ...]:
    """Return a sentence for each field of METADATA that differs from `wheels.json`."""
    message = email.parser.BytesParser().parsebytes(metadata, headersonly=True)
    actual = {
        "Name": canonicalize_name(message.get("Name", "")),
        "Version": message.get("Version", ""),
        "Requires-Python": message.get("Requires-Python", ""),
        "Requires-Dist": tuple(message.get_all("Requires-Dist", ())),
    }
    expected = {
        "Name": wheel.name,
        "Version": wheel.version,
        "Requires-Python": wheel.requires_python,
        "Requires-Dist": wheel.requires_dist,
    }
    return tuple(
        f"{wheel.filename}: METADATA has {field} {actual[field]!r}, wheels.json has"
        f" {expected[field]!r}."
        for field in actual
        if actual[field] != expected[field]
    )
