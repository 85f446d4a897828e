"""What has to be so before a test says anything: the right platform, device and bytes, and a machine that works.

Each thing that is not so is the environment's, never a failure of what is tested.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from core.errors import ElfError, ProcessError
from core.model import WheelSet
from core.process import Runner
from core.units import human
from promotion.gates.common.requirements import wheels_for
from promotion.gates.device.lease import DEVICE_SHARE, GpuDevice, JaxPlatform
from promotion.gates.device.machine import MachineInfo
from promotion.gates.device.sessions.passes import VIRTUAL_DEVICES
from promotion.storage.bucket import sha256_of
from wheelkit.elf.snapshot import Elf
from wheelkit.rocm_manifest import RocmLibrary, RocmManifest

CHILD = Path(__file__).with_name("preflight_child.py")
SHARED_MEMORY = 1 << 30
"""Bytes that RCCL and NCCL want for their buffers between processes; containers have 64 MB unless told."""
_SECONDS = 600.0
_SHM = "/dev/shm"  # noqa: S108 - what is looked at, not written
_HIP = re.compile(r"libamdhip64\.so(\..*)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class PreflightItem:
    """One thing that was looked at.

    Attributes:
        problem: what is wrong, one sentence; empty when nothing is.
        remedy: what to do about it.
        note: what a person should know all the same.
        facts: what evidence keeps.
    """

    name: str
    problem: str = ""
    remedy: str = ""
    note: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedMachine:
    """What there should be.

    Attributes:
        targets: gfx targets that the set is tested for here; empty where the platform has none.
        count: of devices that jax has to see.
        counts: how many devices the machine may have; none takes what there is.
        libraries: file name -> sha256 that it has to have, of the staged wheels' native code.
        rocm_version: that the set was built with.
        site: where the libraries are installed.
        rocm: the libraries of that ROCm, by soname, where the set carries its manifest.
    """

    platform: JaxPlatform
    targets: tuple[str, ...]
    count: int
    libraries: Mapping[str, str]
    rocm_version: str
    site: Path = Path()
    counts: tuple[int, ...] = ()
    rocm: Mapping[str, RocmLibrary] = field(default_factory=dict)


def expected_machine(
    platform: JaxPlatform,
    wheel_set: WheelSet,
    devices: Sequence[GpuDevice],
    targets: Sequence[str],
    python: str,
    rocm: RocmManifest | None,
    counts: tuple[int, ...] = (),
) -> ExpectedMachine:
    """What a set and a slice of a machine promise, before there is a site."""
    members = [member for wheel in wheels_for(wheel_set, python) for member in wheel.members]
    return ExpectedMachine(
        platform=platform,
        targets=tuple(targets),
        count=len(devices) or VIRTUAL_DEVICES,
        libraries={member.path: member.sha256 for member in members},
        rocm_version=wheel_set.rocm_version,
        counts=counts,
        rocm={} if rocm is None or rocm.weak else rocm.libraries,
    )


def query_jax(
    runner: Runner, python: Sequence[str], env: Mapping[str, str], platform: JaxPlatform
) -> Mapping[str, Any]:
    """What jax says in the environment that is tested; `error` says why it said nothing."""
    try:
        done = runner.run((*python, str(CHILD), platform.value), env=env, timeout=_SECONDS)
        answer: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer
    except ProcessError as problem:
        return {"error": problem.message}
    except (ValueError, IndexError):
        return {"error": "the process that imports jax printed no answer"}


def check_host(
    machine: MachineInfo, devices: Sequence[GpuDevice], wanted: ExpectedMachine, root: Path
) -> Iterator[PreflightItem]:
    """The driver, the devices and what they need of the host, in an order in which the first problem explains the next.

    Args:
        root: of the file system.
    """
    if wanted.platform is JaxPlatform.CPU:
        yield PreflightItem(name="processor", facts=dict(machine.facts))
        return
    names = sorted({device.gfx for device in devices})
    facts = {"devices": [_told(device) for device in devices], "driver": machine.driver, **machine.facts}
    problem = "" if devices else f"there is no {wanted.platform} device that may be used"
    if (
        devices
        and wanted.platform is JaxPlatform.ROCM
        and (strange := sorted(set(names) - set(_plain(wanted.targets))))
    ):
        problem = f"the devices are {', '.join(strange)}, not {' or '.join(_plain(wanted.targets))}"
    if not problem and wanted.counts and len(devices) not in wanted.counts:
        problem = f"of devices that may be used there are {len(devices)}, not {' or '.join(map(str, wanted.counts))}"
    remedy = "Use a runner of the family that is asked for; `--devices` says how many another one has."
    yield PreflightItem(name="devices", problem=problem, remedy=remedy, facts=facts)
    if wanted.platform is JaxPlatform.ROCM:
        kfd = root / "dev/kfd"
        opens = kfd.exists() and os.access(kfd, os.R_OK | os.W_OK)
        problem = "" if opens else "/dev/kfd cannot be opened for reading and writing"
        remedy = "Give the container --device=/dev/kfd --device=/dev/dri and the groups video and render."
        yield PreflightItem(name="/dev/kfd", problem=problem, remedy=remedy)
    yield _shared_memory(root / _SHM.lstrip("/"))
    poor = [device for device in devices if device.free is not None and device.free < DEVICE_SHARE]
    problem = "; ".join(f"device {d.token} has {human(d.free or 0)} of {human(d.memory)} free" for d in poor)
    yield PreflightItem(name="device memory", problem=problem, remedy="End what uses it, or take another device.")
    yield PreflightItem(name="tenants", note="; ".join(machine.tenants), facts={"tenants": list(machine.tenants)})


def check_jax(answer: Mapping[str, Any], wanted: ExpectedMachine) -> Iterator[PreflightItem]:
    """What jax found, and what it is made of."""
    if answer["error"]:
        yield PreflightItem(
            name="platform",
            problem=f"jax has no platform {wanted.platform}: {answer['error']}",
            remedy="See what `ci_build doctor` says on this machine.",
        )
        return
    right = {JaxPlatform.ROCM: ("rocm", "gpu"), JaxPlatform.CUDA: ("cuda", "gpu"), JaxPlatform.CPU: ("cpu",)}[
        wanted.platform
    ]
    said = {*answer["platforms"], answer["default"]}
    problem = "" if said <= set(right) else f"jax runs on {', '.join(sorted(said))}, not on {wanted.platform}"
    # To jax all GPUs are alike; the runtime's version begins with, or holds, its name.
    if not problem and wanted.platform is not JaxPlatform.CPU and wanted.platform.value not in answer["client"].lower():
        problem = f"jax's GPUs are those of {' '.join(answer['client'].split())!r}, not of {wanted.platform}"
    remedy = "See what `ci_build doctor` says on this machine."
    facts = {"jax": answer["version"], "kinds": sorted({device["kind"] for device in answer["devices"]})}
    yield PreflightItem(name="platform", problem=problem, remedy=remedy, facts=facts)
    count = len(answer["devices"])
    problem = "" if count == wanted.count else f"jax sees {count} devices, not {wanted.count}"
    yield PreflightItem(name="device count", problem=problem, remedy="See whether masks or another process hide some.")
    if wanted.platform is JaxPlatform.ROCM:
        yield _capabilities(answer["devices"], wanted)
    yield _libraries(answer["libraries"], wanted)
    if wanted.platform is JaxPlatform.ROCM:
        yield _rocm(answer["libraries"], wanted.rocm_version)
        yield _same_rocm(answer["libraries"], wanted)
    for device in answer["devices"]:
        problem = f"a kernel on device {device['id']}: {device['kernel']}" if device["kernel"] else ""
        yield PreflightItem(
            name=f"kernel on device {device['id']}", problem=problem, remedy="Take this device out of service."
        )


def _capabilities(devices: Iterable[Mapping[str, Any]], wanted: ExpectedMachine) -> PreflightItem:
    """What the runtime calls the devices; a version override in the environment would make it say something else."""
    names = {str(device["capability"]).partition(":")[0] for device in devices}
    strange = sorted(name for name in names if name.startswith("gfx") and name not in _plain(wanted.targets))
    problem = f"the runtime takes the devices for {', '.join(strange)}" if strange else ""
    return PreflightItem(
        name="gfx name", problem=problem, remedy="Unset HSA_OVERRIDE_GFX_VERSION.", facts={"gfx": sorted(names)}
    )


def _libraries(mapped: Sequence[str], wanted: ExpectedMachine) -> PreflightItem:
    """The native code that was loaded is the set's: from the site, and byte for byte."""
    problems, seen = [], {}
    need = [path for path in wanted.libraries if re.fullmatch(r"jax_plugins/.+\.so", path)]
    for file in map(Path, mapped):
        path = next((path for path in wanted.libraries if str(file).endswith(f"/{path}")), "")
        if not path and file.name in {Path(other).name for other in need}:
            problems.append(f"{file} was loaded, which is none of the set's")
        elif path and file != wanted.site / path:
            problems.append(f"{file} was loaded instead of {path} of the set")
        elif path:
            seen[path] = sha256_of(file)
            if seen[path] != wanted.libraries[path]:
                problems.append(f"{path} has sha256 {seen[path]}, the set says {wanted.libraries[path]}")
    if wanted.platform is JaxPlatform.ROCM and not any(path in seen for path in need) and not problems:
        problems.append(f"none of {', '.join(need) or 'the libraries of the set'} was loaded")
    remedy = "See what PYTHONPATH or LD_LIBRARY_PATH bring in, and run again."
    return PreflightItem(name="libraries", problem="; ".join(problems), remedy=remedy, facts={"loaded": seen})


