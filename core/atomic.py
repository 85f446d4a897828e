"""Atomic writes of files."""

from __future__ import annotations

import os
from pathlib import Path

from core.os_errors import writes_to

_MOST_LINKS = 40
"""Number of links after which Linux gives up."""


def write_whole(out: Path, data: bytes) -> None:
    """Write a file atomically: until the end, readers see the old content.

    A link stays and leads to the new file. Pipes, devices and open files, such as
    /dev/stdout, are written to directly.
    """
    target = _replaceable(out)
    if target is None:
        out.write_bytes(data)
        return
    # Process IDs are not unique: threads share one, and containers that share a folder
    # can have equal ones.
    fresh = target.with_name(f".{target.name}.{os.urandom(8).hex()}")
    try:
        with writes_to(out):
            fresh.write_bytes(data)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def _replaceable(path: Path) -> Path | None:
    """Return the file that a path or a link leads to, which may not exist.

    None if it cannot be replaced.
    """
    for _ in range(_MOST_LINKS):
        if not path.is_symlink():
            return (
                path
                if path.is_file() or (path.parent.is_dir() and not path.exists())
                else None
            )
        folder = path.parent.resolve()
        if folder.is_relative_to(
            "/proc"
        ):  # an open file of a process, which goes on writing to it
            return None
        path = folder / path.readlink()
    return None
