"""Device files of AMD GPUs for containers."""

from __future__ import annotations

import stat
from pathlib import Path

from core.errors import MachineError

SHM_SIZE = "16g"
"""Size of /dev/shm for programs on GPUs: RCCL needs more than the 64 MB of an engine."""
_KFD = "dev/kfd"
_DRI = "dev/dri"


def find_gpus(root: Path = Path("/")) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the device files of AMD GPUs and their group IDs; group names differ between images.

    Raises:
        MachineError: the machine has no AMD GPU.
    """
    if not (root / _KFD).exists():
        raise MachineError(
            "No AMD GPU is available to a container: this machine has no /dev/kfd.",
            hint="Run `python3 build/ci_build doctor` for the reason, or give --platform=cpu.",
        )
    files = [root / _KFD, *sorted((root / _DRI).glob("renderD*"))]
    groups = {
        path.stat().st_gid
        for path in files
        if stat.S_IMODE(path.stat().st_mode) & 0o006 != 0o006
    }
    devices = [f"/{_KFD}"] + ([f"/{_DRI}"] if (root / _DRI).is_dir() else [])
    return tuple(devices), tuple(str(group) for group in sorted(groups - {0}))
