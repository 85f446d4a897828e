"""Memory of this machine."""

from __future__ import annotations

from pathlib import Path


def available_memory(root: Path = Path("/")) -> int:
    """Return the memory available without swapping, on this machine and in this control group.

    Sources: proc(5), MemAvailable; Linux, "Control Group v2": memory.max and
    memory.current.
    """
    lines = (root / "proc/meminfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    available = int(fields["MemAvailable"].split()[0]) << 10
    group = root / "sys/fs/cgroup"
    try:
        most = (group / "memory.max").read_text().strip()
        used = (group / "memory.current").read_text()
    except OSError:
        return available
    if most == "max":
        return available
    return min(available, max(0, int(most) - int(used)))
