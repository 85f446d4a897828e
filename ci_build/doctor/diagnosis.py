"""Problems of the machine, each with its remedy, in the order in which to fix them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ci_build.doctor import containers
from ci_build.doctor.choice import OfferedSet, PackageChoice
from ci_build.doctor.examined import Python
from ci_build.doctor.installed_rocms import Trees
from ci_build.doctor.machine import MachineFacts
from ci_build.doctor.packages import InstalledPackages
from core.model import Severity

_GLIBC = (2, 28)
"""Oldest glibc that manylinux_2_28 wheels support."""
_SMALL_SHM_MIB = 64.0
"""Docker's default size of /dev/shm, which is too small for RCCL."""
_WSL_ROCM = (7, 1)
"""Oldest ROCm whose runtime loads librocdxg."""
_UNMAPPED = {"nogroup", "nobody", "65534"}
_ROCDXG = "https://github.com/ROCm/librocdxg"
_GPU_PLATFORMS = {"rocm", "gpu"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A problem of the examined system.

    Attributes:
        code: kebab-case name.
        severity: an error stops jax from using the GPU; a warning does not.
        message: description for users.
        commands: commands that fix the problem, in order; empty if there are none.
    """

    code: str
    severity: Severity
    message: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about the examined system.

    Attributes:
        environ: the user's environment variables.
        offers: all sets of the given index.
        fitting: sets that support this machine, best first.
        choice: packages for this machine.
        asked_index: value of --index, or empty.
        index_error: reason why the index cannot be read, or empty.
    """

    environ: Mapping[str, str]
    python: Python
    machine: MachineFacts
    trees: Trees
    packages: InstalledPackages
    offers: tuple[OfferedSet, ...]
    fitting: tuple[OfferedSet, ...]
    choice: PackageChoice
    asked_index: str = ""
    index_error: str = ""


def error(code: str, message: str, *commands: str) -> Problem:
    """Return a problem that stops jax from using the GPU."""
    return Problem(
        code=code, severity=Severity.ERROR, message=message, commands=commands
    )


def warning(code: str, message: str, *commands: str) -> Problem:
    """Return a problem that does not yet stop jax from using the GPU."""
    return Problem(
        code=code, severity=Severity.WARNING, message=message, commands=commands
    )


def of_machine(facts: Facts) -> Iterator[Problem]:
    """Yield the problems of the system, driver and devices, and of settings that hide GPUs."""
    yield from _system(facts.machine)
    yield from _wsl(facts) if facts.machine.wsl else _gpu(facts)
    yield from _settings(facts)


def _system(machine: MachineFacts) -> Iterator[Problem]:
    name, architecture, _ = machine.kernel
    if (name, architecture) != ("Linux", "x86_64"):
        yield error(
            "platform",
            f"This is {name} on {architecture}, but jax for ROCm supports only Linux on"
            " x86_64.",
        )
    words = machine.libc.split()
    number = words[1].split(".") if len(words) == 2 else []
    if (
        not all(part.isdecimal() for part in number)
        or tuple(map(int, number[:2])) < _GLIBC
    ):
        have = machine.libc or "another C library"
        yield error(
            "glibc",
            f"The wheels need glibc 2.28 or newer, but this system has {have}; use a"
            " newer system.",
        )


def _gpu(facts: Facts) -> Iterator[Problem]:
    machine = facts.machine
    flags = containers.start(facts.machine.container)
    if not machine.gpus:
        yield _no_gpu(facts, flags)
        return
    there = ", ".join(sorted({gpu.name or "an AMD GPU" for gpu in machine.gpus}))
    devices = [
        device for device in (machine.kfd, *machine.render) if device is not None
    ]
    denied = [device for device in devices if not device.usable]
    if machine.kfd is None or not machine.render:
        what = "/dev/kfd" if machine.kfd is None else "render node in /dev/dri"
        message = f"{there} was found, but there is no {what}"
        if machine.container:
            yield error(
                "device-missing",
                f"{message}: the container was started without it.",
                flags,
            )
        else:
            yield error(
                "device-missing", f"{message}; load the driver.", "sudo modprobe amdgpu"
            )
    elif denied:
        yield _denied(
            [device.path for device in denied],
            {device.group for device in denied},
            machine,
        )
    if machine.mask and not machine.names:
        yield _hidden(there, facts)


def _hidden(there: str, facts: Facts) -> Problem:
    mask = facts.machine.mask
    name = mask.partition("=")[0]
    if name == "ROCR_VISIBLE_DEVICES" and containers.is_slurm_job(facts.environ):
        # Without the variable, the job would use GPUs of others.
        text = (
            f"{there} was found, but {mask}, which Slurm sets, hides it; the job needs"
            " its own GPU."
        )
        return error("gpu-hidden", text, containers.SLURM_GPUS)
    return error(
        "gpu-hidden", f"{there} was found, but {mask} hides it.", f"unset {name}"
    )


def _wsl(facts: Facts) -> Iterator[Problem]:
    """Yield the problems of WSL, according to the README of librocdxg."""
    machine = facts.machine
    trees = facts.trees
    if not machine.dxcore:
        command = (
            containers.start_on_wsl(machine.container)
            if machine.container
            else "wsl.exe --update"
        )
        yield error(
            "wsl-dxcore", "WSL's library for GPUs, libdxcore.so, is missing.", command
        )
    if trees.found and all((0, 0) < rocm.number < _WSL_ROCM for rocm in trees.found):
        text = (
            f"ROCm {trees.found[0].version} does not support WSL, which needs ROCm"
            f" {_dotted(_WSL_ROCM)} or newer."
        )
        yield error("wsl-rocm", text)
    elif trees.found and not trees.wsl_library:
        yield error(
            "wsl-library",
            "ROCm has no librocdxg.so, which connects it to WSL's GPU; build it:"
            f" {_ROCDXG}.",
        )
    if facts.environ.get("HSA_ENABLE_DXG_DETECTION") != "1":
        text = "ROCm looks for WSL's GPU only if HSA_ENABLE_DXG_DETECTION is 1."
        yield error("wsl-detection", text, "export HSA_ENABLE_DXG_DETECTION=1")
    yield warning(
        "wsl-untested",
        f"AMD does not test jax on WSL; {_ROCDXG} lists the supported GPUs.",
    )


def _dotted(number: tuple[int, int]) -> str:
    return ".".join(map(str, number))


def _no_gpu(facts: Facts, flags: str) -> Problem:
    machine = facts.machine
    if containers.is_slurm_job(facts.environ) and machine.driver:
        return error(
            "gpu-missing",
            "This job of Slurm has no GPU; request one.",
            containers.SLURM_GPUS,
        )
    if machine.container:
        return error(
            "gpu-missing",
            "No AMD GPU is visible in this container; start it with the GPUs' devices.",
            flags,
        )
    if machine.cards:
        message = (
            f"{machine.cards} AMD GPU{'s are' if machine.cards > 1 else ' is'} on the"
            " PCI bus, "
        )
        if machine.driver:
            return error(
                "gpu-not-in-kfd",
                message + "but amdgpu provides no compute device; see `sudo dmesg`.",
            )
        return error(
            "driver-missing",
            message + "but the driver amdgpu is not loaded.",
            "sudo modprobe amdgpu",
        )
    return error("gpu-missing", "This machine has no AMD GPU.")


def _denied(paths: list[str], groups: set[str], machine: MachineFacts) -> Problem:
    message = f"This user cannot open {', '.join(paths)}"
    names = ",".join(sorted(groups))
    # Without root, Podman shows every group of the host as this one.
    if groups <= {*machine.groups} - _UNMAPPED:
        return error(
            "device-denied",
            f"{message} despite the right group; the file mode must be 0660.",
            f"sudo chmod 0660 {' '.join(paths)}",
        )
    if machine.container:
        command = containers.join_groups(machine.container, groups)
        return error(
            "device-denied",
            f"{message}; the container needs the groups {names}.",
            command,
        )
    return error(
        "device-denied",
        f"{message}; add the user to the group {names}, then log in again.",
        f'sudo usermod -aG {names} "$USER"',
    )


def _settings(facts: Facts) -> Iterator[Problem]:
    environ = facts.environ
    machine = facts.machine
    platforms = {
        word.strip().lower()
        for word in environ.get("JAX_PLATFORMS", "").split(",")
        if word.strip()
    }
    if platforms and not platforms & _GPU_PLATFORMS:
        yield error(
            "platforms",
            f"JAX_PLATFORMS={environ['JAX_PLATFORMS']} stops jax from using the GPU.",
            "unset JAX_PLATFORMS",
        )
    if environ.get("HSA_OVERRIDE_GFX_VERSION"):
        yield warning(
            "gfx-override",
            f"HSA_OVERRIDE_GFX_VERSION={environ['HSA_OVERRIDE_GFX_VERSION']} makes ROCm"
            " see another GPU target.",
            "unset HSA_OVERRIDE_GFX_VERSION",
        )
    if (
        sum(gpu.visible for gpu in machine.gpus) > 1
        and machine.shm_mib <= _SMALL_SHM_MIB
    ):
        yield warning(
            "small-shm",
            f"Shared memory (/dev/shm) has only {machine.shm_mib:.0f} MiB, too little"
            " for RCCL on several GPUs.",
            *containers.enlarge_shm(machine.container),
        )
