"""Who gets which GPU and which cores: pure; devices and allotments come from elsewhere.

A worker is lent one device through the driver's own mask, below HIP and CUDA, so that it cannot reach another one.

Sources: "GPU isolation techniques" of the ROCm documentation (ROCR_VISIBLE_DEVICES takes indices and UUIDs, and HIP
counts anew what is left); "CUDA environment variables" of the CUDA programming guide; jax-ml/jax,
ci/run_pytest_rocm.sh, for the number of workers.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from core.errors import MachineError, RequestError

GIB = 1 << 30
DEVICE_SHARE = 2 * GIB
"""Bytes of device memory that JAX's suite wants for each worker."""
RAM_SHARE = 6 * GIB
MOST_WORKERS = 16
_LIBRARIES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NPROC")
"""Who asks how many threads to start; NPROC is read by XLA's thread pools."""
_INDEX = re.compile(r"[0-9]+")
_UUID = re.compile(r"(?:GPU-|MIG-)[0-9A-Za-z/-]+")


class JaxPlatform(enum.StrEnum):
    """What the tests run on."""

    ROCM = "rocm"
    CPU = "cpu"
    CUDA = "cuda"

    @property
    def masks(self) -> tuple[str, ...]:
        """The variables that hide devices, the one of the lowest layer first."""
        match self:
            case JaxPlatform.ROCM:
                return ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "CUDA_VISIBLE_DEVICES")
            case JaxPlatform.CUDA:
                return ("CUDA_VISIBLE_DEVICES",)
            case JaxPlatform.CPU:
                return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuDevice:
    """One GPU, as the driver shows it to a process without masks.

    Attributes:
        index: its place in the driver's order.
        uuid: as masks take it; empty where the driver tells none.
        gfx: target such as gfx942; the compute capability, such as 9.0, of a CUDA device.
        memory: bytes in all.
        free: bytes that nobody uses; None where nobody tells.
        name: what the vendor calls it.
        nodes: files that a process has open while it uses the device.
        gauge: files in which the kernel says how many bytes it has and how many are in use; empty where there are none.
    """

    index: int
    uuid: str = ""
    gfx: str = ""
    memory: int = 0
    free: int | None = None
    name: str = ""
    nodes: tuple[str, ...] = ()
    gauge: tuple[str, ...] = ()

    @property
    def token(self) -> str:
        """What a mask calls it: the UUID, which stays the same whatever else is hidden, or else its index."""
        return self.uuid or str(self.index)


@dataclass(frozen=True, kw_only=True, slots=True)
class Allotment:
    """What of the host may be used.

    Attributes:
        cpus: numbers of the cores that may be run on.
        cores: how many may be busy at once, which a control group may hold below their number; at least 1.
        memory: bytes of RAM.
        why: what set the limit on cores, for people.
    """

    cpus: tuple[int, ...]
    cores: int
    memory: int
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """What one worker may use.

    Attributes:
        device: token of its device; empty on a CPU.
        cpus: cores that it is pinned to.
        env: changes to its environment, to be made before jax is imported; "" removes.
        nodes, gauges: of its devices, see `Device`; no gauge of a device that others are lent too.
    """

    slot: int
    device: str
    cpus: tuple[int, ...]
    env: Mapping[str, str]
    nodes: tuple[str, ...] = ()
    gauges: tuple[tuple[str, ...], ...] = ()


def visible_devices(
    devices: Sequence[GpuDevice], platform: JaxPlatform, environ: Mapping[str, str]
) -> tuple[GpuDevice, ...]:
    """The slice that was inherited: the masks of the environment applied in order, each counting what the last left.

    An empty ROCR_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES of a CUDA machine hides everything. Of HIP's own masks
    HIP_VISIBLE_DEVICES counts before the others, and an empty one is as good as none.

    Raises:
        MachineError: a mask names a device that is not there, twice the same, or something that is no device.
    """
    left = tuple(devices)
    lowest, *upper = platform.masks or ("",)
    if lowest in environ:
        left = _masked(left, lowest, environ[lowest])
    name = next((name for name in upper if environ.get(name)), None)
    return left if name is None else _masked(left, name, environ[name])


