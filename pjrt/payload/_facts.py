"""Facts about this machine and the packages of a Python, for each installed ROCm major.

Files are read; jax is not imported, and HIP is not started.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _machine, _packages, _rocm

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

    @property
    def library(self) -> Path:
        """Path of XLA's plugin in the pjrt wheel."""
        folder = f"jax_plugins/xla_rocm{self.major}"
        name = f"jax-rocm{self.major}-pjrt"
        package = _packages.find_folder(name, self.python.path)
        site = package.site if package else Path()
        return site / folder / "xla_rocm_plugin.so"

    @property
    def searched(self) -> str:
        """The places where ROCm is searched, in words."""
        return "; ".join([*map(str, self.layouts), "the system's own folders"])

    def install(self, damaged: str = "") -> str:
        """Return the command that installs the packages which do not fit.

        Args:
            damaged: name of a package whose files must be replaced.
        """
        if damaged:
            words = _packages.install_words(
                {damaged: f"=={self.packages[damaged].version}"}, {}, self.index
            )
            options = ("--force-reinstall", "--no-deps")
            return self.python.command("install", *options, *words)
        # A new virtual environment has no packages yet.
        installed = {} if self.python.closed else self.packages
        words = _packages.install_words(self._fitting(), installed, self.index)
        return self.python.command("install", *words)

    def _fitting(self) -> Mapping[str, str]:
        """Return the packages that fit the wheel for the installed jax, or else the pjrt wheel."""
        jax = self.packages.get("jax")
        for part in ("pjrt", "plugin"):
            package = self.packages.get(f"jax-rocm{self.major}-{part}")
            info = package.info if package else {}
            if jax and info.get("jax_version") == jax.version:
                return _packages.fitting(info, self.major)
        return _packages.fitting(self.info, self.major)

    def install_published(self) -> str:
        """Return the command that replaces the wheels by those that AMD publishes."""
        version = self.info["jax_version"]
        # "==" would accept the installed wheels, whose version has a local label.
        names = [
            f"jax-rocm{self.major}-{part}==={version}" for part in ("pjrt", "plugin")
        ]
        return self.python.command("install", "--force-reinstall", "--no-deps", *names)

    def install_rocm(self) -> str:
        """Return the command that makes a ROCm available to this Python."""
        folder = _rocm.elsewhere()
        if folder and not self.rocms:
            return f"export ROCM_PATH={shlex.quote(folder)}"
        names = dict.fromkeys(gpu.name for gpu in self.machine.visible if gpu.name)
        devices = [f"device-{name}" for name in names]
        plugin = self.packages.get(f"jax-rocm{self.major}-plugin")
        if plugin is None or not plugin.extras:
            extras = ",".join(["libraries", *devices])
            return self.install_of_rocm(f"rocm[{extras}]=={self.major}.*")
        if known := [name for name in devices if name in plugin.extras]:
            extras = ",".join(known)
            return self.install_of_rocm(f"{plugin.name}[{extras}]=={plugin.version}")
        version = self.info["rocm_version"]
        wheels = [f"rocm-sdk-{part}=={version}" for part in ("core", "libraries")]
        return self.install_of_rocm(*wheels)

    def install_of_rocm(self, *words: str) -> str:
        """Return the command that installs packages from the index of ROCm only."""
        url = self.info.get("rocm_index", "")
        options = ["--index-url", url] if url else []
        if self.python.closed and f"jax-rocm{self.major}-pjrt" in self.packages:
            options.insert(0, _packages.INTO_SYSTEM)
        return self.python.command("install", *options, *words)


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
