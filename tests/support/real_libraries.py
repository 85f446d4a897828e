"""Libraries of published wheels, unpacked for one test."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def unpacked(wheel: Path, folder: Path) -> Iterator[list[Path]]:
    """Yield the libraries of a wheel, sorted by name.

    Up to 1.5 GB, which are deleted afterwards.
    """
    libraries: list[Path] = []
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [
                name for name in sorted(archive.namelist()) if name.endswith(".so")
            ]
            libraries.extend(Path(archive.extract(name, folder)) for name in names)
        yield libraries
    finally:
        for path in libraries:
            path.unlink(missing_ok=True)
