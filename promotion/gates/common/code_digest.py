"""What the gates are made of: programs, and tables that they judge by."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

import wheelkit
from core import layouts, targets
from promotion.storage.bucket import sha256_of

_HERE = Path(__file__).parent
_FOLDERS = (_HERE.parent, Path(wheelkit.__file__).parent)
_SUITES = _HERE.parent / "suites"
_TABLES = (Path(targets.__file__), Path(layouts.__file__))
"""Each stands beside its table."""


@functools.cache
def code_digest() -> str:
    """SHA-256 of the programs and their tables: what a gate said before one of them was changed is no answer.

    Tables that only one gate reads are among that gate's settings.
    """
    sums = hashlib.sha256()
    for path in sources():
        sums.update(f"{path.name} {sha256_of(path)}\n".encode())
    return sums.hexdigest()


def sources() -> Iterator[Path]:
    """The files."""
    for folder in _FOLDERS:
        found = sorted((*folder.rglob("*.py"), *folder.rglob("*.txt")))
        yield from (path for path in found if _SUITES not in path.parents)
    for module in _TABLES:
        yield from (module, module.with_suffix(".toml"))
