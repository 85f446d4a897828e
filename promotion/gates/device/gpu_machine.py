"""GPUs of this machine, and the cores and memory that this process may use.

The kernel and the vendor's tool are queried, never HIP or CUDA.

Sources: amdgpu's mem_info_vram files ("GPU memory usage information" of the kernel
documentation); `nvidia-smi --help-query-gpu`; Linux, "Control Group v2" (cpu.max,
memory.max).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from core.errors import ProcessError
from core.frozen import frozen
from core.kfd import gfx_name, gpu_nodes, uuid
from core.process import Runner
from promotion.gates.device.lease import Allotment, GpuDevice, JaxPlatform

_NVIDIA_NODE = "/dev/nvidiactl"
"""File that every process using CUDA has open."""
_QUERY = "index,uuid,compute_cap,memory.total,memory.free,name,driver_version"


@frozen
class MachineInfo:
    """Devices of a machine and their state.

    Attributes:
        devices: all devices in the driver's order, regardless of masks.
        driver: version of the driver.
    """

    devices: tuple[GpuDevice, ...]
    driver: str = ""


def detect_machine(
    platform: JaxPlatform, runner: Runner, root: Path = Path("/")
) -> MachineInfo:
    """Return the devices of this machine for a platform; a machine without devices is not an error.

    Args:
        runner: runner of nvidia-smi.
        root: root of the file system.
    """
    match platform:
        case JaxPlatform.ROCM:
            return _amd_machine(root)
        case JaxPlatform.CUDA:
            return _nvidia_machine(runner)
        case JaxPlatform.CPU:
            return MachineInfo(devices=())


def free_memory(
    platform: JaxPlatform, runner: Runner, root: Path = Path("/")
) -> dict[str, int]:
    """Return the free bytes of each device that reports them, or of RAM on a CPU, named ""."""
    if platform is JaxPlatform.CPU:
        text = _text(root / "proc/meminfo")
        match = re.search(r"^MemAvailable:\s*(\d+)", text, re.MULTILINE)
        return {"": int(match[1]) << 10} if match else {}
    free = {}
    for device in detect_machine(platform, runner, root).devices:
        if device.free is not None:
            free[device.token] = device.free
    return free


def _amd_machine(root: Path) -> MachineInfo:
    """Return the GPUs in the order of their nodes in amdkfd's topology."""
    gpus = gpu_nodes(root / "sys/class/kfd/kfd/topology/nodes")
    devices = []
    for index, (node, facts) in enumerate(gpus):
        devices.append(_amd_device(root, index, node, facts))
    version = _first_line(root / "sys/module/amdgpu/version")
    return MachineInfo(devices=tuple(devices), driver=version or "of the kernel")


def _amd_device(
    root: Path, index: int, node: Path, facts: Mapping[str, int]
) -> GpuDevice:
    minor = facts.get("drm_render_minor", "")
    card = root / f"sys/class/drm/renderD{minor}/device"
    total = _number(card / "mem_info_vram_total") or 0
    used = _number(card / "mem_info_vram_used")
    return GpuDevice(
        index=index,
        uuid=uuid(facts),
        gfx=gfx_name(facts),
        memory=total,
        free=None if used is None else max(0, total - used),
        name=_first_line(card / "product_name") or _first_line(node / "name"),
        nodes=("/dev/kfd", *((f"/dev/dri/renderD{minor}",) if minor else ())),
    )


def _nvidia_machine(runner: Runner) -> MachineInfo:
    """Return the GPUs that nvidia-smi lists; none if nvidia-smi is missing or fails."""
    argv = ("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits")
    text = ""
    with suppress(ProcessError):
        text = runner.run(argv, timeout=60).stdout
    devices = []
    driver = ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 7:  # a message
            continue
        index, uuid, capability, total, free, name, driver = cells
        device = GpuDevice(
            index=int(index),
            uuid=uuid,
            gfx=capability,
            memory=_mebibytes(total) or 0,
            free=_mebibytes(free),
            name=name,
            nodes=(_NVIDIA_NODE,),
        )
        devices.append(device)
    return MachineInfo(devices=tuple(devices), driver=driver)


def detect_allotment(root: Path = Path("/")) -> Allotment:
    """Return the number of cores and the memory that this process may use.

    Args:
        root: root of the file system.
    """
    cores = [float(len(os.sched_getaffinity(0)))]
    total = re.search(r"^MemTotal:\s*(\d+)", _text(root / "proc/meminfo"), re.MULTILINE)
    memory = [int(total[1]) << 10 if total else 0]
    for folder in control_groups(root):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            cores.append(int(quota) / int(period))
        if (limit := _number(folder / "memory.max")) is not None:
            memory.append(limit)
    return Allotment(cores=max(1, int(min(cores))), memory=min(memory))


def control_groups(root: Path) -> Iterator[Path]:
    """Yield this process's control group and its parents (version 2)."""
    top = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if not names:
            # A container sees its own group as the root of the hierarchy, even if the
            # path differs.
            own = top / path.lstrip("/")
            for folder in (own, *own.parents):
                if folder.is_relative_to(top):
                    yield folder


def _mebibytes(text: str) -> int | None:
    return int(text) << 20 if text.isdecimal() else None


def _first_line(path: Path) -> str:
    return next(iter(_text(path).splitlines()), "")


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (
        OSError
    ):  # a container's device cgroup denies access to other containers' GPUs
        return ""
