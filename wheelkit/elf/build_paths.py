"""Paths of the build machine in a library's strings: assertions, compiler options, search paths."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from wheelkit.elf.elf_tables import Section

_MARKS = (b"/_bazel_", b"/execroot/", b".runfiles/", b"/home/", b"/root/")
"""Parts of paths on build machines.

Folders of users and of Bazel (Bazel documentation, "Output Directory Layout").
"""
_STRINGS = (".rodata", ".data")
_BEFORE = re.compile(rb"[\w./+@~-]*\Z")
_AFTER = re.compile(rb"[\w./+@~-]*")
_REACH = 512


def build_paths(path: Path, sections: Iterable[Section]) -> tuple[str, ...]:
    """Return the distinct paths of the build machine in the data of a library, sorted.

    Args:
        sections: sections of the library; only data sections are searched.
    """
    ranges = [
        (s.offset, s.offset + s.file_size)
        for s in sections
        if s.name.startswith(_STRINGS)
    ]
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        paths: set[str] = set()
        for start, end in ranges:
            for mark in _MARKS:
                paths.update(_paths(data, mark, start, end))
    return tuple(sorted(paths))


def _paths(data: mmap.mmap, mark: bytes, start: int, end: int) -> Iterator[str]:
    at = data.find(mark, start, end)
    while at >= 0:
        before = _BEFORE.search(data[max(start, at - _REACH) : at])
        after = _AFTER.match(data[at : min(end, at + _REACH)])
        assert before is not None
        assert after is not None
        text = before[0] + after[0]
        # Text that ends after the mark may be part of a sentence instead of a path.
        if text.startswith(b"/") and len(after[0]) > len(mark):
            yield text.decode("ascii", errors="replace")
        at = data.find(mark, at + len(after[0]), end)
