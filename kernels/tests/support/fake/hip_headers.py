"""HIP's own headers, from a wheel of Triton."""

from __future__ import annotations

import zipfile
from pathlib import Path

TRITON = "3.6.0"
"""Version of Triton whose wheel contains the headers of HIP 7.1."""
_INCLUDE = "triton/backends/amd/include/"
DEFINES = ("-D__HIP_PLATFORM_AMD__=1", "-isystem")
"""Arguments of a compiler in front of the folder."""


def unpack(wheel: Path, folder: Path) -> Path:
    """Unpack the headers of a Triton wheel below `folder`; return the folder to include from."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(f"{_INCLUDE}hip/")])
    return folder / _INCLUDE