def _rocm(mapped: Sequence[str], version: str) -> PreflightItem:
    """The ROCm that is under jax, by the release that it says of itself."""
    hip = next((Path(file) for file in mapped if _HIP.fullmatch(Path(file).name)), None)
    remedy = f"Give the machine ROCm {version}, which the set was built with."
    if hip is None:
        return PreflightItem(name="ROCm", problem="no libamdhip64.so was loaded", remedy=remedy)
    found = _version_above(hip.resolve())
    facts = {"hip": str(hip), "version": found}
    if not found:
        return PreflightItem(name="ROCm", note=f"{hip} belongs to no ROCm that says its version", facts=facts)
    try:
        same = Version(found).release[:2] == Version(version).release[:2]
    except InvalidVersion:
        same = False
    problem = "" if same else f"this is ROCm {found}; the set was built with {version}"
    return PreflightItem(name="ROCm", problem=problem, remedy=remedy, facts=facts)


def _same_rocm(mapped: Sequence[str], wanted: ExpectedMachine) -> PreflightItem:
    """The ROCm under jax is the very one that the set was built with, library by library."""
    name = "ROCm's libraries"
    if not wanted.rocm:
        return PreflightItem(
            name=name, note="the set does not carry the manifest of its ROCm: only the release was compared"
        )
    problems, same = [], {}
    for file in map(Path, mapped):
        # What is mapped goes by its real name, such as libamdhip64.so.7.2.70200 for the soname libamdhip64.so.7.
        known = next((lib for lib in wanted.rocm.values() if f"{file.name}.".startswith(f"{lib.soname}.")), None)
        if known is None:
            continue
        try:
            what, found, asked = _compared(file, known)
        except (ElfError, OSError) as error:
            problems.append(f"{file} cannot be read: {error}")
            continue
        if found == asked:
            same[known.soname] = f"{what} {found}"
        else:
            problems.append(f"{file} has {what} {found or 'none'}, that of the set's ROCm has {asked}")
    if not problems and not same:
        problems.append("no library of the set's ROCm was loaded")
    weak = sorted(soname for soname, told in same.items() if not told.startswith("sha256"))
    note = f"the set's manifest has no sha256 of {', '.join(weak)}: build ids, or sizes, were compared" if weak else ""
    remedy = f"Give the machine the very ROCm {wanted.rocm_version} that the set was built with; `--rocm` names it."
    return PreflightItem(
        name=name, problem="; ".join(problems), remedy=remedy, note=note, facts={"rocm_libraries": same}
    )


