"""Checks before the tests: platform, devices, loaded libraries and health of the machine.

A failed check is reported as an environment problem, never as a failure of the wheels.
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
from core.process import Runner
from core.units import human
from promotion.evidence.evidence import ENVIRONMENT
from promotion.gates.common.gate import Check, error, warning
from promotion.gates.device.lease import DEVICE_SHARE, GpuDevice, JaxPlatform
from promotion.gates.device.machine import MachineInfo
from promotion.storage.bucket import sha256_of
from wheelkit.elf.snapshot import Elf
from wheelkit.rocm_manifest import RocmLibrary

CHILD = Path(__file__).with_name("preflight_child.py")
SHARED_MEMORY = 1 << 30
"""Bytes that RCCL and NCCL need for buffers between processes; a container has 64 MB by default."""
_SECONDS = 600.0
_DOCTOR = "Run `ci_build doctor` on this machine."
_SHM = "/dev/shm"  # noqa: S108 - inspected, not written
_HIP = re.compile(r"libamdhip64\.so(\..*)?")


PREFIX = "preflight: "
"""Prefix of the names of preflight checks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedMachine:
    """Expected state of the machine.

    Attributes:
        targets: gfx targets under test; empty if the platform has none.
        count: number of devices that jax must see.
        counts: accepted numbers of devices; empty accepts any.
        libraries: file name -> sha256 of the native code in the staged wheels.
        rocm_version: ROCm version that the set was built with.
        site: folder with the installed libraries.
        rocm: libraries of this ROCm by soname; empty if the set has no manifest.
    """

    platform: JaxPlatform
    targets: tuple[str, ...]
    count: int
    libraries: Mapping[str, str]
    rocm_version: str
    site: Path = Path()
    counts: tuple[int, ...] = ()
    rocm: Mapping[str, RocmLibrary] = field(default_factory=dict)


def _check(
    name: str, problem: str = "", remedy: str = "", *, note: str = "", facts: Mapping[str, Any] | None = None
) -> Check:
    """Return a preflight check, which counts no tests.

    Args:
        problem: clause about the problem; empty without a problem.
        remedy: hint that fixes the problem.
        note: a remark that is not a problem.
        facts: details for the evidence.
    """
    text = f"{name}: {problem or note}."
    text = text[0].upper() + text[1:]
    finding = error(ENVIRONMENT, text, remedy) if problem else warning("preflight-note", text)
    findings = (finding,) if problem or note else ()
    return Check(name=f"{PREFIX}{name}", findings=findings, times=0, details=facts or {})


def query_jax(
    runner: Runner, python: Sequence[str], env: Mapping[str, str], platform: JaxPlatform
) -> Mapping[str, Any]:
    """Return jax's description of its devices in the tested environment; `error` describes a failure."""
    try:
        done = runner.run((*python, str(CHILD), platform.value), env=env, timeout=_SECONDS)
        answer: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer
    except ProcessError as problem:
        return {"error": problem.message}
    except (ValueError, IndexError):
        return {"error": "the process that imports jax printed no result"}


def check_host(
    machine: MachineInfo, devices: Sequence[GpuDevice], expected: ExpectedMachine, root: Path
) -> Iterator[Check]:
    """Check the driver, the devices and the host, in an order in which earlier problems explain later problems.

    Args:
        root: root of the file system.
    """
    if expected.platform is JaxPlatform.CPU:
        yield _check("processor", facts=dict(machine.facts))
        return
    yield _devices(machine, devices, expected)
    if expected.platform is JaxPlatform.ROCM:
        kfd = root / "dev/kfd"
        opens = kfd.exists() and os.access(kfd, os.R_OK | os.W_OK)
        problem = "" if opens else "/dev/kfd cannot be opened for reading and writing"
        remedy = "Start the container with --device=/dev/kfd --device=/dev/dri and the groups video and render."
        yield _check("/dev/kfd", problem, remedy)
    yield _shared_memory(root / _SHM.lstrip("/"))
    poor = [device for device in devices if device.free is not None and device.free < DEVICE_SHARE]
    problem = "; ".join(f"device {d.token} has {human(d.free or 0)} of {human(d.memory)} free" for d in poor)
    yield _check("device memory", problem, "End the processes that use the device, or use another device.")
    yield _check("tenants", note="; ".join(machine.tenants), facts={"tenants": list(machine.tenants)})


