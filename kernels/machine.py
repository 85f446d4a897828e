"""Resources of this machine: processors, and memory within the limit of a container."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_KEEP_FREE = 0.9
"""Share of the available memory that jobs may use."""
_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def cpus() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


def available_mb(meminfo: Path = Path("/proc/meminfo"), limits: tuple[Path, ...] = _CGROUPS) -> int:
    """Return the megabytes that all jobs may use together."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(encoding="utf-8"), re.MULTILINE)
    most = int(found[1]) >> 10 if found else 1024
    for path in limits:
        with suppress(OSError, ValueError):
            most = min(most, int(path.read_text(encoding="utf-8")) >> 20)
    return max(256, int(most * _KEEP_FREE))
