"""Comparison of two wheels that should be equal, down to the sections of libraries."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from core.frozen import frozen
from wheelkit.archive.wheel_archive import WheelArchive
from wheelkit.elf.constants import MAGIC
from wheelkit.elf.elf_tables import open_image

_STEP = 1 << 20


@frozen
class Difference:
    """One difference between two wheels.

    Attributes:
        member: path inside the wheel.
        section: section of a library; empty for other files, and for bytes outside all
            sections.
        what: description of the difference, one clause.
    """

    member: str
    section: str = ""
    what: str


def compare_wheels(before: Path, now: Path, scratch: Path) -> tuple[Difference, ...]:
    """Return every difference between two wheels; compression is ignored.

    RECORD is not compared, since it is derived from the other members.

    Args:
        scratch: existing folder for extracted libraries.
    """
    with (
        WheelArchive(before) as first,
        WheelArchive(now) as second,
        tempfile.TemporaryDirectory(prefix="compare-", dir=scratch) as folder,
    ):
        return tuple(_compare(first, second, Path(folder)))


def _compare(
    before: WheelArchive, now: WheelArchive, scratch: Path
) -> Iterator[Difference]:
    names = {member.name for member in (*before.members, *now.members)}
    for name in sorted(names):
        if name.endswith(".dist-info/RECORD"):
            continue
        if name not in now:
            yield Difference(member=name, what="was removed")
        elif name not in before:
            yield Difference(member=name, what="was added")
        elif before.digest(name) != now.digest(name):
            yield from _member(before, now, name, scratch)


def _member(
    before: WheelArchive, now: WheelArchive, name: str, scratch: Path
) -> Iterator[Difference]:
    old = scratch / "before"
    new = scratch / "now"
    before.unpack(name, old)
    now.unpack(name, new)
    try:
        if _is_elf(old) and _is_elf(new):
            yield from compare_libraries(old, new, name)
        else:
            what = f"{old.stat().st_size} bytes, now {new.stat().st_size}"
            yield Difference(member=name, what=what)
    finally:
        old.unlink()
        new.unlink()


def compare_libraries(before: Path, now: Path, name: str) -> Iterator[Difference]:
    """Yield every section in which two libraries differ."""
    differs = False
    with open_image(before) as first, open_image(now) as second:
        old = {section.name: section for section in first.sections}
        new = {section.name: section for section in second.sections}
        for section in dict.fromkeys((*old, *new)):
            if section not in new:
                what = "was removed"
            elif section not in old:
                what = "was added"
            elif old[section].type != new[section].type or (
                old[section].size != new[section].size
            ):
                what = f"{old[section].size} bytes, now {new[section].size}"
            else:
                content = first.contents(old[section])
                count = _differing(content, second.contents(new[section]))
                if not count:
                    continue
                what = f"{count} of {len(content)} bytes differ"
            differs = True
            yield Difference(member=name, section=section, what=what)
    if not differs:
        yield Difference(member=name, what="headers or padding differ")


def _differing(before: bytes, now: bytes) -> int:
    """Return the number of bytes that differ."""
    count = 0
    for start in range(0, len(before), _STEP):
        old = before[start : start + _STEP]
        new = now[start : start + _STEP]
        if old != new:
            count += sum(a != b for a, b in zip(old, new, strict=True))
    return count


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == MAGIC
