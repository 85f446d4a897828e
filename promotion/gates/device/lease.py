"""Leases of GPUs to workers.

This module only computes; `machine` detects devices and allotments.

The driver's own mask, below HIP and CUDA, restricts a worker to its device, so the
worker cannot reach other devices.

Sources: "GPU isolation techniques" of the ROCm documentation (ROCR_VISIBLE_DEVICES
accepts indices and UUIDs, and HIP renumbers the remaining devices); "CUDA environment
variables" of the CUDA programming guide; jax-ml/jax, ci/run_pytest_rocm.sh, for the
number of workers.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from core.errors import MachineError
from core.frozen import frozen

GIB = 1 << 30
DEVICE_SHARE = 2 * GIB
"""Bytes of device memory that JAX's suite needs for each worker."""
RAM_SHARE = 6 * GIB
MOST_WORKERS = 16
_LIBRARIES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NPROC",
)
"""Variables that limit the threads of numerical libraries; XLA's thread pools read NPROC."""


class JaxPlatform(enum.StrEnum):
    """Platform of JAX on which the tests run."""

    ROCM = "rocm"
    CPU = "cpu"
    CUDA = "cuda"

    @property
    def masks(self) -> tuple[str, ...]:
        """Return the variables that hide devices, lowest layer first."""
        match self:
            case JaxPlatform.ROCM:
                return ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
            case JaxPlatform.CUDA:
                return ("CUDA_VISIBLE_DEVICES",)
            case JaxPlatform.CPU:
                return ()


@frozen
class GpuDevice:
    """A GPU as the driver presents it to a process without masks.

    Attributes:
        index: position in the driver's order.
        uuid: UUID as written in masks; empty if the driver reports none.
        gfx: target such as gfx942, or the compute capability of a CUDA device, such as
            9.0.
        memory: total memory in bytes.
        free: unused memory in bytes; None if unknown.
        name: product name.
        nodes: files that every process using the device has open.
    """

    index: int
    uuid: str = ""
    gfx: str = ""
    memory: int = 0
    free: int | None = None
    name: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def token(self) -> str:
        """Return the device's name in a mask.

        Its UUID, which is stable under other masks, or else its index.
        """
        return self.uuid or str(self.index)


@frozen
class Allotment:
    """Cores and memory of the host that this process may use.

    Attributes:
        cores: number of cores that may be busy at once, at least 1.
        memory: bytes of RAM.
    """

    cores: int
    memory: int

    @property
    def workers(self) -> int:
        """Return the number of workers for which cores and memory suffice."""
        return min(self.cores, self.memory // RAM_SHARE, MOST_WORKERS)


@frozen
class Lease:
    """Resources of one worker.

    Attributes:
        device: token of the device; empty on a CPU.
        env: changes to the worker's environment before jax is imported; "" removes a
            variable.
        memory: bytes of the largest device, or of RAM on a CPU.
        nodes: `nodes` of the devices, see `GpuDevice`.
        alone: whether no other worker uses the devices.
    """

    device: str
    env: Mapping[str, str]
    memory: int = 0
    nodes: tuple[str, ...] = ()
    alone: bool = False


def visible_devices(
    devices: Sequence[GpuDevice], platform: JaxPlatform, environ: Mapping[str, str]
) -> tuple[GpuDevice, ...]:
    """Return the devices that the masks of the environment leave.

    Each mask indexes the devices of the previous mask.

    An empty ROCR_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES hides everything; an empty
    HIP_VISIBLE_DEVICES has no effect.

    Raises:
        MachineError: a mask names a device that does not exist, or the same device
            twice, or is invalid.
    """
    left = tuple(devices)
    for name in platform.masks:
        text = environ.get(name)
        if text or (text == "" and name == platform.masks[0]):
            left = _masked(left, name, text)
    return left


def _masked(
    devices: Sequence[GpuDevice], name: str, text: str
) -> tuple[GpuDevice, ...]:
    chosen: list[GpuDevice] = []
    for entry in filter(None, map(str.strip, text.split(","))):
        matches = _find(devices, entry)
        if not matches:
            names = ", ".join(device.token for device in devices) or "none"
            raise MachineError(
                f"{name}={text}: {entry!r} is not a device.",
                hint=f"Choose from these devices: {names}.",
            )
        if matches[0] in chosen:
            raise MachineError(
                f"{name}={text} names {entry!r} twice.", hint="Name each device once."
            )
        chosen += matches
    return tuple(chosen)


def _find(devices: Sequence[GpuDevice], entry: str) -> list[GpuDevice]:
    """Return the device that an entry of a mask names by its index or UUID."""
    if entry.isdecimal():
        return list(devices[int(entry) : int(entry) + 1])
    return [device for device in devices if device.uuid == entry]


def workers_per_device(devices: Sequence[GpuDevice], allotment: Allotment) -> int:
    """Return the number of workers per device: the minimum of several limits, at least one.

    The limits are the device's free memory / 2 GiB, and, divided by the number of
    devices, the cores, RAM / 6 GiB and 16. A device that does not report its free
    memory counts with all of its memory. Without devices, the number is 1.
    """
    if not devices:
        return 1
    free = [device.memory if device.free is None else device.free for device in devices]
    workers = allotment.workers // len(devices)
    return max(1, min(min(free) // DEVICE_SHARE, workers))


def leases(
    platform: JaxPlatform,
    devices: Sequence[GpuDevice],
    allotment: Allotment,
) -> tuple[Lease, ...]:
    """Return a lease for each worker.

    Every device is used, by as many workers as `workers_per_device` returns. A CPU has a
    worker for each core, if the memory suffices.

    Args:
        devices: devices left by `visible_devices`; none on a CPU.

    Raises:
        MachineError: there is no device.
    """
    owners: Sequence[tuple[GpuDevice, ...]]
    per_device = workers_per_device(devices, allotment)
    if platform is JaxPlatform.CPU:
        owners = [()] * max(1, allotment.workers)
    elif not devices:
        raise MachineError(
            f"No {platform} device is available.",
            hint="Check whether masks hide the devices.",
        )
    else:
        # Devices alternate, so that a session with fewer workers than leases still uses
        # every device.
        owners = [(device,) for device in devices] * per_device
    share = Allotment(
        cores=max(1, allotment.cores // len(owners)), memory=allotment.memory
    )
    return tuple(
        _lease(platform, owned, share, shared=per_device > 1) for owned in owners
    )


def whole_machine_lease(
    platform: JaxPlatform, devices: Sequence[GpuDevice], allotment: Allotment
) -> Lease:
    """Return the lease of a process that uses all devices at once."""
    return _lease(platform, devices, allotment)


def _lease(
    platform: JaxPlatform,
    devices: Sequence[GpuDevice],
    share: Allotment,
    *,
    shared: bool = False,
) -> Lease:
    """Return the lease of a process with these devices and a share of the host."""
    tokens = ",".join(device.token for device in devices)
    env = dict.fromkeys(_LIBRARIES, str(share.cores))
    if devices:
        env[platform.masks[0]] = tokens
    if devices and platform is JaxPlatform.ROCM:
        # Masks of upper layers number the remaining devices from zero.
        env["HIP_VISIBLE_DEVICES"] = ",".join(map(str, range(len(devices))))
    nodes: dict[str, None] = {}
    for device in devices:
        nodes |= dict.fromkeys(device.nodes)
    return Lease(
        device=tokens,
        env=env,
        memory=max((device.memory for device in devices), default=share.memory),
        nodes=tuple(nodes),
        alone=not shared,
    )
