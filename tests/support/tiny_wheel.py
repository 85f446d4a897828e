"""Generated wheels: valid ones, and zip archives with wrong fields."""

from __future__ import annotations

import base64
import hashlib
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAME = "tiny-1.0-py3-none-any.whl"
INFO = "tiny-1.0.dist-info"
METADATA = b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
WHEEL = b"Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def record_line(name: str, data: bytes) -> str:
    digest = (
        base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    )
    return f"{name},sha256={digest},{len(data)}\n"


def contents(
    files: Mapping[str, bytes] | None = None, *, info: str = INFO
) -> dict[str, bytes]:
    """Return the members of a valid wheel.

    These files, METADATA, WHEEL and at the end a correct RECORD.
    """
    members = {
        **(files or {"tiny/__init__.py": b"x = 1\n"}),
        f"{info}/METADATA": METADATA,
        f"{info}/WHEEL": WHEEL,
    }
    lines = "".join(record_line(name, data) for name, data in members.items())
    return {**members, f"{info}/RECORD": f"{lines}{info}/RECORD,,\n".encode()}


def make_wheel(
    folder: Path,
    files: Mapping[str, bytes] | None = None,
    *,
    name: str = NAME,
    modes: Mapping[str, int] | None = None,
    members: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a wheel with zipfile.

    `members` replaces `files` and contains every member, including RECORD.
    """
    path = folder / name
    info = "-".join(name.split("-")[:2]) + ".dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in (members or contents(files, info=info)).items():
            entry = zipfile.ZipInfo(member, (2020, 2, 2, 2, 2, 2))
            entry.external_attr = (0o100000 | (modes or {}).get(member, 0o644)) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return path


@dataclass
class RawMember:
    """One member, field by field; `local` overrides fields of the local header."""

    name: bytes
    data: bytes = b"x = 1\n" * 20
    method: int = 8
    flags: int = 0
    attr: int = 0o100644 << 16
    central: dict[str, Any] = field(default_factory=dict)
    local: dict[str, Any] = field(default_factory=dict)
    before: bytes = b""
    after: bytes = b""
    packed: bytes | None = None

    def compressed(self) -> bytes:
        if self.packed is not None:
            return self.packed
        if self.method != 8:
            return self.data
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        return packer.compress(self.data) + packer.flush()


def raw_members(*extra: RawMember) -> list[RawMember]:
    """Return the members of a valid wheel and additional ones, which RECORD does not list."""
    return [RawMember(name.encode(), data) for name, data in contents().items()] + list(
        extra
    )


def raw_zip(members: Sequence[RawMember]) -> bytes:
    """Return the bytes of an archive, without any check."""
    body = b""
    directory = b""
    for member in members:
        body += member.before
        packed = member.compressed()
        fields: dict[str, Any] = {
            "name": member.name,
            "flags": member.flags,
            "method": member.method,
            "crc": zlib.crc32(member.data),
            "packed": len(packed),
            "size": len(member.data),
            "extra": b"",
            "offset": len(body),
            "disk": 0,
        }
        c = fields | member.central
        h = fields | member.local
        head = struct.pack(
            "<4s5H3L2H",
            b"PK\3\4",
            20,
            h["flags"],
            h["method"],
            0,
            33,
            h["crc"],
            h["packed"],
            h["size"],
            len(h["name"]),
            len(h["extra"]),
        )
        body += head + h["name"] + h["extra"] + packed + member.after
        entry = struct.pack(
            "<4s6H3L5H2L",
            b"PK\1\2",
            0x0314,
            20,
            c["flags"],
            c["method"],
            0,
            33,
            c["crc"],
            c["packed"],
            c["size"],
            len(c["name"]),
            len(c["extra"]),
            0,
            c["disk"],
            0,
            member.attr,
            c["offset"],
        )
        directory += entry + c["name"] + c["extra"]
    end = struct.pack(
        "<4s4H2LH",
        b"PK\5\6",
        0,
        0,
        len(members),
        len(members),
        len(directory),
        len(body),
        0,
    )
    return body + directory + end


def raw_wheel(folder: Path, *extra: RawMember) -> Path:
    """Write a wheel with additional members, without any check."""
    path = folder / NAME
    path.write_bytes(raw_zip(raw_members(*extra)))
    return path
