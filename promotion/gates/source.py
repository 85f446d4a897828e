"""What the gates are made of: programs, and tables that they judge by."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

from ci_build import layouts, targets
from ci_build import wheel as wheel_package
from promotion.bucket import sha256_of

_HERE = Path(__file__).parent
_FOLDERS = (_HERE, _HERE / "device", _HERE / "device" / "plugin", Path(wheel_package.__file__).parent)
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
        yield from sorted((*folder.glob("*.py"), *folder.glob("*.txt")))
    for module in _TABLES:
        yield from (module, module.with_suffix(".toml"))