def _devices(machine: MachineInfo, devices: Sequence[GpuDevice], expected: ExpectedMachine) -> Check:
    targets = _plain(expected.targets)
    other = sorted({device.gfx for device in devices} - set(targets)) if expected.platform is JaxPlatform.ROCM else []
    if not devices:
        problem = f"no {expected.platform} device is available"
    elif other:
        problem = f"the devices are {', '.join(other)}, not {' or '.join(targets)}"
    elif expected.counts and len(devices) not in expected.counts:
        problem = f"{len(devices)} devices are available, not {' or '.join(map(str, expected.counts))}"
    else:
        problem = ""
    names = ("token", "gfx", "name", "memory", "free")
    return _check(
        "devices",
        problem,
        "Use a runner of the requested family; `--devices` overrides the number of devices.",
        facts={
            "devices": [{name: getattr(device, name) for name in names} for device in devices],
            "driver": machine.driver,
            **machine.facts,
        },
    )


def check_jax(answer: Mapping[str, Any], expected: ExpectedMachine) -> Iterator[Check]:
    """Check jax's platform, devices and libraries."""
    if answer["error"]:
        yield _check("platform", f"jax has no platform {expected.platform}: {answer['error']}", _DOCTOR)
        return
    yield _platform(answer, expected)
    count = len(answer["devices"])
    problem = "" if count == expected.count else f"jax sees {count} devices, not {expected.count}"
    hint = "Check whether masks or other processes hide devices."
    yield _check("device count", problem, hint)
    if expected.platform is JaxPlatform.ROCM:
        # A version override in the environment changes the runtime's names of the devices.
        names = {str(device["capability"]).partition(":")[0] for device in answer["devices"]}
        strange = sorted(name for name in names if name.startswith("gfx") and name not in _plain(expected.targets))
        problem = f"the runtime reports the devices as {', '.join(strange)}" if strange else ""
        yield _check("gfx name", problem, "Unset HSA_OVERRIDE_GFX_VERSION.", facts={"gfx": sorted(names)})
    yield _libraries(answer["libraries"], expected)
    if expected.platform is JaxPlatform.ROCM:
        yield _rocm(answer["libraries"], expected.rocm_version)
        yield _same_rocm(answer["libraries"], expected)
    for device in answer["devices"]:
        problem = f"a kernel on device {device['id']}: {device['kernel']}" if device["kernel"] else ""
        yield _check(f"kernel on device {device['id']}", problem, "Take this device out of service.")


def _platform(answer: Mapping[str, Any], expected: ExpectedMachine) -> Check:
    platform, client = expected.platform, answer["client"]
    reported = {*answer["platforms"], answer["default"]}
    if not reported <= ({"cpu"} if platform is JaxPlatform.CPU else {platform.value, "gpu"}):
        problem = f"jax runs on {', '.join(sorted(reported))}, not on {platform}"
    # jax reports all GPUs as "gpu"; the runtime's version contains the platform.
    elif platform is not JaxPlatform.CPU and platform.value not in client.lower():
        problem = f"jax's GPUs belong to {' '.join(client.split())!r}, not to {platform}"
    else:
        problem = ""
    facts = {"jax": answer["version"], "kinds": sorted({device["kind"] for device in answer["devices"]})}
    return _check("platform", problem, _DOCTOR, facts=facts)


