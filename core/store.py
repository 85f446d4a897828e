"""Folders by content key: created atomically, locked during use, and removed when stale.

A shared lock on a folder prevents other processes from removing the folder; the lock ends with its process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NEW = ".new-"
"""Prefix of folders that are being created or removed."""
_YOUNG = 60
"""Age in seconds below which a new folder may not be locked yet."""


class ContentStore:
    """Folders below a root, named by a key of their content; several processes may use one store concurrently."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, key: str) -> Path:
        """Return the folder of a key, which may not exist."""
        return self.root / key

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Create a locked folder on the same file system; it is removed at the end unless it was published."""
        self.root.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=NEW, dir=self.root))
        fd = lock_shared(work)
        try:
            yield work
        finally:
            os.close(fd)
            remove(work)

    def publish(self, folder: Path, key: str) -> bool:
        """Rename a finished folder to its key; keep the existing folder and return False if another run was first.

        Raises:
            OSError: the folder cannot be renamed, and no other run published it.
        """
        final = self.folder(key)
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.rename(final)
        except OSError:
            if final.is_dir():
                return False
            raise
        return True

    def sweep(self) -> None:
        """Remove scratch folders that killed runs left."""
        for stale in self.root.glob(f"{NEW}*"):
            with suppress(FileNotFoundError):  # the folder was published or removed meanwhile
                if time.time() - stale.stat().st_mtime > _YOUNG and not in_use(stale):
                    remove(stale)


def lock_shared(folder: Path) -> int:
    """Lock a folder for as long as the returned descriptor is open."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def in_use(folder: Path) -> bool:
    """Return whether a process has locked a folder."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def remove(folder: Path) -> bool:
    """Remove a folder, even a read-only one; it is renamed first, so that no other run sees a partial folder.

    Returns:
        Whether the folder was renamed; False if it does not exist or cannot be renamed.
    """
    gone = folder.with_name(f"{NEW}{os.getpid()}-{folder.name}")
    try:
        folder.rename(gone)
    except OSError:
        return False
    gone.chmod(0o700)
    for path, folders, _ in os.walk(gone):
        for name in folders:
            if not (inner := Path(path, name)).is_symlink():
                inner.chmod(0o700)
    shutil.rmtree(gone, ignore_errors=True)
    return True
