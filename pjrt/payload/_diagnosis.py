"""Diagnosis of this machine and the packages of a Python.

The loader reports the first problem, and the doctor all. Files are read; jax is not
imported, and HIP is not started.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _gpus, _machine, _packages, _rocm, _versions
from ._problems import ERROR, NOTE, WARNING, Problem, problem

_GLIBC = (2, 28)
"""Oldest glibc that manylinux_2_28 wheels support."""
_SMALL_SHM_MIB = 64
"""Docker's default size of /dev/shm in MiB, which is too small for RCCL."""
_UNMAPPED = {"nogroup", "nobody", "65534"}
"""Group that Podman without root shows for every group of the host."""
_PJRT_FOLDER = re.compile(r"xla_rocm([0-9]+)")


@dataclass(frozen=True)
class Facts:
    """Facts about a machine and the packages of a Python.

    Attributes:
        packages: name -> installed package.
        info: build information of the pjrt wheel, or of the wheel to install, with the
            defaults of `collect`.
        major: its ROCm major.
        layouts: places where ROCm is searched.
        rocms: installed ROCms that are searched, in search order.
    """

    environ: Mapping[str, str]
    python: _packages.Python
    machine: _machine.Machine
    packages: Mapping[str, _packages.Package]
    info: Mapping[str, Any]
    major: int
    layouts: tuple[_rocm.Layout, ...]
    rocms: tuple[_rocm.InstalledRocm, ...]

    @property
    def name(self) -> str:
        """Name and version of the pjrt package."""
        name = f"jax-rocm{self.major}-pjrt"
        package = self.packages.get(name)
        version = package.version if package else ""
        return f"{name} {version or self.info.get('version', '')}".strip()

    @property
    def targets(self) -> list[str]:
        """The gfx targets that have code in the pjrt wheel; empty if unknown."""
        found: set[str] = set()
        for member in self.info.get("members", ()):
            found.update(member["targets"])
        return sorted(found)

    @property
    def index(self) -> str:
        """The URL of the index in commands that install wheels."""
        return str(self.info.get("index") or _packages.INDEX)

    def install(self, damaged: str = "") -> str:
        """Return the command that installs the packages which do not fit.

        Args:
            damaged: name of a package whose files must be replaced.
        """
        wanted = _packages.fitting(self.info, self.major)
        if damaged:
            words = _packages.install_words(
                {damaged: f"=={self.packages[damaged].version}"}, {}, self.index
            )
            options = ("--force-reinstall", "--no-deps")
            return self.python.command("install", *options, *words)
        # A new virtual environment has no packages yet.
        installed = {} if self.python.closed else self.packages
        words = _packages.install_words(wanted, installed, self.index)
        return self.python.command("install", *words)

    def install_rocm(self) -> str:
        """Return the command that makes a ROCm available to this Python."""
        folder = _rocm.elsewhere()
        if folder and not self.rocms:
            return f"export ROCM_PATH={shlex.quote(folder)}"
        names = dict.fromkeys(gpu.name for gpu in self.machine.visible if gpu.name)
        extras = ",".join(["libraries", *(f"device-{name}" for name in names)])
        url = self.info.get("rocm_index", "")
        index = ("--index-url", url) if url else ()
        return self.python.command("install", *index, f"rocm[{extras}]=={self.major}.*")


