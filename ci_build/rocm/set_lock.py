"""`rocm.lock` in a set, which is published.

It has neither paths of the builder nor secrets of URLs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from ci_build.rocm.lock import RocmLock, dump_lock
from ci_build.rocm.rocm_request import is_url
from core.errors import RequestError


def set_lock(lock: RocmLock) -> bytes:
    """Return the content of `rocm.lock` in a set.

    The same ROCm gives the same bytes on every machine.
    """
    source = _public(lock.source) if is_url(lock.source) else _name_of(lock)
    return dump_lock(replace(lock, source=source)).encode()


def locked_source(lock: RocmLock, path: Path) -> str:
    """Return the source of a lock.

    Args:
        path: file of the lock.

    Raises:
        RequestError: the lock is that of a set, and the ROCm was a file or folder of
            the builder.
    """
    if is_url(lock.source) or Path(lock.source).is_absolute():
        return lock.source
    was = lock.source or "a folder"
    raise RequestError(
        f"{path.name} is that of a set and has no path of its ROCm, which was {was} of"
        " the builder.",
        hint=(
            "Write the absolute path of this ROCm as `source` into a copy of the lock,"
            " and give it with --rocm-lock."
        ),
    )


def _name_of(lock: RocmLock) -> str:
    """Return the file name of a tarball.

    Empty for a folder, which has another name on another machine.
    """
    return "" if lock.files else Path(lock.source).name


def _public(source: str) -> str:
    """Return a URL without user, password, query and fragment, which may be secret."""
    parts = urlsplit(source)
    return urlunsplit(
        parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
    )
