"""The files of this program in a checkout or an unpacked archive."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The checkout."""
PACKAGES = ("core", "wheelkit", "promotion", "kernels", "pjrt", "plugin", "ci_build")
"""Folders with the code that runs; `build` has the launchers and the lock files."""
NOT_RUN = ("__pycache__", "tests")
"""Folders of the packages without code that runs."""


def own_files(root: Path, packages: Sequence[str] = PACKAGES) -> list[Path]:
    """Return the sorted files of a checkout's packages, without the folders NOT_RUN."""
    found = []
    for package in packages:
        for path in (root / package).rglob("*"):
            below = path.relative_to(root).parts
            if path.is_file() and not set(NOT_RUN) & set(below):
                found.append(path)
    return sorted(found)


def program_version() -> str:
    """Return the version in pyproject.toml, the only place that names it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    version: str = project["project"]["version"]
    return version
