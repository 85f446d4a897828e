"""Digest of the gates' code, on which their evidence depends."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import wheelkit
from core import rocm_layouts as layouts
from core import targets as target_tables
from core.digests import sha256_of

_GATES = Path(__file__).parents[1]
_FOLDERS = (_GATES, Path(wheelkit.__file__).parent)
_SUITES = _GATES / "suites"
_TABLES = (Path(target_tables.__file__), Path(layouts.__file__))
"""Modules with a TOML file of the same name."""


@functools.cache
def code_digest() -> str:
    """Return the SHA-256 of the gates' code and tables; evidence of other code is not reused.

    A table of a single gate is covered by the settings of that gate.
    """
    lines = (f"{path.name} {sha256_of(path)}\n" for path in sources())
    return sha256_of("".join(lines).encode())


def sources() -> Iterator[Path]:
    """Yield the files that `code_digest` covers."""
    for folder in _FOLDERS:
        files = sorted((*folder.rglob("*.py"), *folder.rglob("*.txt")))
        yield from (path for path in files if _SUITES not in path.parents)
    for module in _TABLES:
        yield from (module, module.with_suffix(".toml"))
