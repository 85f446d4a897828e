"""What of this host may really be used: affinity, control groups, what Kubernetes promised, what a person says.

Sources: Linux, "Control Group v2" (cpu.max, memory.max) and "CPU bandwidth control" for version 1 (cpu.cfs_quota_us);
Kubernetes, "Resource units" for KUBE_CPU_REQUEST.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from core.errors import MachineError
from promotion.gates.device.lease import Allotment

KUBE = "KUBE_CPU_REQUEST"


def allotment(
    environ: Mapping[str, str], *, cpus: int | None = None, first: int = 0, root: Path = Path("/")
) -> Allotment:
    """What may be used.

    Where fewer cores may be busy than may be run on, neighbouring ones are taken from a place that depends on `first`:
    several jobs of one host would else all sit on the same cores.

    Args:
        environ: as inherited.
        cpus: what a person said.
        first: number of the first device that is used; jobs that share a host have different ones.
        root: of the file system.

    Raises:
        MachineError: KUBE_CPU_REQUEST that is no amount of cores.
    """
    allowed = sorted(os.sched_getaffinity(0))
    limits = [(float(len(allowed)), f"{len(allowed)} cores may be run on")]
    limits += [(quota, "a control group") for quota in quotas(root)]
    if text := environ.get(KUBE):
        limits.append((_cores(text), f"{KUBE}={text}"))
    if cpus is not None:
        limits.append((float(cpus), f"--cpus {cpus}"))
    least, why = min(limits)
    cores = max(1, int(least))
    start = first * cores % len(allowed)
    around = allowed[start:] + allowed[:start]
    return Allotment(cpus=tuple(sorted(around[:cores])), cores=cores, memory=memory(root), why=why)


def quotas(root: Path) -> Iterator[float]:
    """How many cores may be busy at once, by each control group that this process is in."""
    for folder, version in _groups(root, "cpu"):
        if version == 2:
            quota, _, period = _text(folder / "cpu.max").partition(" ")
        else:
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):
            yield int(quota) / int(period)


def memory(root: Path) -> int:
    """Bytes of RAM that this process may have."""
    lines = dict(line.split(":", 1) for line in _text(root / "proc/meminfo").splitlines() if ":" in line)
    found = [int(lines["MemTotal"].split()[0]) << 10] if "MemTotal" in lines else []
    for folder, version in _groups(root, "memory"):
        text = _text(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        found += [int(text)] if text.isdecimal() else []
    return min(found, default=0)


def _groups(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """Folders of the control groups from this process' own up to the root, each with the version of its hierarchy."""
    top = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if not names:
            base, version = top, 2
        elif controller in names.split(","):
            base, version = next((top / n for n in (names, controller) if (top / n).is_dir()), top / controller), 1
        else:
            continue
        # A container sees its own group as the root of the hierarchy, whatever its path says.
        own = base / path.lstrip("/")
        for folder in (own, *own.parents):
            if folder.is_relative_to(base):
                yield folder, version


def _cores(text: str) -> float:
    """Kubernetes' units: 8, 1.5 or 7500m."""
    try:
        cores = float(text.removesuffix("m")) / (1000 if text.endswith("m") else 1)
    except ValueError:
        cores = 0.0
    if not 0 < cores < 1 << 20:
        raise MachineError(f"{KUBE} is {text!r}, which is no amount of cores.", hint="Write it like 8 or 7500m.")
    return cores


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