def _libraries(mapped: Sequence[str], expected: ExpectedMachine) -> Check:
    """Check that the loaded native code comes from the site and has the set's bytes."""
    problems, seen = [], {}
    need = [path for path in expected.libraries if re.fullmatch(r"jax_plugins/.+\.so", path)]
    for file in map(Path, mapped):
        path = next((path for path in expected.libraries if str(file).endswith(f"/{path}")), "")
        if not path and file.name in {Path(other).name for other in need}:
            problems.append(f"{file} was loaded and does not belong to the set")
        elif path and file != expected.site / path:
            problems.append(f"{file} was loaded instead of {path} of the set")
        elif path:
            seen[path] = sha256_of(file)
            if seen[path] != expected.libraries[path]:
                problems.append(f"{path} has sha256 {seen[path]}, not {expected.libraries[path]}")
    if expected.platform is JaxPlatform.ROCM and not any(path in seen for path in need) and not problems:
        problems.append(f"none of {', '.join(need) or 'the libraries of the set'} was loaded")
    remedy = "Check PYTHONPATH and LD_LIBRARY_PATH, and run again."
    return _check("libraries", "; ".join(problems), remedy, facts={"loaded": seen})


def _rocm(mapped: Sequence[str], version: str) -> Check:
    """Check the release of the loaded ROCm."""
    hip = next((Path(file) for file in mapped if _HIP.fullmatch(Path(file).name)), None)
    remedy = f"Install ROCm {version}, which the set was built with."
    if hip is None:
        return _check("ROCm", "no libamdhip64.so was loaded", remedy)
    release = _version_above(hip.resolve())
    facts = {"hip": str(hip), "version": release}
    if not release:
        return _check("ROCm", note=f"the ROCm of {hip} has no version file", facts=facts)
    try:
        same = Version(release).release[:2] == Version(version).release[:2]
    except InvalidVersion:
        same = False
    problem = "" if same else f"ROCm {release} was loaded; the set was built with {version}"
    return _check("ROCm", problem, remedy, facts=facts)


def _same_rocm(mapped: Sequence[str], expected: ExpectedMachine) -> Check:
    """Check each loaded library against the manifest of the ROCm that the set was built with."""
    name = "ROCm's libraries"
    if not expected.rocm:
        return _check(name, note="the set has no manifest of its ROCm, so only the release was compared")
    problems, same = [], {}
    for file in map(Path, mapped):
        # Mapped files have their real names, such as libamdhip64.so.7.2.70200 for the soname libamdhip64.so.7.
        library = next((lib for lib in expected.rocm.values() if f"{file.name}.".startswith(f"{lib.soname}.")), None)
        if library is None:
            continue
        try:
            what, actual, required = _compare(file, library)
        except (ElfError, OSError) as problem:
            problems.append(f"cannot read {file}: {problem}")
            continue
        if actual == required:
            same[library.soname] = f"{what} {actual}"
        else:
            problems.append(f"{file} has {what} {actual or 'none'}; the set's ROCm has {required}")
    if not problems and not same:
        problems.append("no library of the set's ROCm was loaded")
    weak = sorted(soname for soname, value in same.items() if not value.startswith("sha256"))
    note = f"the set's manifest has no sha256 of {', '.join(weak)}: build ids or sizes were compared" if weak else ""
    remedy = f"Install the ROCm {expected.rocm_version} build that the set was built with, or name it with `--rocm`."
    return _check(name, "; ".join(problems), remedy, note=note, facts={"rocm_libraries": same})


def _compare(file: Path, known: RocmLibrary) -> tuple[str, str, str]:
    """Return the best known property of a file (sha256, build id or size), its value and the required value."""
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


def _shared_memory(path: Path) -> Check:
    remedy = "Start the container with more shared memory, such as --shm-size=16g."
    try:
        stat = os.statvfs(path)
    except OSError as failure:
        return _check(_SHM, f"{_SHM} is not usable: {failure}", remedy)
    free = stat.f_bavail * stat.f_frsize
    problem = "" if free >= SHARED_MEMORY else f"{_SHM} has {human(free)} free, not {human(SHARED_MEMORY)}"
    return _check(_SHM, problem, remedy, facts={"shm_bytes": free})


def _plain(targets: Iterable[str]) -> list[str]:
    return [target.partition(":")[0] for target in targets]
