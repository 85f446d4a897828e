"""The machine: system, kind of container, driver, device files and GPUs, read from files.

Sources: Linux, Documentation/ABI/testing/sysfs-bus-pci; ROCm documentation, "Running ROCm
Docker containers"; podman-run(1), --group-add keep-groups; Apptainer user guide, "GPU
Support"; AMD GPU device plugin for Kubernetes; gres.conf(5) and srun(1).
"""

from __future__ import annotations

import grp
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from . import _gpus

_AMD = "0x1002"
_DISPLAY_CLASSES = ("0x03", "0x12")
"""PCI base classes of display controllers and processing accelerators."""
_DEVICES = "--device=/dev/kfd --device=/dev/dri"
_SHM = "--shm-size=64g"
# Few images have the host's group, and Docker refuses names that an image lacks.
_DOCKER = f'docker run {_DEVICES} --group-add "$(stat -c %g /dev/kfd)" {_SHM} IMAGE'
# Podman without root keeps groups of the user instead of adding them.
_PODMAN = f"podman run {_DEVICES} --group-add keep-groups {_SHM} IMAGE"
_JOIN = 'sudo usermod -aG {groups} "$USER"  # and log in again'
_ENLARGE = "sudo mount -o remount,size=64g /dev/shm"
_REMEDIES: Mapping[str, tuple[str, str, str]] = {
    "": ("sudo modprobe amdgpu", _JOIN, _ENLARGE),
    "docker": (_DOCKER, _DOCKER, _DOCKER),
    "podman": (_PODMAN, _PODMAN, _PODMAN),
    # Users of Apptainer have their groups and /dev/shm of the host.
    "apptainer": ("apptainer exec --rocm IMAGE COMMAND", _JOIN, _ENLARGE),
    "kubernetes": (
        "resources: {{limits: {{amd.com/gpu: 1}}}}",
        "securityContext: {{supplementalGroups: [GID of {groups}]}}",
        "volumes: [{{name: shm, emptyDir: {{medium: Memory, sizeLimit: 64Gi}}}}]",
    ),
}
"""Kind of container -> remedies for missing devices, missing groups and a small /dev/shm."""
SLURM_GPU = "srun --gpus=1 --pty bash"


@dataclass(frozen=True)
class Device:
    """A device file of the driver.

    Attributes:
        usable: whether this user can read and write the file.
        gid: number of the file's group.
    """

    path: str
    usable: bool
    gid: int

    @property
    def group(self) -> str:
        """Name of the file's group, or its number if it has no name."""
        return _group(self.gid)


@dataclass(frozen=True)
class Machine:
    """Facts about the machine.

    Attributes:
        system: operating system and architecture, such as "Linux x86_64".
        libc: name and version, such as "glibc 2.39"; empty if it is not glibc.
        container: kind of container; empty for none.
        slurm: whether this process belongs to a job of Slurm.
        driver: whether amdgpu is loaded.
        gpus: GPUs that the kernel shows to this process.
        visible: GPUs that no environment variable hides.
        mask: variable and value that hide the last GPU, such as HIP_VISIBLE_DEVICES=-1.
        kfd: /dev/kfd if it exists.
        render: render nodes of the visible GPUs, or all render nodes if sysfs does not
            report them.
    """

    system: str
    libc: str
    container: str
    slurm: bool
    driver: bool
    gpus: tuple[_gpus.Gpu, ...]
    visible: tuple[_gpus.Gpu, ...]
    mask: str
    kfd: Device | None
    render: tuple[Device, ...]

    @property
    def wsl(self) -> bool:
        """Whether this is the Windows Subsystem for Linux with a GPU."""
        return self.gpus == (_gpus.Gpu(),)

    @property
    def place(self) -> str:
        """Name of the environment in sentences."""
        if self.slurm:
            return "job of Slurm"
        return "container" if self.container else "machine"

    def start(self) -> str:
        """Return the command that gives this environment the GPUs' devices."""
        return SLURM_GPU if self.slurm else self._remedy(0)

    def join(self, groups: Sequence[str]) -> str:
        """Return the command that gives the user groups of device files."""
        return self._remedy(1, ",".join(groups))

    def enlarge_shm(self) -> str:
        """Return the command that enlarges /dev/shm."""
        return self._remedy(2)

    def _remedy(self, column: int, groups: str = "") -> str:
        remedies = _REMEDIES.get(self.container, _REMEDIES["docker"])
        return remedies[column].format(groups=groups)


def look(environ: Mapping[str, str]) -> Machine:
    """Return the facts about this machine."""
    system = os.uname()
    libc = ""
    with suppress(OSError, ValueError):
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    gpus = _gpus.installed()
    visible, mask = _gpus.visible(gpus, environ)
    kfd = _gpus.ROOT / "dev/kfd"
    return Machine(
        system=f"{system.sysname} {system.machine}",
        libc=libc,
        container=_container(environ),
        slurm=bool(environ.get("SLURM_JOB_ID")),
        driver=(_gpus.ROOT / "sys/module/amdgpu").exists(),
        gpus=gpus,
        visible=visible,
        mask=mask,
        kfd=_device(kfd) if kfd.exists() else None,
        render=tuple(_device(path) for path in _render_nodes(visible)),
    )


def _container(environ: Mapping[str, str]) -> str:
    """Return the kind of container.

    Pods of Kubernetes come before Docker and Podman, whose files CRI-O and cri-dockerd
    write. A pod without a service account has only the variable, which programs inherit
    in a container of Apptainer that runs in the pod.
    """
    root = _gpus.ROOT
    if environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    files = {
        "var/run/secrets/kubernetes.io": "kubernetes",
        ".dockerenv": "docker",
        "run/.containerenv": "podman",
        ".singularity.d": "apptainer",
    }
    for file, kind in files.items():
        with suppress(OSError):  # a folder that the user may not read
            if (root / file).exists():
                return kind
    return environ.get("container", "")


def _render_nodes(visible: Sequence[_gpus.Gpu]) -> list[Path]:
    """Return the render nodes of the visible GPUs, or all if sysfs does not name them.

    A job of Slurm sees the render nodes of all GPUs, but may open only those of its own.
    """
    nodes = sorted((_gpus.ROOT / "dev/dri").glob("renderD*"))
    names = {gpu.render for gpu in visible}
    own = [node for node in nodes if node.name in names]
    return own or nodes


def _device(path: Path) -> Device:
    return Device(str(path), _usable(path), path.stat().st_gid)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _usable(path: Path) -> bool:
    # The runtime opens the devices for reading and writing.
    return os.access(path, os.R_OK | os.W_OK)


def own_groups() -> set[str]:
    """Return the names of the groups of this user."""
    return {_group(number) for number in os.getgroups()}


def pci_cards() -> int:
    """Return the number of AMD GPUs on the PCI bus, with or without a driver."""
    count = 0
    for device in (_gpus.ROOT / "sys/bus/pci/devices").glob("*"):
        if text_of(device / "vendor") == _AMD:
            count += text_of(device / "class").startswith(_DISPLAY_CLASSES)
    return count


def shm_mib() -> float:
    """Return the size of /dev/shm in MiB; 0 if it does not exist."""
    try:
        stat = os.statvfs(_gpus.ROOT / "dev/shm")
    except OSError:
        return 0.0
    return stat.f_blocks * stat.f_frsize / 2**20


def text_of(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
