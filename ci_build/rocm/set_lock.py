"""`rocm.lock` in a set, which is published.

It has neither paths of the builder nor secrets of URLs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from ci_build.rocm.lock import RocmLock, dump_lock, load_lock
from ci_build.rocm.rocm_request import (
    Folder,
    RocmRequest,
    RocmSource,
    TarballFile,
    check_request,
    parse_source,
)
from core.errors import RequestError
from core.model import GfxTarget


def set_lock(lock: RocmLock) -> bytes:
    """Return the content of `rocm.lock` in a set.

    The same ROCm gives the same bytes on every machine.
    """
    if isinstance(parse_source(lock.source), TarballFile | Folder):
        # A folder has another name on another machine.
        source = "" if lock.files else Path(lock.source).name
    else:
        source = _public(lock.source)
    return dump_lock(replace(lock, source=source)).encode()


def locked_source(lock: RocmLock, path: Path) -> RocmSource:
    """Return the source of a lock.

    Args:
        path: file of the lock.

    Raises:
        RequestError: the lock was published with a set, and the ROCm was a file or
            folder of the builder.
    """
    source = parse_source(lock.source)
    if not isinstance(source, TarballFile | Folder) or source.path.is_absolute():
        return source
    raise RequestError(
        f"{path.name} was published with a set and omits the ROCm's local path, which"
        f" was {lock.source or 'a folder'} of the builder.",
        hint=(
            "Write the absolute path of this ROCm as `source` into a copy of the lock,"
            " and give it with --rocm-lock."
        ),
    )


def locked_request(
    lock: Path, version: str = "", targets: tuple[GfxTarget, ...] = ()
) -> RocmRequest:
    """Return the checked request for a locked ROCm.

    Args:
        version: required version; empty for that of the lock.
        targets: see `RocmRequest`.

    Raises:
        RequestError: the lock does not exist, or its ROCm cannot be the requested one.
    """
    pinned = load_lock(lock)
    if pinned is None:
        raise RequestError(
            f"{lock} does not exist.",
            hint="Give the lock of the ROCm, which a build with --therock-path writes.",
        )
    request = RocmRequest(
        source=locked_source(pinned, lock),
        version=version or pinned.version,
        targets=targets,
        lock=lock,
        pinned=pinned,
        locked=True,
    )
    check_request(request)
    return request


def _public(source: str) -> str:
    """Return a URL without user, password, query and fragment, which may be secret."""
    parts = urlsplit(source)
    return urlunsplit(
        parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
    )
