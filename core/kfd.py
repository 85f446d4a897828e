"""AMD GPUs in the topology of the kernel driver amdkfd.

Standard library only, since the pjrt wheel has a copy.

Source: Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")


def gpu_nodes(topology: Path) -> Iterator[tuple[Path, dict[str, int]]]:
    """Yield folder and properties of each GPU, in the order of the driver's nodes."""
    try:
        nodes = sorted(
            (node for node in topology.iterdir() if node.name.isdecimal()),
            key=lambda node: int(node.name),
        )
    except OSError:
        return
    for node in nodes:
        facts = properties(node / "properties")
        if facts.get(
            "simd_count"
        ):  # 0 or missing for CPUs and for GPUs that a device cgroup hides.
            yield node, facts


def properties(file: Path) -> dict[str, int]:
    """Return the numbers in a properties file; empty if the file cannot be read."""
    try:
        pairs = [
            line.split()
            for line in file.read_text(encoding="ascii", errors="replace").splitlines()
        ]
    except OSError:
        return {}
    return {
        pair[0]: int(pair[1])
        for pair in pairs
        if len(pair) == 2 and pair[1].isdecimal()
    }


def gfx_name(facts: Mapping[str, int]) -> str:
    """Return the gfx target of a GPU; empty if unknown.

    Version 90402 is gfx942, 90010 gfx90a, 110001 gfx1101.
    """
    major, rest = divmod(facts.get("gfx_target_version", 0), 10000)
    return f"gfx{major}{rest // 100:x}{rest % 100:x}" if major else ""


def uuid(facts: Mapping[str, int]) -> str:
    """Return the identifier of a GPU for ROCR_VISIBLE_DEVICES, such as GPU-18f1a2b3c4d5e6f7.

    Empty if unknown.
    """
    return f"GPU-{facts['unique_id']:016x}" if facts.get("unique_id") else ""