def _masked(devices: Sequence[GpuDevice], name: str, text: str) -> tuple[GpuDevice, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    chosen: list[GpuDevice] = []
    for word in words:
        found = _find(devices, word)
        if len(found) != 1:
            what = "no device" if not found else "more than one device"
            there = ", ".join(device.token for device in devices) or "none"
            raise MachineError(f"{name}={text} names {word!r}, which is {what}.", hint=f"There are {there}.")
        if found[0] in chosen:
            raise MachineError(f"{name}={text} names {word!r} twice.", hint="Name each device once.")
        chosen += found
    return tuple(chosen)


def _find(devices: Sequence[GpuDevice], word: str) -> list[GpuDevice]:
    """The devices that a word of a mask means: an index among these, a UUID, or the beginning of one."""
    if _INDEX.fullmatch(word):
        return list(devices[int(word) : int(word) + 1])
    if not _UUID.fullmatch(word):
        return []
    exact = [device for device in devices if device.uuid == word]
    return exact or [device for device in devices if device.uuid.startswith(word)]


def workers_per_device(devices: Sequence[GpuDevice], allotment: Allotment) -> int:
    """How many workers each device can bear: min(memory / 2 GiB, cores, RAM / 6 GiB, 16) over all, at least one."""
    if not devices:
        return 0
    by_memory = min((device.memory for device in devices), default=0) // DEVICE_SHARE
    shared = min(allotment.cores, allotment.memory // RAM_SHARE, MOST_WORKERS) // len(devices)
    return max(1, min(by_memory, shared))


def workers_on_cpu(allotment: Allotment) -> int:
    """How many workers a machine without GPUs can bear: a core each, with the memory for it."""
    return max(1, min(allotment.cores, allotment.memory // RAM_SHARE, MOST_WORKERS))


def leases(
    platform: JaxPlatform, devices: Sequence[GpuDevice], allotment: Allotment, *, per_device: int = 1, workers: int = 0
) -> tuple[Lease, ...]:
    """A lease for each worker; no two share a device unless `per_device` says so, and every device is used.

    Args:
        platform: what the tests run on.
        devices: the slice, see `visible`; none on a CPU.
        allotment: of the host.
        per_device: so many workers share a device.
        workers: on a CPU, so many; 0 means as many as it can bear.

    Raises:
        RequestError: a number that makes no sense.
        MachineError: no device at all.
    """
    if per_device < 1 or workers < 0:
        raise RequestError(f"{per_device} workers on a device make no sense.", hint="Give a whole number from 1.")
    if platform is JaxPlatform.CPU:
        owners: list[GpuDevice | None] = [None] * (workers or workers_on_cpu(allotment))
    elif not devices:
        raise MachineError(f"There is no {platform} device to lend.", hint="See whether the masks hide them.")
    else:
        # Round by round, so that whoever runs with fewer workers than leases still uses every device.
        owners = [device for _ in range(per_device) for device in devices]
    shares = _share_cores(allotment, len(owners))
    threads = max(1, allotment.cores // len(owners))
    return tuple(
        Lease(
            slot=slot,
            device=device.token if device else "",
            cpus=cpus,
            env={**_mask_of(platform, device), **thread_limits(threads)},
            nodes=device.nodes if device else (),
            gauges=_gauges([device] if device and per_device == 1 else ()),
        )
        for slot, (device, cpus) in enumerate(zip(owners, shares, strict=True))
    )


def whole_machine_lease(platform: JaxPlatform, devices: Sequence[GpuDevice], allotment: Allotment) -> Lease:
    """The lease of a process that works with all devices of the slice at once."""
    tokens = ",".join(device.token for device in devices)
    env = (
        {**_only(platform, tokens, len(devices)), **thread_limits(allotment.cores)}
        if devices
        else thread_limits(allotment.cores)
    )
    nodes = tuple(dict.fromkeys(node for device in devices for node in device.nodes))
    return Lease(slot=0, device=tokens, cpus=allotment.cpus, env=env, nodes=nodes, gauges=_gauges(devices))


def _gauges(devices: Iterable[GpuDevice]) -> tuple[tuple[str, ...], ...]:
    return tuple(device.gauge for device in devices if device.gauge)


def thread_limits(threads: int) -> dict[str, str]:
    """What keeps numerical libraries from starting a thread for each core of the machine in each worker."""
    return dict.fromkeys(_LIBRARIES, str(threads))


def _mask_of(platform: JaxPlatform, device: GpuDevice | None) -> dict[str, str]:
    return {} if device is None else _only(platform, device.token, 1)


def _only(platform: JaxPlatform, tokens: str, count: int) -> dict[str, str]:
    """The driver's mask for some devices; the layers above count from zero what is left, so their own masks agree."""
    env = dict.fromkeys(platform.masks, "")
    lowest = platform.masks[0]
    env[lowest] = tokens
    if platform is JaxPlatform.ROCM:
        env["HIP_VISIBLE_DEVICES"] = ",".join(map(str, range(count)))
    return env


def _share_cores(allotment: Allotment, count: int) -> list[tuple[int, ...]]:
    """Deal out neighbouring cores; with more workers than cores, several workers have the same one."""
    cpus = allotment.cpus
    if count >= len(cpus):
        return [(cpus[number % len(cpus)],) if cpus else () for number in range(count)]
    bounds = [len(cpus) * number // count for number in range(count + 1)]
    return [cpus[start:end] for start, end in itertools.pairwise(bounds)]
