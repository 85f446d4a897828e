"""Build backend that stands in for setuptools while pip downloads a source archive.

pip asks the backend for the metadata of every source archive, and setuptools would run
setup.py. This backend copies the metadata that the archive contains.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def prepare_metadata_for_build_wheel(metadata_directory: str, _: object = None) -> str:
    """Copy PKG-INFO of the current folder as the metadata of a wheel (PEP 517)."""
    info = Path(metadata_directory, "archive.dist-info")
    info.mkdir()
    shutil.copyfile("PKG-INFO", info / "METADATA")
    return info.name


__legacy__ = sys.modules[__name__]
"""Backend of archives without pyproject.toml."""
