"""Which archives can be read, by their names."""

from __future__ import annotations

from core.errors import RequestError

FORMATS = {".tar.gz": "gz", ".tgz": "gz", ".tar.xz": "xz", ".txz": "xz", ".tar.zst": "zst", ".tzst": "zst"}
"""Endings of the archives that can be read."""


def format_of(name: str) -> str:
    """Which compression a file's name tells.

    Raises:
        RequestError: none that is known.
    """
    for ending, found in FORMATS.items():
        if name.endswith(ending):
            return found
    raise RequestError(f"{name!r} is not a tarball that can be read.", hint=f"Known are {', '.join(FORMATS)}.")
