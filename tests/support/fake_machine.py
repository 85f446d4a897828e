"""A fake machine with AMD GPUs for the diagnosis of the loader.

A root folder, the packages of a Python, an environment.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import pytest

from ci_build import doctor
from tests.support.fake_site import HIP as HIP
from tests.support.fake_site import (
    PLUGIN_NEEDED,
    build_info,
    dist_info,
    install,
    kfd_tree,
)

MI300 = {"gfx_target_version": 90402, "unique_id": 0x18F1A2B3C4D5E6F7}
MI200 = {"gfx_target_version": 90010}
RX5700 = {"gfx_target_version": 100100}
PYTHON = "/usr/bin/python3"


def payload(name: str) -> Any:
    """Import a module of pjrt/payload, whose package needs an installed wheel."""
    package = ModuleType("rocm_doctor")
    package.__path__ = [str(doctor.PAYLOAD)]
    sys.modules.setdefault("rocm_doctor", package)
    return importlib.import_module(f"rocm_doctor.{name}")


class FakeMachine:
    """A machine without problems at first.

    Two MI300X, the driver, ROCm 7.2.0 in /opt/rocm, all packages.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = folder / "root"
        monkeypatch.setattr(payload("_gpus"), "ROOT", self.root)
        # In the fake root, the measured size of /dev/shm would be that of the test
        # machine's disk.
        monkeypatch.setattr(payload("_machine"), "shm_mib", lambda: 65536.0)
        monkeypatch.setattr(payload("_diagnosis"), "load", lambda _: [])
        # The dynamic loader finds libraries that another test has loaded.
        monkeypatch.setattr(payload("_rocm"), "_system_has", lambda _: False)
        self.site = folder / "site"
        self.site.mkdir()
        self.environ: dict[str, str] = {}
        self.system = "Linux x86_64"
        self.libc = "glibc 2.39"
        self.python: dict[str, Any] = {
            "version": "3.12.3",
            "implementation": "cpython",
            "free_threaded": False,
            "executable": PYTHON,
            "virtual": True,
            "managed": False,
            "pip": True,
            "path": (str(self.site),),
        }
        self.write("etc/os-release", 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\n')
        self.write("sys/module/amdgpu/version", "6.14.5\n")
        self.gpus(MI300, MI300)
        for device in ("kfd", "dri/renderD128", "dri/renderD129"):
            self.write(f"dev/{device}", "")
        self.rocm("opt/rocm", "7.2.0-43")
        self.distribution("jax", "0.10.2", "jaxlib<=0.10.2,>=0.10.1")
        self.distribution("jaxlib", "0.10.2", "scipy>=1.14")
        self.native("pjrt")
        self.native("plugin")

    def write(self, path: str, text: str) -> Self:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return self

    def remove(self, *paths: str) -> Self:
        """Remove files, and folders with their content."""
        for path in paths:
            place = self.root / path
            if not place.exists():
                place = self.site / path
            if place.is_dir():
                shutil.rmtree(place)
            else:
                place.unlink()
        return self

    def gpus(self, *gpus: Mapping[str, int]) -> Self:
        """Replace the GPUs by these, each with a card on the PCI bus."""
        for path in ("sys/class/kfd", "sys/bus/pci/devices"):
            if (self.root / path).exists():
                self.remove(path)
        kfd_tree(self.root / "sys/class/kfd/kfd/topology/nodes", *gpus)
        for number in range(1, len(gpus) + 1):
            self.card(number, "0x1002")
        return self

    def card(self, number: int, vendor: str) -> Self:
        """Add a display controller to the PCI bus."""
        folder = f"sys/bus/pci/devices/0000:0{number}:00.0"
        return self.write(f"{folder}/vendor", vendor).write(
            f"{folder}/class", "0x038000\n"
        )

    def rocm(
        self,
        prefix: str,
        version: str,
        *libraries: str,
    ) -> Self:
        """Write a ROCm tree; by default with everything that the packages need."""
        self.write(f"{prefix}/.info/version", f"{version}\n")
        for name in libraries or (HIP, *PLUGIN_NEEDED):
            self.write(f"{prefix}/lib/{name}", "")
        return self

    def distribution(
        self,
        name: str,
        version: str,
        *requires: str,
    ) -> Self:
        """Write a package's metadata, as pip does."""
        dist_info(self.site, name, version, *requires)
        return self

    def native(
        self,
        part: str,
        major: int = 7,
        **changes: Any,
    ) -> Self:
        """Write the pjrt or plugin package, with one library that needs HIP.

        Args:
            part: pjrt or plugin.
            changes: changes of build_info.json, and `extras` of the package.
        """
        extras = changes.pop("extras", ())
        targets = changes.pop("targets", ("gfx942", "gfx950"))
        needed = (HIP,) if part == "pjrt" else PLUGIN_NEEDED
        info = build_info(needed, targets, **{"version": "0.10.2", **changes})
        install(self.site, part, major, info, extras)
        return self

    def uninstall(self, *names: str) -> Self:
        """Remove packages."""
        for name in names:
            for info in self.site.glob(f"{name.replace('-', '_')}-*.dist-info"):
                shutil.rmtree(info)
            major, _, part = name.removeprefix("jax-rocm").partition("-")
            folder = f"jax_rocm{major}_plugin"
            if part == "pjrt":
                folder = f"jax_plugins/xla_rocm{major}"
            shutil.rmtree(self.site / folder, ignore_errors=True)
        return self

    def facts(self, index: str = "") -> Any:
        """Return the facts about this machine."""
        python = payload("_packages").Python(**self.python)
        defaults = doctor.defaults(index)
        facts = payload("_doctor").examine(self.environ, python, defaults)
        machine = replace(facts.machine, system=self.system, libc=self.libc)
        return replace(facts, machine=machine)

    def problems(self, index: str = "") -> list[Any]:
        """Return the problems that the doctor prints."""
        found: list[Any] = payload("_diagnosis").all_problems(self.facts(index))
        return found

    def screen(self) -> str:
        """Return the text that the doctor prints."""
        shown: str = payload("_doctor").show(self.facts(), self.problems(), 110)
        return shown
