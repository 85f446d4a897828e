"""The files of this program in a checkout or an unpacked archive."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The checkout."""
PACKAGES = ("core", "wheelkit", "promotion", "kernels", "pjrt", "plugin", "ci_build")
"""Folders with the code that runs; `build` has the launchers and the lock files."""
