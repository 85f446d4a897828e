"""Diagnosis of a machine and the packages of a Python.

The loader reports the first problem, and the doctor all.
"""

from __future__ import annotations

import ctypes
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence

from . import _gpus, _machine, _packages, _rocm, _versions
from ._facts import Facts, loaded_majors
from ._problems import ERROR, NOTE, WARNING, Problem, problem

_GLIBC = (2, 28)
"""Oldest glibc that manylinux_2_28 wheels support."""
_SMALL_SHM_MIB = 64
"""Docker's default size of /dev/shm in MiB, which is too small for RCCL."""
_UNMAPPED = {"nogroup", "nobody", "65534"}
"""Group that Podman without root shows for every group of the host."""


def problems(facts: Facts, *, need_gpu: bool = True) -> Iterator[Problem]:
    """Yield the problems; errors come in the order in which to fix them.

    Args:
        need_gpu: whether a missing GPU is a problem; ahead-of-time compilation needs
            none.
    """
    if need_gpu:
        yield from _system(facts)
        yield from _gpu(facts)
    if _has_wheels(facts.python, facts.info.get("pythons", ())):
        yield from _package_problems(facts)
    else:
        yield _unsupported(facts)
    if need_gpu:
        yield from _target_problems(facts)
    yield from _rocm_problems(facts)
    if need_gpu:
        yield from _device_code(facts)
        yield from _settings(facts)


def errors(facts: Facts, *, need_gpu: bool = True) -> Iterator[Problem]:
    """Yield the problems that keep jax from using the GPU."""
    for item in problems(facts, need_gpu=need_gpu):
        if item.severity == ERROR:
            yield item


def all_problems(facts: Facts) -> list[Problem]:
    """Return the problems that the doctor prints: errors, warnings, notes.

    If there is no error, XLA's plugin is loaded, but not started. Wheels of AMD load
    their ROCm in another way.
    """
    found = list(problems(facts))
    value = facts.environ.get("JAX_PLATFORMS", "")
    platforms = set(value.lower().replace(" ", "").split(","))
    if value and not {"rocm", "gpu"} & platforms:
        found.append(problem("platforms", value=value))
    healthy = not any(item.severity == ERROR for item in found)
    if healthy and "members" in facts.info:
        found += load(facts)
    order = (ERROR, WARNING, NOTE)
    return sorted(found, key=lambda item: order.index(item.severity))


def load(facts: Facts) -> list[Problem]:
    """Load ROCm and XLA's plugin of the pjrt wheel, and return the problem."""
    library = facts.library
    try:
        _rocm.preload(facts.info, facts.layouts, library.parent)
        ctypes.CDLL(str(library))
    except OSError as error:
        return [not_loadable(facts, error)]
    return []


def not_loadable(facts: Facts, error: Exception) -> Problem:
    """Return the problem of a ROCm with which the plugin cannot be loaded."""
    return problem(
        "rocm-not-loadable",
        package=facts.name,
        error=error,
        places=facts.searched,
        command=facts.install_rocm(),
    )


def _system(facts: Facts) -> Iterator[Problem]:
    machine = facts.machine
    if machine.system != "Linux x86_64":
        yield problem("platform", system=machine.system)
    match = re.fullmatch(r"glibc (\d+)\.(\d+).*", machine.libc)
    if match is None or (int(match[1]), int(match[2])) < _GLIBC:
        yield problem("glibc", libc=machine.libc or "another C library")


def _gpu(facts: Facts) -> Iterator[Problem]:
    machine = facts.machine
    if not machine.gpus:
        yield _no_gpu(machine)
        return
    gpus = ", ".join(sorted({gpu.name or "an AMD GPU" for gpu in machine.gpus}))
    if not machine.wsl:
        yield from _devices(machine, gpus)
    if not machine.visible:
        variable = machine.mask.partition("=")[0]
        command = f"unset {variable}"
        # Without the variable that Slurm sets, the job would use GPUs of others.
        if machine.slurm and variable == "ROCR_VISIBLE_DEVICES":
            command = _machine.SLURM_GPU
        yield problem("gpu-hidden", gpus=gpus, variable=machine.mask, command=command)


def _no_gpu(machine: _machine.Machine) -> Problem:
    if machine.place == "machine" and (count := _machine.pci_cards()):
        code = "gpu-not-in-kfd" if machine.driver else "driver-missing"
        return problem(code, count=count)
    paths = [str(_gpus.ROOT / name) for name in (_gpus.TOPOLOGY, _gpus.DXG)]
    return problem(
        "gpu-missing",
        place=machine.place,
        paths=" and ".join(paths),
        command="" if machine.place == "machine" else machine.start(),
    )


