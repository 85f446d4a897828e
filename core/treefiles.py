"""Folders with trees: compared, held, removed.

Whoever uses or makes a tree holds a shared lock on its folder, so that nobody else takes it for garbage; the lock ends
with the process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

from isal import isal_zlib

from core.unpack.extract import Contents
from core.unpack.tar import Kind

NEW = ".new-"
"""How the names of folders begin that are being made, or removed."""
_READ = 1 << 20
_YOUNG = 60
"""Seconds in which a folder may have been made and not yet be held."""


def differences(root: Path, contents: Contents) -> tuple[str, ...]:
    """How a tree differs from what was unpacked: a line for each path; every file is read."""
    found = []
    expected = {path: item for path, item in contents.items() if item.taken}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            relative = Path(folder, name).relative_to(root).as_posix()
            if relative not in expected:
                found.append(f"{relative}: it does not belong there")
    for path, item in expected.items():
        try:
            status = (root / path).lstat()
        except OSError:
            found.append(f"{path}: it is missing")
            continue
        kind = stat.S_IFMT(status.st_mode)
        if item.kind is Kind.SYMLINK:
            if kind != stat.S_IFLNK or str((root / path).readlink()) != item.link:
                found.append(f"{path}: it is no link to {item.link}")
        elif kind != (stat.S_IFDIR if item.kind is Kind.FOLDER else stat.S_IFREG):
            found.append(f"{path}: it is no {item.kind}")
        elif stat.S_IMODE(status.st_mode) != item.mode:
            found.append(f"{path}: its mode is {stat.S_IMODE(status.st_mode):o}, not {item.mode:o}")
        elif kind == stat.S_IFREG and (status.st_size != item.size or _crc(root / path) != item.crc):
            found.append(f"{path}: its content is another one")
    return tuple(sorted(found))


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


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(_READ):
            crc = isal_zlib.crc32(data, crc)
    return crc
