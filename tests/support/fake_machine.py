"""A fake machine with AMD GPUs for the doctor.

A root folder, the packages of a Python, an environment.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from ci_build.doctor import examined
from ci_build.doctor.__main__ import diagnose, examine
from ci_build.doctor.diagnosis import Facts, Problem
from ci_build.doctor.examined import ExaminedSystem, Python
from core.wheels_json import dump_wheel_set
from tests.support.fake_site import HIP as HIP
from tests.support.fake_site import PLUGIN_NEEDED, build_info, install, kfd_tree
from tests.support.tiny_elf import tiny_elf

MI300 = {"gfx_target_version": 90402, "unique_id": 0x18F1A2B3C4D5E6F7}
MI200 = {"gfx_target_version": 90010}
RX5700 = {"gfx_target_version": 100100}
PYTHON = "/usr/bin/python3"


class FakeMachine:
    """A machine without problems at first.

    Two MI300X, the driver, ROCm 7.2.0 in /opt/rocm, all packages.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = folder / "root"
        for module, names in (
            (examined.gpus, ("NODES", "KFD", "DXG", "SHM")),
            (examined.rocm, ("OPT_ROCM",)),
        ):
            for name in names:
                monkeypatch.setattr(
                    module, name, self.root / getattr(module, name).relative_to("/")
                )
        # In the fake root, the measured size of /dev/shm would be that of the test
        # machine's disk.
        monkeypatch.setattr(examined.gpus, "shm_mib", lambda: 65536.0)
        self.site = folder / "site"
        self.site.mkdir()
        self.environ: dict[str, str] = {}
        self.kernel = ("Linux", "x86_64", "6.8.0-41-generic")
        self.libc = "glibc 2.39"
        self.python: dict[str, Any] = {
            "version": "3.12.3",
            "implementation": "CPython",
            "free_threaded": False,
            "executable": PYTHON,
            "virtual": True,
            "managed": False,
            "pip": True,
            "path": (str(self.site),),
        }
        self.write(
            "etc/os-release", 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n'
        )
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
            place = (
                self.root / path if (self.root / path).exists() else self.site / path
            )
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        return self

    def gpus(self, *gpus: Mapping[str, int]) -> Self:
        """Replace the GPUs by these, each with 192 GiB and a card on the PCI bus."""
        for path in ("sys/class/kfd", "sys/bus/pci/devices"):
            if (self.root / path).exists():
                self.remove(path)
        nodes = kfd_tree(self.root / "sys/class/kfd/kfd/topology/nodes", *gpus)
        for number in range(1, len(gpus) + 1):
            bank = f"heap_type 1\nsize_in_bytes {192 << 30}\n"
            self.write(
                str(
                    nodes.relative_to(self.root)
                    / str(number)
                    / "mem_banks/0/properties"
                ),
                bank,
            )
            self.card(number, "0x1002")
        return self

    def card(self, number: int, vendor: str) -> Self:
        """Add a display controller to the PCI bus."""
        self.write(f"sys/bus/pci/devices/0000:0{number}:00.0/vendor", f"{vendor}\n")
        return self.write(
            f"sys/bus/pci/devices/0000:0{number}:00.0/class", "0x038000\n"
        )

    def rocm(self, prefix: str, version: str, *libraries: str) -> Self:
        """Write a ROCm tree; by default with everything that the packages need."""
        self.write(f"{prefix}/.info/version", f"{version}\n")
        for name in libraries or (HIP, *PLUGIN_NEEDED):
            self.write(f"{prefix}/lib/{name}", "")
        return self

    def distribution(
        self, name: str, version: str, *requires: str, files: Sequence[Path] = ()
    ) -> Self:
        """Write a package's dist-info with METADATA and RECORD, as pip does."""
        info = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = [
            "Metadata-Version: 2.4",
            f"Name: {name}",
            f"Version: {version}",
            *(f"Requires-Dist: {r}" for r in requires),
        ]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        with (info / "RECORD").open("w", newline="") as file:
            csv.writer(file).writerows(
                (str(f.relative_to(self.site)), "sha256=x", f.stat().st_size)
                for f in files
            )
        return self

    def native(
        self, part: str, major: int = 7, version: str = "0.10.2", **changes: Any
    ) -> Self:
        """Write the pjrt or plugin package, with one library that needs HIP.

        Args:
            part: pjrt or plugin.
            changes: changes of build_info.json.
        """
        targets = changes.pop("targets", ("gfx942", "gfx950")) if part == "pjrt" else ()
        package = install(
            self.site,
            part,
            major,
            build_info([HIP], targets, version=version, **changes),
        )
        needed = (HIP, "libc.so.6") if part == "pjrt" else (*PLUGIN_NEEDED, "libc.so.6")
        tiny_elf(
            package / ("xla_rocm_plugin.so" if part == "pjrt" else "_linalg.so"),
            needed=needed,
        )
        requires = ["jaxlib<=0.10.2,>=0.10.2"]
        if part == "plugin":
            requires.append(f"jax-rocm{major}-pjrt=={version}")
        files = [path for path in package.iterdir() if path.is_file()]
        return self.distribution(
            f"jax-rocm{major}-{part}", version, *requires, files=files
        )

    def uninstall(self, *names: str) -> Self:
        """Remove packages as pip does."""
        for name in names:
            (info,) = self.site.glob(f"{name.replace('-', '_')}-*.dist-info")
            for line in (info / "RECORD").read_text().splitlines():
                (self.site / line.split(",")[0]).unlink()
            self.remove(info.name)
        return self

    @property
    def here(self) -> ExaminedSystem:
        """Return the system that the doctor examines."""
        return ExaminedSystem(
            environ=self.environ,
            root=self.root,
            system=self.kernel,
            libc=self.libc,
            python=Python(**self.python),
        )

    def facts(self, index: str = "") -> Facts:
        return examine(self.here, index)

    def problems(self, index: str = "") -> tuple[Problem, ...]:
        return diagnose(self.facts(index))


def write_index(folder: Path, *sets: Any) -> str:
    """Write the files of an index that the doctor reads: status.json and each set's wheels.json.

    Args:
        folder: folder of the index, such as …/v2/multi-arch.
        sets: pairs of a wheel set and its tiers by target, newest first.
    """
    rows = []
    for wheel_set, tiers in sets:
        path = folder / "sets" / wheel_set.digest / "wheels.json"
        path.parent.mkdir(parents=True)
        path.write_text(dump_wheel_set(wheel_set))
        rows.append(
            {
                "digest": wheel_set.digest,
                "tiers": tiers,
                "jax": wheel_set.jax_version,
                "rocm": wheel_set.rocm_version,
                "pythons": list(wheel_set.python_versions),
            }
        )
    (folder / "status.json").write_text(json.dumps({"sets": rows}))
    return str(folder)
