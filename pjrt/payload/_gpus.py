"""AMD GPUs that this process may use, read from the kernel driver.

HIP is not started, as profilers require. Source of the masks: ROCm documentation, "GPU
isolation techniques".
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ._kfd import TOPOLOGY, gfx_name, gpu_nodes, uuid

NODES = TOPOLOGY
KFD = Path("/dev/kfd")
DXG = Path("/dev/dxg")
SHM = Path("/dev/shm")  # noqa: S108


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU.

    Attributes:
        name: gfx target such as gfx942; empty if the kernel does not report it, as on
            WSL.
        uuid: identifier in ROCR_VISIBLE_DEVICES, such as GPU-18f1a2b3c4d5e6f7; empty if
            unknown.
        node: number of the GPU's node in the topology; empty if unknown.
    """

    name: str = ""
    uuid: str = ""
    node: str = ""


def installed() -> tuple[Gpu, ...]:
    """Return the GPUs that the kernel shows to this process, in the order of their nodes."""
    if DXG.exists():
        return (Gpu(),)
    return tuple(
        Gpu(name=gfx_name(facts), uuid=uuid(facts), node=node.name)
        for node, facts in gpu_nodes(NODES)
    )


def may_open() -> bool:
    """Return whether this process may use the driver.

    The runtime opens /dev/kfd for reading and writing.
    """
    return os.access(KFD, os.R_OK | os.W_OK)


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
    masks = []
    if "ROCR_VISIBLE_DEVICES" in environ:
        masks.append("ROCR_VISIBLE_DEVICES")
    masks += [
        name
        for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
        if environ.get(name)
    ][:1]
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
    return (
        not has or name in has or any(name in covers.get(target, ()) for target in has)
    )


def shm_mib() -> float:
    """Return the size of /dev/shm in MiB; 0 if it does not exist."""
    try:
        stat = os.statvfs(SHM)
    except OSError:
        return 0.0
    return stat.f_blocks * stat.f_frsize / 2**20
