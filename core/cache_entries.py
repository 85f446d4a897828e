"""Entries of the cache folder with size and last use, and the removal of old entries."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from core.frozen import frozen
from core.store import in_use, remove

_TREES = "rocm/trees"
"""Folder of ROCm trees; names of unfinished trees, which may also be large, begin with a dot."""
ROCM = (_TREES, "rocm/tarballs", "rocm/parts")
IMAGES = ("images/files", "images/contexts", "images/gates")
KINDS = (*ROCM, *IMAGES, "inputs", "steps", "sources", "bazel", "installers", "docs")
"""Folders of the cache; each contains one subfolder for each entry."""
_ENTRY = re.compile(r".*[0-9a-f]{16}.*|\.new-.+|context-.+|bazel", re.DOTALL)
"""Names of entries.

Most contain a digest; a folder with another name, for example in a project, is not an
entry.
"""
_YOUNG = 3600
"""Seconds after the last use during which an entry always stays."""


@frozen
class CacheEntry:
    """One entry of the cache.

    Attributes:
        size: bytes on disk.
        used: time of the last use, in seconds since 1970.
        busy: whether a process uses the entry.
    """

    path: Path
    kind: str
    size: int
    used: float
    busy: bool

    @property
    def name(self) -> str:
        """Kind and name, for display."""
        return f"{self.kind}/{self.path.name}"


def entries(root: Path, kinds: Sequence[str] = KINDS) -> tuple[CacheEntry, ...]:
    """Return the entries, most recently used first.

    Links are no entries, since their files are elsewhere.
    """
    rows: list[CacheEntry] = []
    for kind in kinds:
        for path in sorted((root / kind).glob("*" if kind == _TREES else "[!.]*")):
            if _ENTRY.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                with suppress(FileNotFoundError):  # another run removed it meanwhile
                    entry = CacheEntry(
                        path=path,
                        kind=kind,
                        size=_size(path),
                        used=path.stat().st_mtime,
                        busy=in_use(path),
                    )
                    rows.append(entry)
    return tuple(sorted(rows, key=lambda entry: entry.used, reverse=True))


def collect(
    root: Path,
    *,
    limit: int,
    kinds: Sequence[str] = KINDS,
    dry_run: bool = False,
) -> tuple[CacheEntry, ...]:
    """Remove the least recently used entries until the rest is within the limit.

    Locked entries stay, and entries that were used within the last hour.

    Args:
        limit: maximum size of the remaining entries in bytes.

    Returns:
        The entries that were removed, or that would be removed without `dry_run`.
    """
    removed = []
    total = 0
    for entry in entries(root, kinds):
        is_young = time.time() - entry.used < _YOUNG
        goes = not entry.busy and not is_young and total + entry.size > limit
        if goes and (dry_run or _remove_unused(entry.path)):
            removed.append(entry)
        else:
            total += entry.size
    return tuple(removed)


def _remove_unused(path: Path) -> bool:
    """Remove an entry, unless another run has used it since it was listed, minutes ago."""
    try:
        is_young = time.time() - path.stat().st_mtime < _YOUNG
        return not is_young and not in_use(path) and remove(path)
    except FileNotFoundError:  # another run removed it just now
        return False


def _size(folder: Path) -> int:
    """Return the bytes on disk; hard links count once."""
    seen = set()
    total = 0
    for top, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):  # another run removed it just now
                status = Path(top, name).lstat()
                if status.st_ino not in seen:
                    seen.add(status.st_ino)
                    total += status.st_blocks * 512
    return total
