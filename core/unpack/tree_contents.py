"""Contents of an unpacked tree, recorded during unpacking and compared with the tree later."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import astuple, dataclass
from pathlib import Path

from core.unpack.tar import Kind

_READ = 1 << 20


@dataclass(frozen=True, slots=True)
class Item:
    """A path of a tree.

    Attributes:
        mode: permission bits.
        crc: CRC-32 of a file's content.
        link: target of a symbolic link; for a hard link, the first path of the same
            file.
        taken: whether the path was unpacked.
    """

    kind: Kind
    mode: int = 0
    size: int = 0
    crc: int = 0
    link: str = ""
    taken: bool = True


Contents = dict[str, Item]
"""Path below the root, separated by `/` -> item at this path."""


def dump_contents(contents: Contents) -> bytes:
    """Return JSON with a row for each path, sorted, so that equal trees give equal text."""
    rows = [[path, *astuple(item)] for path, item in sorted(contents.items())]
    return json.dumps(rows, separators=(",", ":")).encode()


def load_contents(data: bytes) -> Contents:
    """Parse the output of `dump_contents`."""
    contents = {}
    for path, kind, *values in json.loads(data):
        contents[path] = Item(Kind(kind), *values)
    return contents


def differences(root: Path, contents: Contents) -> tuple[str, ...]:
    """Return a line for each path of a tree that differs from the unpacked content.

    Every file is read.
    """
    lines = []
    expected = {path: item for path, item in contents.items() if item.taken}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            relative = Path(folder, name).relative_to(root).as_posix()
            if relative not in expected:
                lines.append(f"{relative}: unexpected")
    for path, item in expected.items():
        try:
            status = (root / path).lstat()
        except OSError:
            lines.append(f"{path}: missing")
            continue
        kind = stat.S_IFMT(status.st_mode)
        if item.kind is Kind.SYMLINK:
            if kind != stat.S_IFLNK or str((root / path).readlink()) != item.link:
                lines.append(f"{path}: not a link to {item.link}")
        elif kind != (stat.S_IFDIR if item.kind is Kind.FOLDER else stat.S_IFREG):
            lines.append(f"{path}: not a {item.kind}")
        elif stat.S_IMODE(status.st_mode) != item.mode:
            lines.append(
                f"{path}: mode {stat.S_IMODE(status.st_mode):o}, not {item.mode:o}"
            )
        elif kind == stat.S_IFREG and (
            status.st_size != item.size or _crc(root / path) != item.crc
        ):
            lines.append(f"{path}: content differs")
    return tuple(sorted(lines))


def _crc(path: Path) -> int:
    from isal import isal_zlib  # Start-up time: help reads no files.

    crc = 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(_READ):
            crc = isal_zlib.crc32(data, crc)
    return crc