def _devices(machine: _machine.Machine, gpus: str) -> Iterator[Problem]:
    if machine.kfd is None or not machine.render:
        name = "/dev/kfd" if machine.kfd is None else "/dev/dri/renderD*"
        yield problem("device-missing", gpus=gpus, device=name, command=machine.start())
        return
    # The runtime skips GPUs whose render nodes it may not open.
    denied = [] if machine.kfd.usable else [machine.kfd]
    if not any(device.usable for device in machine.render):
        denied += machine.render
    if denied:
        paths = [device.path for device in denied]
        groups = sorted({device.group for device in denied})
        command = machine.join(groups)
        if set(groups) <= {*_machine.own_groups()} - _UNMAPPED:
            command = f"sudo chmod 0660 {' '.join(paths)}"
        elif "root" in groups and not machine.container:
            command = f"sudo chmod 0666 {' '.join(paths)}"
        yield problem(
            "device-denied",
            gpus=gpus,
            devices=", ".join(paths),
            groups=", ".join(groups),
            command=command,
        )


def _has_wheels(python: _packages.Python, supported: Sequence[str]) -> bool:
    if not supported:
        return True
    minor = ".".join(python.version.split(".")[:2])
    known = minor in supported and python.implementation == "cpython"
    return known and not python.free_threaded


def _unsupported(facts: Facts) -> Problem:
    python = facts.python
    supported = facts.info["pythons"]
    fresh = _packages.FRESH
    wanted = _packages.fitting(facts.info, facts.major)
    words = _packages.install_words(wanted, {}, facts.index)
    make = f"uv venv --seed --python {facts.info['python']} {fresh}"
    name = python.implementation.replace("cpython", "CPython")
    description = f"{name} {python.version}"
    return problem(
        "python",
        first=supported[0],
        last=supported[-1],
        python=description + (" without GIL" if python.free_threaded else ""),
        command=f"{make} && {fresh}/bin/python -m pip install {shlex.join(words)}",
    )


def _package_problems(facts: Facts) -> Iterator[Problem]:
    if not {"jax_version", "requires_jaxlib", "version"} <= facts.info.keys():
        return
    path = facts.python.path
    command = facts.install()
    index = f" {_packages.INDEX} is the index that the wheels came from."
    index = index if f" {_packages.INDEX} " in command else ""
    absent = []
    for name in _packages.fitting(facts.info, facts.major):
        if name not in facts.packages and not _packages.find_folder(name, path):
            absent.append(name)
    if absent:
        yield problem(
            "not-installed", packages=", ".join(absent), index=index, command=command
        )
    misfits = list(_misfits(facts))
    if misfits:
        text = " ".join(misfits)
        yield problem("misfit", requirements=text, index=index, command=command)
    for part in ("pjrt", "plugin"):
        package = facts.packages.get(f"jax-rocm{facts.major}-{part}")
        files = package.missing_files() if package else []
        if package and files:
            yield problem(
                "damaged",
                package=f"{package.name} {package.version}",
                files=_list(files),
                command=facts.install(damaged=package.name),
            )


def _misfits(facts: Facts) -> Iterator[str]:
    pjrt = f"jax-rocm{facts.major}-pjrt"
    for package in facts.packages.values():
        if package.major not in (0, facts.major):
            continue
        required = dict(package.requirements)
        if package.name == pjrt and package.version:
            required["jaxlib"] = str(facts.info["requires_jaxlib"])
        for name, specifier in required.items():
            other = facts.packages.get(re.sub(r"[-_.]+", "-", name).lower())
            if other and not _versions.accepts(specifier, other.version):
                yield (
                    f"{package.name} {package.version} needs {other.name}{specifier},"
                    f" but {other.name} {other.version} is installed."
                )


def _target_problems(facts: Facts) -> Iterator[Problem]:
    info = facts.info
    gpus = {gpu.name: gpu for gpu in facts.machine.visible if gpu.name}
    accepted = info.get("xla_targets", ())
    covers = info.get("covers", {})
    refused = [name for name in gpus if accepted and name not in accepted]
    unusable = [
        name
        for name in gpus
        if name in refused or not _gpus.has_code(name, facts.targets, covers)
    ]
    names = ", ".join(sorted(unusable))
    if not unusable:
        return
    if len(unusable) < len(gpus):
        yield problem(
            "gpu-unusable",
            gpus=names,
            indices=",".join(_indices(facts, unusable)),
        )
    elif len(refused) == len(gpus):
        yield problem(
            "gpu-unsupported",
            jax=info["jax_version"],
            gpus=names,
            accepted=", ".join(accepted),
        )
    else:
        yield problem(
            "gpu-not-in-wheel",
            package=facts.name,
            gpus=names,
            targets=", ".join(facts.targets),
            command=facts.install_published(),
        )


def _indices(facts: Facts, unusable: Collection[str]) -> list[str]:
    """Return the numbers in HIP_VISIBLE_DEVICES of the GPUs that run the wheel."""
    mask = "ROCR_VISIBLE_DEVICES"
    environ = {mask: facts.environ[mask]} if mask in facts.environ else {}
    numbered, _ = _gpus.visible(facts.machine.gpus, environ)
    visible = {gpu.node for gpu in facts.machine.visible}
    return [
        str(number)
        for number, gpu in enumerate(numbered)
        if gpu.node in visible and gpu.name not in unusable
    ]


