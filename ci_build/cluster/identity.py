"""Identity of a program.

A worker runs tasks only for clients with the same files and the same Python.
"""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Mapping
from pathlib import Path

from core.own_files import ROOT, own_files


@functools.cache
def own_identity(root: Path = ROOT) -> str:
    """Return the identity of the program in a checkout, with Python and architecture.

    It covers the files of the packages, except tests, the lock files, the version of
    Python, and the machine's architecture.
    """
    digest = hashlib.sha256()
    for path in sorted((*own_files(root), *(root / "build").glob("*.lock"))):
        data = path.read_bytes()
        digest.update(
            f"{path.relative_to(root).as_posix()} {len(data)}\n".encode() + data
        )
    return f"program:{digest.hexdigest()[:16]}-{platform.python_version()}-{platform.machine()}"


def identity_of(resources: Mapping[str, float]) -> str:
    """Return the identity that a worker offers as a resource; empty if it offers none."""
    return next((name for name in resources if name.startswith("program:")), "")