def _compared(file: Path, known: RocmLibrary) -> tuple[str, str, str]:
    """What tells whether a file is a library of the set's ROCm, as it is and as it should be: its bytes, if known."""
    if known.sha256:
        return "sha256", sha256_of(file), known.sha256
    elf = Elf.read(file)
    if known.build_id:
        return "build id", elf.build_id or "", known.build_id
    return "size", str(elf.size), str(known.size)


def _version_above(library: Path) -> str:
    for folder in library.parents:
        try:
            return (folder / ".info" / "version").read_text(encoding="ascii").strip().partition("-")[0]
        except (OSError, UnicodeDecodeError):
            continue
    return ""


def _shared_memory(path: Path) -> PreflightItem:
    remedy = "Give the container more, such as --shm-size=16g."
    try:
        stat = os.statvfs(path)
    except OSError as error:
        return PreflightItem(name=_SHM, problem=f"{_SHM} cannot be used: {error}", remedy=remedy)
    free = stat.f_bavail * stat.f_frsize
    problem = "" if free >= SHARED_MEMORY else f"{_SHM} has {human(free)} free, not {human(SHARED_MEMORY)}"
    return PreflightItem(name=_SHM, problem=problem, remedy=remedy, facts={"shm_bytes": free})


def _told(device: GpuDevice) -> dict[str, Any]:
    return {"token": device.token, "gfx": device.gfx, "name": device.name, "memory": device.memory, "free": device.free}


def _plain(targets: Iterable[str]) -> list[str]:
    return [target.partition(":")[0] for target in targets]