def collect(
    environ: Mapping[str, str],
    python: _packages.Python,
    major: int = 0,
    defaults: Mapping[str, Any] = {},
) -> Facts:
    """Return the facts about this machine.

    Args:
        major: ROCm major of the diagnosed packages; 0 for that of the installed pjrt
            package, or else of the installed ROCm.
        defaults: build information of the wheel that is proposed if none is installed.
    """
    packages = _packages.look(python.path)
    core = packages.get("rocm-sdk-core")
    core_version = core.version if core else ""
    native = [package.major for package in packages.values() if package.major]
    major = major or max(native, default=0)
    folder = _packages.find_folder(f"jax-rocm{major}-pjrt", python.path)
    info: Mapping[str, Any] = folder.info if folder else {}
    families = info.get("families", ())
    layouts = _rocm.layouts(environ, python.path, families)
    rocms = _rocm.installed(layouts, core_version)
    oldest = defaults.get("rocm_major", 0)
    if not major:
        newer = [rocm.major for rocm in rocms if rocm.major >= oldest]
        major = newer[0] if newer else oldest
    info = info or _published(packages.get(f"jax-rocm{major}-pjrt"))
    return Facts(
        environ=environ,
        python=python,
        machine=_machine.look(environ),
        packages=packages,
        info={**defaults, **info},
        major=major,
        layouts=layouts,
        rocms=rocms,
    )


def _published(pjrt: _packages.Package | None) -> Mapping[str, Any]:
    """Return build information for a wheel of AMD, which has none."""
    if pjrt is None or not pjrt.version:
        return {}
    # The PJRT interface changes between the release series of jaxlib.
    series = ".".join(pjrt.version.split(".")[:2])
    release = pjrt.version.partition(".post")[0].partition("+")[0]
    fitting = {"version": pjrt.version, "jax_version": release}
    return {**fitting, "requires_jaxlib": f"=={series}.*"}


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
        yield from _settings(facts)


def errors(facts: Facts, *, need_gpu: bool = True) -> Iterator[Problem]:
    """Yield the problems that keep jax from using the GPU."""
    for item in problems(facts, need_gpu=need_gpu):
        if item.severity == ERROR:
            yield item


def all_problems(facts: Facts) -> list[Problem]:
    """Return the problems that the doctor prints: errors, warnings, notes.

    If there is no error, XLA's plugin is loaded, but not started.
    """
    found = list(problems(facts))
    value = facts.environ.get("JAX_PLATFORMS", "")
    platforms = set(value.lower().replace(" ", "").split(","))
    if value and not {"rocm", "gpu"} & platforms:
        found.append(problem("platforms", value=value))
    if not any(item.severity == ERROR for item in found):
        found += load(facts)
    order = (ERROR, WARNING, NOTE)
    return sorted(found, key=lambda item: order.index(item.severity))


def load(facts: Facts) -> list[Problem]:
    """Load ROCm and XLA's plugin of the pjrt wheel, and return the problem."""
    library = plugin_library(facts)
    try:
        _rocm.preload(facts.info, facts.layouts, library.parent)
        ctypes.CDLL(str(library))
    except OSError as error:
        return [not_loadable(facts, error)]
    return []


def plugin_library(facts: Facts) -> Path:
    """Return the path of XLA's plugin of the pjrt wheel."""
    package = _packages.find_folder(f"jax-rocm{facts.major}-pjrt", facts.python.path)
    site = package.site if package else Path()
    return site / f"jax_plugins/xla_rocm{facts.major}/xla_rocm_plugin.so"


