"""Folders with trees: held, removed.

Whoever uses or makes a tree holds a shared lock on its folder, so that nobody else takes it for garbage; the lock ends
with the process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

NEW = ".new-"
"""How the names of folders begin that are being made, or removed."""
_YOUNG = 60
"""Seconds in which a folder may have been made and not yet be held."""


def in_use(folder: Path) -> bool:
    """Whether a process holds it."""
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
    """Remove a read-only tree; it loses its name first, so that nobody finds half of it.

    Returns:
        Whether it lost its name; not where it had none, or may not be touched.
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


def sweep(trees: Path) -> None:
    """Remove what killed runs left half-made."""
    for left in trees.glob(f"{NEW}*"):
        with suppress(FileNotFoundError):  # it was finished meanwhile
            if time.time() - left.stat().st_mtime > _YOUNG and not in_use(left):
                remove(left)


def hold(folder: Path) -> int:
    """A shared lock on a folder for as long as the returned descriptor is open."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd
