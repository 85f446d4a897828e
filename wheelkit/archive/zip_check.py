"""Checks for archives that are ambiguous or unsafe to unpack.

All problems are collected, none is repaired.
"""

from __future__ import annotations

import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import PurePosixPath

from wheelkit.archive.zip_format import (
    DEFLATED,
    HAS_DESCRIPTOR,
    STORED,
    UTF8_NAME,
    EndRecord,
    LocalHeader,
    Pread,
    ZipMember,
    descriptor_size,
    read_local,
)

MAX_RATIO = 1200
"""Maximum compression ratio that a member may declare; deflate reaches 1030:1 on zeros."""
RATIO_FREE = 16 << 20
"""Members up to this many bytes may declare any ratio."""
MAX_TOTAL = 16 << 30
"""Maximum number of bytes that all members together may declare."""

_ALLOWED_FLAGS = 0x0006 | HAS_DESCRIPTOR | UTF8_NAME
"""Bits 1 and 2 are the deflate level.

All other bits mean encryption, patches or masked headers (APPNOTE 4.4.4).
"""


def locate_members(
    members: Sequence[ZipMember], end: EndRecord, pread: Pread, problems: list[str]
) -> list[ZipMember]:
    """Check members against their local headers and each other.

    Return the members with their `data_offset`.
    """
    located = []
    spans: list[tuple[int, int, str]] = []
    for entry in members:
        problems += _member_problems(entry)
        local = read_local(pread, entry, problems)
        if local is None:
            continue
        problems += _disagreements(entry, local)
        member = entry._replace(data_offset=local.data_offset)
        located.append(member)
        trailer = 0
        if member.flags & HAS_DESCRIPTOR:
            descriptor = descriptor_size(pread, member)
            if descriptor is None:
                problems.append(
                    f"{member.name}: its data descriptor is missing or disagrees with"
                    " the central directory"
                )
            trailer = descriptor or 0
        spans.append((member.header_offset, member.data_end + trailer, member.name))
    problems += _layout_problems(spans, end.directory_offset)
    problems += _set_problems(members)
    return located


def _member_problems(member: ZipMember) -> Iterator[str]:
    name = member.name
    if reason := _path_problem(name):
        yield f"{name!r}: {reason}"
    if member.flags & ~_ALLOWED_FLAGS:
        what = (
            "it is encrypted"
            if member.flags & 0x2041
            else f"unknown flag bits 0x{member.flags & ~_ALLOWED_FLAGS:x}"
        )
        yield f"{name}: {what}"
    if member.method not in (STORED, DEFLATED):
        yield (
            f"{name}: compression method {member.method} is neither stored nor deflated"
        )
    if member.method == STORED and member.compressed_size != member.size:
        yield f"{name}: it is stored, but its compressed and uncompressed sizes differ"
    mode = member.external_attr >> 16
    kind = stat.S_IFDIR if name.endswith("/") else stat.S_IFREG
    if stat.S_IFMT(mode) not in (0, kind):
        yield f"{name}: it is not a regular file (mode {stat.filemode(mode)})"
    if mode & (stat.S_ISUID | stat.S_ISGID) and not name.endswith("/"):
        yield f"{name}: it is setuid or setgid"
    if name.endswith("/") and member.size:
        yield f"{name}: it is a directory with content"
    if member.size > RATIO_FREE and member.size > MAX_RATIO * member.compressed_size:
        ratio = member.size // max(1, member.compressed_size)
        yield (
            f"{name}: it declares {member.size} bytes deflated to"
            f" {member.compressed_size}, {ratio} to 1 (a zip bomb)"
        )


def _path_problem(name: str) -> str:
    if not name or "\0" in name or not name.isprintable():
        return "its path is empty or has control characters"
    if "\\" in name:
        return "its path has a backslash"
    if name.startswith("/") or re.match(r"[A-Za-z]:", name):
        return "its path is absolute"
    if {"..", ".", ""} & set(name.removesuffix("/").split("/")):
        return "its path has an empty, . or .. part"
    return ""


def _disagreements(member: ZipMember, local: LocalHeader) -> Iterator[str]:
    encoding = "utf-8" if local.flags & UTF8_NAME else "ascii"
    if local.name.decode(encoding, "backslashreplace") != member.name:
        yield (
            f"{member.name}: its local header has the name"
            f" {local.name.decode('utf-8', 'backslashreplace')!r}"
        )
    late = bool(member.flags & HAS_DESCRIPTOR)
    for what, ours, theirs, may_be_late in (
        ("flags", member.flags, local.flags, False),
        ("method", member.method, local.method, False),
        ("CRC", member.crc32, local.crc32, True),
        ("compressed size", member.compressed_size, local.compressed_size, True),
        ("size", member.size, local.size, True),
    ):
        if ours != theirs and not (late and may_be_late and theirs == 0):
            yield (
                f"{member.name}: {what} is {ours} in the central directory and {theirs}"
                " in the local header"
            )


def _layout_problems(
    spans: Sequence[tuple[int, int, str]], directory: int
) -> Iterator[str]:
    ordered = sorted(spans)
    first = ordered[0][0] if ordered else directory
    if first:
        yield f"{first} bytes precede the first member"
    for (_, end, name), (start, _, after) in pairwise(
        [*ordered, (directory, directory, "the central directory")]
    ):
        if end > start:
            yield f"{name}: it overlaps {after}"
        elif end < start:
            yield f"{start - end} bytes between {name} and {after} belong to no member"


def _set_problems(members: Sequence[ZipMember]) -> Iterator[str]:
    counts = Counter(member.name for member in members)
    for name, count in counts.items():
        if count > 1:
            yield f"{name}: it occurs {count} times"
    files = {name for name in counts if not name.endswith("/")}
    for name in counts:
        for parent in PurePosixPath(name).parents:
            if str(parent) in files:
                yield f"{name}: {parent} is a file, not a directory"
    total = sum(member.size for member in members)
    if total > MAX_TOTAL:
        yield (
            f"all members together declare {total} bytes, more than {MAX_TOTAL} (a zip"
            " bomb)"
        )
