"""Which GPUs this machine has, and who else uses them: the kernel and the vendor's tool are asked, never HIP or CUDA.

Sources: amdkfd's sysfs topology (Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c); amdgpu's mem_info_vram files
("GPU memory usage information" of the kernel documentation); `nvidia-smi --help-query-gpu`.
"""

from __future__ import annotations

import os
import platform as host
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from core.errors import ProcessError
from core.process import Runner
from promotion.gates.device.lease import Device, Platform

_LOCAL_MEMORY = ("1", "2")
"""heap_type of memory banks that are on the card: public and private frame buffer."""
_NVIDIA_NODE = "/dev/nvidiactl"
"""Every process that uses CUDA has it open."""
_QUERY = "index,uuid,compute_cap,memory.total,memory.free,name,driver_version"


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What a lister found.

    Attributes:
        devices: in the driver's order, without any mask.
        driver: its version.
        tenants: other processes that use a device, for people.
        facts: more that evidence should tell.
    """

    devices: tuple[Device, ...]
    driver: str = ""
    tenants: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


class DeviceLister(Protocol):
    """Looks at a machine."""

    def machine(self) -> Machine:
        """What there is; no device is no error."""


def lister(platform: Platform, runner: Runner, root: Path = Path("/")) -> DeviceLister:
    """The lister for a platform."""
    match platform:
        case Platform.ROCM:
            return KfdLister(root)
        case Platform.CUDA:
            return NvidiaLister(runner)
        case Platform.CPU:
            return CpuLister(root)


class CpuLister:
    """A machine whose GPUs, if it has some, are not used."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def machine(self) -> Machine:
        """Nothing but the name of the processor."""
        names = [line.partition(":")[2].strip() for line in _lines(self._root / "proc/cpuinfo") if "model name" in line]
        return Machine(devices=(), facts={"processor": names[0] if names else host.machine()})


class KfdLister:
    """AMD GPUs, as amdkfd shows them.

    Args:
        root: of the file system.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def machine(self) -> Machine:
        """What there is."""
        kfd = self._root / "sys/class/kfd/kfd"
        nodes = sorted(
            (node for node in _folders(kfd / "topology/nodes") if node.name.isdecimal()),
            key=lambda node: int(node.name),
        )
        found = [facts for node in nodes if (facts := _facts(node / "properties")).get("simd_count", "0") != "0"]
        gpus = [node for node in nodes if _facts(node / "properties").get("simd_count", "0") != "0"]
        devices = tuple(
            self._device(index, node, facts) for index, (node, facts) in enumerate(zip(gpus, found, strict=True))
        )
        own = {str(os.getpid())}
        tenants = tuple(f"process {p.name} uses an AMD GPU" for p in _folders(kfd / "proc") if p.name not in own)
        module = self._root / "sys/module/amdgpu/version"
        driver = next(iter(_lines(module)), "") or f"in kernel {host.release()}"
        return Machine(devices=devices, driver=driver, tenants=tenants, facts={"kernel": host.release()})

    def _device(self, index: int, node: Path, facts: Mapping[str, str]) -> Device:
        minor = facts.get("drm_render_minor", "")
        card = self._root / f"sys/class/drm/renderD{minor}/device"
        gauge = (card / "mem_info_vram_total", card / "mem_info_vram_used")
        known, used = map(_number, gauge)
        total = known or sum(_banks(node))
        unique = int(facts.get("unique_id", "0"))
        return Device(
            index=index,
            uuid=f"GPU-{unique:016x}" if unique else "",
            gfx=gfx_name(int(facts.get("gfx_target_version", "0"))),
            memory=total or 0,
            free=None if total is None or used is None else max(0, total - used),
            name=next(iter(_lines(card / "product_name")), "") or next(iter(_lines(node / "name")), ""),
            nodes=("/dev/kfd", *((f"/dev/dri/renderD{minor}",) if minor else ())),
            gauge=tuple(map(str, gauge)) if known and used is not None else (),
        )


class NvidiaLister:
    """NVIDIA GPUs, the stand-in for those who have no others."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def machine(self) -> Machine:
        """What there is; nothing where nvidia-smi is not there, or fails."""
        rows = list(self._ask(f"--query-gpu={_QUERY}"))
        devices = tuple(
            Device(
                index=int(index),
                uuid=uuid,
                gfx=capability,
                memory=_mebibytes(total) or 0,
                free=_mebibytes(free),
                name=name,
                nodes=(_NVIDIA_NODE,),
            )
            for index, uuid, capability, total, free, name, _ in rows
        )
        tenants = tuple(
            f"process {pid} ({name}) uses {uuid}"
            for uuid, pid, name in self._ask("--query-compute-apps=gpu_uuid,pid,process_name")
        )
        return Machine(devices=devices, driver=rows[0][6] if rows else "", tenants=tenants)

    def _ask(self, query: str) -> Iterator[list[str]]:
        columns = query.count(",") + 1
        with suppress(ProcessError):
            done = self._runner.run(("nvidia-smi", query, "--format=csv,noheader,nounits"), timeout=60)
            for line in done.stdout.splitlines():
                cells = [cell.strip() for cell in line.split(",")]
                if len(cells) == columns:
                    yield cells


def gfx_name(version: int) -> str:
    """Turn the kernel's gfx_target_version into a target: 90402 is gfx942, 90010 gfx90a, 110001 gfx1101."""
    major, rest = divmod(version, 10000)
    return f"gfx{major}{rest // 100:x}{rest % 100:x}" if version else ""


def _mebibytes(text: str) -> int | None:
    return int(text) << 20 if text.isdecimal() else None


def _banks(node: Path) -> Iterator[int]:
    for bank in _folders(node / "mem_banks"):
        facts = _facts(bank / "properties")
        if facts.get("heap_type") in _LOCAL_MEMORY:
            yield int(facts.get("size_in_bytes", "0"))


def _facts(path: Path) -> dict[str, str]:
    return {pair[0]: pair[1] for line in _lines(path) if len(pair := line.split()) == 2 and pair[1].isdecimal()}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # the device cgroup of a container hides the GPUs of others like this
        return []


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdecimal() else None


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []
