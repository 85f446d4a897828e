"""Errors of the operating system.

Sentences for users, failures of the machine, and folders that accept no files.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
_OF_MACHINE = frozenset(
    {*_FULL, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
)
_NO_FILES = (errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems such as /proc, in which programs cannot create files."""


@contextmanager
def writes_to(path: Path) -> Iterator[None]:
    """Add the path to the error of a full disk unless the error has one.

    An inner block takes precedence.

    write(2) reports no path, and a path relative to an open folder says nothing about
    the disk.
    """
    try:
        yield
    except OSError as error:
        if (
            error.errno in _FULL
            and not Path(_text(error.filename2 or error.filename)).is_absolute()
        ):
            error.filename = str(path)
        raise


def describe(error: OSError) -> str:
    """Return an error as a sentence with its file or full disk, and what to do."""
    # shutil.Error lists (source, target, reason) of all files that could not be copied.
    listed = error.args[0] if error.args and isinstance(error.args[0], list) else []
    reason = str(listed[0][2]) if listed else error.strerror or str(error)
    if error.errno in _FULL:
        # The second file of a copy is the one that is written.
        return (
            f"{reason}{_full_disk(error.filename2 or error.filename)}. Free space"
            " there, or use another disk."
        )
    file = f": {error.filename}" if error.filename else ""
    return f"{reason}{file}. Fix this and run the command again."


def machine_failure(error: BaseException) -> OSError | None:
    """Return the error or its first cause that is a failure of the machine, or None."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _OF_MACHINE:
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def _full_disk(file: object) -> str:
    """Return a clause with the mount point of a file and the folder that was written to.

    Empty if both are unknown.
    """
    if not _text(file):
        return ""
    # Temporary folders are removed by now; the nearest folder that exists is the
    # user's.
    folder = next(filter(Path.is_dir, Path(_text(file)).absolute().parents))
    mount = next(filter(Path.is_mount, (folder, *folder.parents)))
    below = "" if mount == folder else f" (written to: {folder})"
    return f": the disk at {mount} is full{below}"


def _text(file: object) -> str:
    """Return the path of an error; empty for a file descriptor or nothing."""
    return os.fsdecode(file) if isinstance(file, (str, bytes)) else ""


def why_unwritable(path: Path) -> str:
    """Return the reason why a file or folder cannot be created at a path; empty if it can.

    The nearest existing folder above the path must accept a file. The file of the check
    has no name where the file system supports this (open(2), O_TMPFILE), so that
    nothing changes; otherwise it is removed at once.
    """
    path = path.absolute()
    above = next(filter(os.path.lexists, path.parents), path)
    if not above.is_dir():
        return f"{above} is not a folder"
    try:
        with tempfile.TemporaryFile(dir=above):
            return ""
    except OSError as error:
        if error.errno in _NO_FILES:
            return f"the file system of {above} accepts no files"
        return f"{above}: {error.strerror}"
