"""AMD GPUs that this process may use, read from the kernel driver amdkfd.

HIP is not started, as profilers require. Sources: Linux,
drivers/gpu/drm/amd/amdkfd/kfd_topology.c; ROCm documentation, "GPU isolation techniques".
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path("/")
"""Root folder; tests examine other machines below another one."""
TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"
DXG = "dev/dxg"
"""Device of GPUs on the Windows Subsystem for Linux."""


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Attributes:
        name: gfx target such as gfx942; empty if the kernel does not report it, as on
            WSL.
        uuid: identifier in ROCR_VISIBLE_DEVICES, such as GPU-18f1a2b3c4d5e6f7; empty if
            unknown.
        node: number of the GPU's node in the topology; empty if unknown.
        render: name of its render node, such as renderD128; empty if unknown.
    """

    name: str = ""
    uuid: str = ""
    node: str = ""
    render: str = ""


def installed() -> tuple[Gpu, ...]:
    """Return the GPUs that the kernel shows to this process, in the order of their nodes."""
    if (ROOT / DXG).exists():
        return (Gpu(),)
    return tuple(_nodes())


def _nodes() -> Iterator[Gpu]:
    try:
        nodes = [node for node in (ROOT / TOPOLOGY).iterdir() if node.name.isdecimal()]
    except OSError:
        return
    for node in sorted(nodes, key=lambda node: int(node.name)):
        facts = _properties(node / "properties")
        # 0 or missing for CPUs and for GPUs that a device cgroup hides.
        if not facts.get("simd_count"):
            continue
        minor = facts.get("drm_render_minor", 0)
        unique_id = facts.get("unique_id", 0)
        yield Gpu(
            name=_gfx_name(facts.get("gfx_target_version", 0)),
            uuid=f"GPU-{unique_id:016x}" if unique_id else "",
            node=node.name,
            render=f"renderD{minor}" if minor else "",
        )


def _properties(file: Path) -> dict[str, int]:
    try:
        lines = file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = [line.split() for line in lines]
    return {
        pair[0]: int(pair[1])
        for pair in pairs
        if len(pair) == 2 and pair[1].isdecimal()
    }


def _gfx_name(version: int) -> str:
    """Return the gfx target: 90402 is gfx942, 90010 gfx90a, 110001 gfx1101."""
    major, rest = divmod(version, 10000)
    return f"gfx{major}{rest // 100:x}{rest % 100:x}" if major else ""


def visible(
    gpus: Sequence[Gpu], environ: Mapping[str, str] = os.environ
) -> tuple[tuple[Gpu, ...], str]:
    """Apply the user's masks and version override.

    An empty ROCR_VISIBLE_DEVICES hides all GPUs. An empty HIP_VISIBLE_DEVICES is
    ignored, and CUDA_VISIBLE_DEVICES is used instead. The second mask indexes the GPUs
    that the first one leaves visible.

    Returns:
        The visible GPUs, and the mask that hid the last GPU, such as
        "HIP_VISIBLE_DEVICES=-1", or "".
    """
    left = tuple(gpus)
    masks = ["ROCR_VISIBLE_DEVICES"] if "ROCR_VISIBLE_DEVICES" in environ else []
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        if environ.get(name):
            masks.append(name)
            break
    for mask in masks:
        left = _masked(left, environ[mask])
        if not left:
            return (), f"{mask}={environ[mask]}"
    override = environ.get("HSA_OVERRIDE_GFX_VERSION", "").split(".")
    if len(override) == 3 and all(part.isdecimal() for part in override):
        major, minor, step = map(int, override)
        left = tuple(replace(gpu, name=f"gfx{major}{minor:x}{step:x}") for gpu in left)
    return left, ""


def _masked(gpus: tuple[Gpu, ...], mask: str) -> tuple[Gpu, ...]:
    kept = []
    for token in map(str.strip, mask.split(",")):
        if token.startswith("GPU-"):
            same = [gpu for gpu in gpus if gpu.uuid.lower().startswith(token.lower())]
            if not same:  # an unknown spelling is left to the runtime
                return gpus
            kept.append(same[0])
        elif token.isdecimal() and int(token) < len(gpus):
            kept.append(gpus[int(token)])
        else:  # the runtime ignores the first invalid index and the rest of the mask
            break
    return tuple(kept)


def has_code(
    name: str, targets: Iterable[str], covers: Mapping[str, Sequence[str]]
) -> bool:
    """Return whether a wheel has code that a processor runs.

    The runtime checks features such as :xnack-.

    Args:
        name: the processor, such as gfx942.
        targets: targets of the wheel's code; empty if unknown, in which case any
            processor is accepted.
        covers: generic target -> the processors that run its code.
    """
    has = {target.partition(":")[0] for target in targets}
    if not has or name in has:
        return True
    return any(name in covers.get(target, ()) for target in has)
