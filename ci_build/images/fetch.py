"""Downloads of files for images, stored under their sha256."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ci_build.images.pins import Pin
from core.errors import InputError
from core.model import Progress
from core.process import without_credentials

_READ = 1 << 20
if TYPE_CHECKING:  # a dry run opens no connection
    from core.http.client import Connect


def fetch(pin: Pin, connect: Connect, cache: Path, progress: Progress) -> Path:
    """Return the file of a pin; an interrupted download resumes.

    Raises:
        InputError: the download fails, or its digest is wrong.
    """
    from filelock import FileLock

    folder = cache / "files" / pin.digest
    path, part = folder / "file", folder / "part"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        if path.exists():
            # Marks the entry as used for `cache gc`.
            os.utime(folder)
            return path
        progress.step(f"fetching {pin.name} {pin.version} for {pin.arch}")
        found = _append(pin.origin, connect, part, progress)
        if found != pin.digest:
            part.unlink()
            raise InputError(
                f"{without_credentials(pin.origin)} has sha256 {found}, but {pin.label} is pinned to {pin.digest}.",
                hint="Do not use the file: find out why it changed.",
            )
        part.rename(path)
    return path


def digest_of(url: str, connect: Connect, folder: Path, progress: Progress) -> str:
    """Download a URL and return its sha256."""
    part = folder / "update.part"
    part.unlink(missing_ok=True)
    try:
        return _append(url, connect, part, progress)
    finally:
        part.unlink(missing_ok=True)


def _append(url: str, connect: Connect, part: Path, progress: Progress) -> str:
    """Complete a partial download, and return the sha256 of the whole file."""
    from core.http.download import RemoteFile

    sha256, done = hashlib.sha256(), 0
    with part.open("ab+") as file:
        file.seek(0)
        while data := file.read(_READ):
            sha256.update(data)
            done += len(data)
        remote = RemoteFile(connect(), url)
        for chunk in remote.chunks(done, sha256):
            file.write(chunk)
            done += len(chunk)
            progress.advance(done, remote.version.size or 0)
        file.flush()
        os.fsync(file.fileno())
    return sha256.hexdigest()