def not_loadable(facts: Facts, error: Exception) -> Problem:
    """Return the problem of a ROCm with which the plugin cannot be loaded."""
    return problem(
        "rocm-not-loadable",
        package=facts.name,
        error=error,
        places=searched(facts.layouts),
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
        yield problem(
            "device-denied",
            gpus=gpus,
            devices=", ".join(paths),
            groups=", ".join(groups),
            command=command,
        )


def _has_wheels(python: _packages.Python, supported: Sequence[str]) -> bool:
    minor = ".".join(python.version.split(".")[:2])
    known = minor in supported or not supported
    return known and python.implementation == "cpython" and not python.free_threaded


def _unsupported(facts: Facts) -> Problem:
    python = facts.python
    supported = facts.info["pythons"]
    fresh = _packages.FRESH
    wanted = _packages.fitting(facts.info, facts.major)
    words = _packages.install_words(wanted, {}, facts.index)
    make = f"uv venv --seed --python {facts.info['python']} {fresh}"
    description = f"{python.implementation} {python.version}"
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
            package=facts.name,
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
            gpus=",".join(sorted(unusable)),
            targets=", ".join(facts.targets),
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
        "places": searched(facts.layouts),
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


def _list(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


def searched(layouts: Sequence[_rocm.Layout]) -> str:
    """Return the places where ROCm is searched, in words."""
    return "; ".join([*map(str, layouts), "the system's own folders"])


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
    for layout in facts.layouts:
        if layout.name.startswith("ROCM_PATH=") and not layout.folders():
            yield problem("rocm-path", path=environ["ROCM_PATH"])
    yield from _mixed_rocm(facts)


def _mixed_rocm(facts: Facts) -> Iterator[Problem]:
    versions = {rocm.version: rocm for rocm in reversed(facts.rocms)}
    if len(versions) < 2:
        return
    first = facts.rocms[0]
    other = next(rocm for rocm in facts.rocms if rocm.version != first.version)
    commands = {
        "LD_LIBRARY_PATH": "unset LD_LIBRARY_PATH",
        "rocm-sdk wheels": facts.python.command("uninstall", "rocm-sdk-core"),
    }
    # /opt/rocm is often left beside the ROCm that ROCM_PATH names.
    if first.layout in commands:
        yield problem(
            "rocm-mixed",
            first=first.version,
            first_folder=first.folder,
            second=other.version,
            second_folder=other.folder,
            command=commands[first.layout],
        )


# Several majors


def major_of(package: str) -> int:
    """Return the ROCm major in a package name such as `jax_plugins.xla_rocm7`.

    Raises:
        ImportError: the package has another name, so it was not installed from a wheel.
    """
    match = _PJRT_FOLDER.fullmatch(package.rpartition(".")[2])
    if match is None:
        raise ImportError(
            f"{package} is not named like jax_plugins.xla_rocm7; install it from its wheel."
        )
    return int(match[1])


def installed_majors(path: Sequence[str]) -> set[int]:
    """Return the ROCm majors of the installed pjrt wheels of this project."""
    majors = set()
    for entry in path:
        for folder in Path(entry, "jax_plugins").glob("xla_rocm*"):
            match = _PJRT_FOLDER.fullmatch(folder.name)
            if match and (folder / "build_info.json").is_file():
                majors.add(int(match[1]))
    return majors


def loaded_majors() -> set[int]:
    """Return the majors whose extension modules this process has loaded."""
    native = re.compile(r"jax_rocm([0-9]+)_plugin\.(?:_\w+|rocm_plugin_extension)")
    matches = [native.fullmatch(name) for name in tuple(sys.modules)]
    return {int(match[1]) for match in matches if match}


def here(own: int) -> dict[int, Facts]:
    """Return the facts for this Python by installed ROCm major, with the major `own`."""
    python = _packages.this_python()
    majors = {own, *installed_majors(python.path)}
    return {major: collect(os.environ, python, major) for major in majors}


def usable_majors(candidates: Mapping[int, Facts], *, need_gpu: bool) -> list[int]:
    """Return the majors without an error, the best one first.

    One process cannot use two majors of HIP, so a major whose extension modules jaxlib
    has already loaded is better than a higher one.
    """
    return [
        major
        for major in _ranked(candidates)
        if next(errors(candidates[major], need_gpu=need_gpu), None) is None
    ]


def choose(candidates: Mapping[int, Facts], *, need_gpu: bool) -> int:
    """Return the ROCm major that registers its backend, or that reports the problems."""
    if len(candidates) == 1:
        return next(iter(candidates))
    usable = usable_majors(candidates, need_gpu=need_gpu)
    return usable[0] if usable else _ranked(candidates)[0]


def _ranked(majors: Collection[int]) -> list[int]:
    loaded = loaded_majors()
    return sorted(majors, key=lambda major: (major in loaded, major), reverse=True)
