"""The machine: system, container, driver, device files, GPUs.

Files are read; no program or device is used.

Sources: Linux, Documentation/ABI/testing/sysfs-bus-pci and
drivers/gpu/drm/amd/amdkfd/kfd_topology.c.
"""

from __future__ import annotations

import grp
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci_build.doctor.examined import ExaminedSystem
from ci_build.doctor.examined import gpus as finder
from core import targets

_AMD = "0x1002"
_DISPLAY_CLASSES = ("0x03", "0x12")
"""PCI base classes of display controllers and processing accelerators."""
_DXCORE_FOLDERS = ("usr/lib/wsl/lib", "usr/lib", "usr/lib/x86_64-linux-gnu")
"""Folders of WSL's library on the system and, by librocdxg's manual, in containers."""
_VIDEO_MEMORY = ("1", "2")
"""Heap types of KFD memory banks on the GPU: public and private frame buffer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DetectedGpu:
    """A GPU that the kernel reports.

    Attributes:
        name: gfx target; empty if the kernel does not report it, as on WSL.
        product: product name of the target; empty if the table of targets lacks it.
        memory: bytes of device memory; 0 if unknown or shared with the CPU.
        visible: whether no mask in the environment hides the GPU.
        index: number of the GPU in HIP_VISIBLE_DEVICES; None if ROCR_VISIBLE_DEVICES
            hides it.
    """

    name: str
    product: str
    memory: int
    visible: bool
    index: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A device file of the driver.

    Attributes:
        usable: whether this user can read and write the file.
        group: name of the file's group, or its number if it has no name.
        mode: permissions, such as 0o660.
    """

    path: str
    usable: bool
    group: str
    mode: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineFacts:
    """Facts about the machine.

    Attributes:
        distribution: name and version, such as "Ubuntu 24.04.1 LTS".
        kernel: name, machine and release of the running kernel.
        libc: name and version, such as "glibc 2.39"; empty if it is not glibc.
        container: kind of container, or empty.
        wsl: whether this is the Windows Subsystem for Linux with a GPU.
        dxcore: whether WSL's library for GPUs is there.
        driver: version of amdgpu, or of the kernel that includes amdgpu; empty if
            amdgpu is not loaded.
        cards: number of AMD GPUs on the PCI bus, with or without a driver.
        mask: environment variable and value that hide all GPUs, such as
            HIP_VISIBLE_DEVICES=-1; or empty.
        kfd: /dev/kfd, if it exists.
        render: render nodes of AMD GPUs.
        groups: names of this user's groups.
        shm_mib: size of /dev/shm in MiB.
    """

    distribution: str
    kernel: tuple[str, str, str]
    libc: str
    container: str
    wsl: bool
    dxcore: bool
    driver: str
    cards: int
    gpus: tuple[DetectedGpu, ...]
    mask: str
    kfd: Device | None
    render: tuple[Device, ...]
    groups: tuple[str, ...]
    shm_mib: float

    @property
    def names(self) -> tuple[str, ...]:
        """The gfx targets of the visible GPUs, each once."""
        return tuple(
            dict.fromkeys(gpu.name for gpu in self.gpus if gpu.name and gpu.visible)
        )


def look(here: ExaminedSystem) -> MachineFacts:
    """Return the facts about the machine."""
    root = here.root
    driver = here.root / "sys/module/amdgpu"
    installed = finder.installed()
    left, mask = finder.visible(installed, here.environ)
    runtime = {
        name: value
        for name, value in here.environ.items()
        if name == "ROCR_VISIBLE_DEVICES"
    }
    numbered = [gpu.node for gpu in finder.visible(installed, runtime)[0]]
    nodes = {gpu.node for gpu in left}
    known_targets = targets.load_table().targets
    gpus = tuple(
        DetectedGpu(
            name=gpu.name,
            product=(
                known_targets[gpu.name].product if gpu.name in known_targets else ""
            ),
            memory=_memory(finder.NODES / gpu.node) if gpu.node else 0,
            visible=gpu.node in nodes,
            index=numbered.index(gpu.node) if gpu.node in numbered else None,
        )
        for gpu in installed
    )
    return MachineFacts(
        distribution=_distribution(root),
        kernel=here.system,
        libc=here.libc,
        container=_container(root, here.environ),
        wsl=finder.DXG.exists(),
        dxcore=any(
            (root / folder / "libdxcore.so").exists() for folder in _DXCORE_FOLDERS
        ),
        # Only AMD's separately packaged driver has a version; the driver in the kernel
        # has none.
        driver=(
            (_text(driver / "version") or f"of kernel {here.system[2]}")
            if driver.exists()
            else ""
        ),
        cards=_cards(root),
        gpus=gpus,
        mask=mask,
        kfd=_device(finder.KFD, root) if finder.KFD.exists() else None,
        render=tuple(
            _device(node, root)
            for node in _render_nodes(root, [gpu.node for gpu in left if gpu.node])
        ),
        groups=tuple(sorted({_group(number) for number in os.getgroups()})),
        shm_mib=finder.shm_mib(),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _distribution(root: Path) -> str:
    for line in _text(root / "etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip("\"'")
    return "an unknown distribution"


def _container(root: Path, environ: Mapping[str, str]) -> str:
    """Return the kind of container.

    Pods of Kubernetes come first: CRI-O writes the file of Podman, cri-dockerd the file
    of Docker. A pod without a service account has only the variable, which programs
    inherit in a container of Apptainer that runs in the pod.
    """
    if environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    if (
        environ.get("KUBERNETES_SERVICE_HOST")
        or (root / "var/run/secrets/kubernetes.io").exists()
    ):
        return "kubernetes"
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if any((root / name).exists() for name in (".singularity.d", "singularity")):
        return "apptainer"
    return environ.get("container", "")


def _cards(root: Path) -> int:
    try:
        devices = sorted((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return 0
    return sum(
        _text(d / "vendor") == _AMD and _text(d / "class").startswith(_DISPLAY_CLASSES)
        for d in devices
    )


def _render_nodes(root: Path, visible: Sequence[str]) -> Iterator[Path]:
    """Yield the render nodes of the visible GPUs, or else all of AMD.

    If sysfs is hidden, every render node counts.

    A job of Slurm sees the render nodes of all GPUs, but may open only those of its
    own, which are the ones in KFD.
    """
    own = {
        f"renderD{_facts(finder.NODES / node / 'properties').get('drm_render_minor', '')}"
        for node in visible
    }
    nodes = sorted((root / "dev/dri").glob("renderD*"))
    if own and own <= {node.name for node in nodes}:
        yield from (node for node in nodes if node.name in own)
        return
    yield from (
        node
        for node in nodes
        if _text(root / f"sys/class/drm/{node.name}/device/vendor") in ("", _AMD)
    )


def _facts(path: Path) -> dict[str, str]:
    """Return the properties in a file of KFD."""
    return dict(
        pair for line in _text(path).splitlines() if len(pair := line.split()) == 2
    )


def _memory(node: Path) -> int:
    total = 0
    for bank in node.glob("mem_banks/*/properties"):
        facts = _facts(bank)
        size = facts.get("size_in_bytes", "")
        total += (
            int(size)
            if facts.get("heap_type") in _VIDEO_MEMORY and size.isdecimal()
            else 0
        )
    return total


def _device(path: Path, root: Path) -> Device:
    facts = path.stat()
    return Device(
        path=f"/{path.relative_to(root)}",
        usable=os.access(path, os.R_OK | os.W_OK),
        group=_group(facts.st_gid),
        mode=facts.st_mode & 0o777,
    )


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