def _rocm_problems(facts: Facts) -> Iterator[Problem]:
    needed = _rocm.needed(facts.info)
    if "members" not in facts.info:
        # The runtime of HIP has kept the soname of ROCm 7.
        needed = (f"libamdhip64.so.{min(facts.major, 7)}",)
    lacking = _rocm.missing(needed, facts.layouts)
    if lacking:
        yield _missing_rocm(facts, lacking)
    elif reason := _plugin_reason(facts):
        yield problem("plugin-broken", reason=reason, command=facts.install_rocm())


def _missing_rocm(facts: Facts, lacking: Sequence[str]) -> Problem:
    common = {
        "libraries": _list(lacking),
        "places": facts.searched,
        "command": facts.install_rocm(),
    }
    others: list[str] = []
    for name in lacking:
        others += map(str, _rocm.relatives(name, facts.layouts))
    if not facts.rocms and not others:
        return problem("rocm-missing", **common)
    found = ", ".join(map(str, facts.rocms)) or "of another release"
    paths = f" (another release has {', '.join(others)})" if others else ""
    return problem(
        "rocm-unfit", package=facts.name, found=found, others=paths, **common
    )


def _plugin_reason(facts: Facts) -> str:
    name = f"jax-rocm{facts.major}-plugin"
    package = _packages.find_folder(name, facts.python.path)
    needed = _rocm.needed(package.info) if package else ()
    lacking = _rocm.missing(needed, facts.layouts)
    return f"{_list(lacking)} missing" if lacking else ""


def _device_code(facts: Facts) -> Iterator[Problem]:
    """Yield the problem of rocm-sdk-libraries, which has device code in further wheels."""
    libraries = facts.packages.get("rocm-sdk-libraries")
    gpus = sorted({gpu.name for gpu in facts.machine.visible if gpu.name})
    lacking = [gpu for gpu in gpus if f"rocm-sdk-device-{gpu}" not in facts.packages]
    if libraries and lacking:
        wheels = [f"rocm-sdk-device-{gpu}" for gpu in lacking]
        yield problem(
            "rocm-device-missing",
            gpus=", ".join(lacking),
            packages=_list(wheels),
            command=facts.install_of_rocm(
                *[f"{name}=={libraries.version}" for name in wheels]
            ),
        )


def _list(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


def _settings(facts: Facts) -> Iterator[Problem]:
    environ = facts.environ
    machine = facts.machine
    size = _machine.shm_mib()
    if len(machine.visible) > 1 and size <= _SMALL_SHM_MIB:
        yield problem(
            "small-shm",
            count=len(machine.visible),
            size=f"{size:.0f}",
            command=machine.enlarge_shm(),
        )
    if machine.wsl and environ.get("HSA_ENABLE_DXG_DETECTION") != "1":
        yield problem("wsl")
    if value := environ.get("HSA_OVERRIDE_GFX_VERSION"):
        yield problem("gfx-override", value=value)
    # Wheels of this project make way for another major.
    others = [
        package.name
        for package in facts.packages.values()
        if package.major not in (0, facts.major) and not package.info
    ]
    if others:
        yield problem(
            "other-major",
            packages=_list(others),
            major=facts.major,
            command=facts.python.command("uninstall", *others),
        )


def usable_majors(candidates: Mapping[int, Facts], *, need_gpu: bool) -> list[int]:
    """Return the majors without an error, the best one first."""
    return [
        major
        for major in _ranked(candidates)
        if next(errors(candidates[major], need_gpu=need_gpu), None) is None
    ]


def choose(candidates: Mapping[int, Facts], *, need_gpu: bool) -> int:
    """Return the ROCm major that registers its backend, or that reports the problems.

    jaxlib loads the extension modules of the first major that can be imported, before
    any plugin acts. One process cannot use two majors of HIP, so no other major acts.
    """
    if len(candidates) == 1:
        return next(iter(candidates))
    if loaded := loaded_majors() & candidates.keys():
        return max(loaded)
    usable = usable_majors(candidates, need_gpu=need_gpu)
    return usable[0] if usable else _ranked(candidates)[0]


def _ranked(majors: Collection[int]) -> list[int]:
    return sorted(majors, reverse=True)


def blocked(
    candidates: Mapping[int, Facts], own: int, reason: Problem | None, *, need_gpu: bool
) -> Problem | None:
    """Return the problem of a loaded major in whose place another one could be used.

    None if no major is loaded, the loaded one can be used, or no other can.

    Args:
        own: the major that acts. Another one is loaded if its wheels are not of this
            project, and did not register the platform.
        reason: why `own` cannot be used; None if it can.
    """
    loaded = loaded_majors()
    if not loaded or (own in loaded and reason is None):
        return None
    major = own if own in loaded else max(loaded)
    usable = usable_majors(candidates, need_gpu=need_gpu)
    others = [other for other in usable if other != major]
    if not others:
        return None
    packages = (f"jax-rocm{major}-plugin", f"jax-rocm{major}-pjrt")
    return problem(
        "major-blocked",
        major=major,
        other=others[0],
        reason=reason.sentence if reason else "its wheels did not start.",
        command=candidates[own].python.command("uninstall", *packages),
    )
