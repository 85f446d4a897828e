"""HIP's own headers, from the wheels of Triton."""

from __future__ import annotations

import zipfile
from pathlib import Path

TRITON = {"7.1": "3.6.0", "6.2": "3.5.1"}
"""Version of HIP -> version of Triton whose wheel contains its headers."""
_INCLUDE = "triton/backends/amd/include/"
DEFINES = ("-D__HIP_PLATFORM_AMD__=1", "-isystem")
"""Arguments of a compiler in front of the folder."""


def unpack(wheel: Path, folder: Path) -> Path:
    """Unpack the headers of a Triton wheel below `folder`; return the folder to include from."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(f"{_INCLUDE}hip/")])
    return folder / _INCLUDE
