"""The jax packages of a Python: versions, requirements, build information, libraries.

Nothing is imported.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from ci_build.doctor.examined import ExaminedSystem, versions
from ci_build.doctor.examined import rocm as finder
from core.errors import ElfError
from wheelkit.elf import constants
from wheelkit.elf import elf_tables as reader

_OURS = re.compile(
    r"jax|jaxlib|jax-(?:rocm|cuda)[0-9]+-(?:pjrt|plugin)|rocm|rocm-sdk(?:-[a-z0-9-]+)?|libtpu"
)
_VERSIONS = frozenset({"version", "jax_version", "requires_jaxlib"})
"""Keys of build_info.json that name the packages which fit a wheel."""
_NATIVE = re.compile(r"jax-rocm([0-9]+)-(pjrt|plugin)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """One installed distribution.

    Attributes:
        name: normalised name (PEP 503).
        folder: folder that it is installed in.
        requires: Requires-Dist lines without a marker.
        targets: gfx targets with code in the wheel; empty if not recorded.
        covers: generic target -> processors that run its code.
        xla_targets: processors that its XLA accepts; empty if not recorded.
        rocm: ROCm version that it was built for; empty if not recorded.
        fitting: project -> specifier of the packages that fit it; empty if not
            recorded.
        damaged: files in RECORD that are missing or have another size.
        needs: library file -> names of the shared libraries that it needs.
    """

    name: str
    version: str
    folder: str
    requires: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    covers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    xla_targets: tuple[str, ...] = ()
    rocm: str = ""
    fitting: Mapping[str, str] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def major(self) -> int:
        """The ROCm major of a pjrt or plugin package (6 is named rocm60).

        0 for any other package.
        """
        match = _NATIVE.fullmatch(self.name)
        return (6 if match[1] == "60" else int(match[1])) if match else 0

    @property
    def part(self) -> str:
        """The part of jax for ROCm, `pjrt` or `plugin`; empty for any other package."""
        match = _NATIVE.fullmatch(self.name)
        return match[2] if match else ""


@dataclass(frozen=True, kw_only=True)
class InstalledPackages:
    """The jax packages of a Python.

    Attributes:
        installed: name -> first package with this name in Python's search order.
        shadowed: further packages with the same names.
        leftovers: folders of jax plugins that no distribution owns.
        lacking: library file -> names of needed libraries that were not found.
    """

    installed: Mapping[str, Package]
    shadowed: tuple[Package, ...]
    leftovers: tuple[str, ...]
    lacking: Mapping[str, tuple[str, ...]]

    def native(self, part: str) -> tuple[Package, ...]:
        """Return the packages of one part of jax for ROCm, `pjrt` or `plugin`."""
        return tuple(
            package for package in self.installed.values() if package.part == part
        )


def look(
    here: ExaminedSystem,
) -> tuple[dict[str, Package], tuple[Package, ...], tuple[str, ...]]:
    """Return the installed packages by name, the shadowed packages, and the leftover folders."""
    first: dict[str, Package] = {}
    shadowed: list[Package] = []
    leftovers: list[str] = []
    for entry in here.python.path:
        for distribution in distributions(path=[entry]):
            package = _package(distribution, entry)
            if package is None:
                continue
            if package.name in first:
                shadowed.append(package)
            else:
                first[package.name] = package
        leftovers += _leftovers(Path(entry))
    return dict(sorted(first.items())), tuple(shadowed), tuple(leftovers)


def lacking(
    packages: Mapping[str, Package], layouts: Sequence[object]
) -> dict[str, tuple[str, ...]]:
    """Return the needed libraries that the loader does not find in `layouts`, by library file."""
    missing_of = {}
    for package in packages.values():
        for file, needed in package.needs.items():
            others = [
                name for name in needed if not Path(file).with_name(name).exists()
            ]
            if missing := finder.missing(others, layouts):
                missing_of[file] = tuple(missing)
    return missing_of


def _package(distribution: Distribution, entry: str) -> Package | None:
    try:
        metadata = distribution.metadata
        name = re.sub(r"[-_.]+", "-", str(metadata["Name"] or "")).lower()
    except (
        UnicodeDecodeError,
        KeyError,
        TypeError,
    ):  # missing or damaged metadata: pip ignores the package too
        return None
    if not _OURS.fullmatch(name):
        return None
    native = _NATIVE.fullmatch(name)
    return Package(
        name=name,
        version=str(metadata["Version"] or ""),
        folder=entry,
        requires=tuple(line for line in distribution.requires or () if ";" not in line),
        **(_wheel_facts(distribution, entry, int(native[1])) if native else {}),
    )


def _wheel_facts(distribution: Distribution, entry: str, major: int) -> dict[str, Any]:
    """Return further attributes of a pjrt or plugin package, from its files."""
    rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    files = [(Path(entry, row[0]), row[2]) for row in rows if len(row) == 3]
    info: dict[str, Any] = {}
    for path, _ in files:
        if path.name == "build_info.json" and not info:
            # An unreadable build_info.json is reported as damaged if its size is wrong.
            with suppress(OSError, ValueError):
                body = json.loads(path.read_text(encoding="utf-8"))
                info = body if isinstance(body, dict) else {}
    damaged = (
        str(path)
        for path, size in files
        if not path.is_file() or (size.isdecimal() and path.stat().st_size != int(size))
    )
    return {
        "targets": tuple(
            sorted(
                {
                    target
                    for member in info.get("members", ())
                    for target in member["targets"]
                }
            )
        ),
        "covers": {
            generic: tuple(names) for generic, names in info.get("covers", {}).items()
        },
        "xla_targets": tuple(info.get("xla_targets", ())),
        "rocm": str(info.get("rocm_version", "")),
        "fitting": versions.fitting(info, major) if info.keys() >= _VERSIONS else {},
        "damaged": tuple(damaged),
        "needs": {
            str(path): _needed(path)
            for path, _ in files
            if path.suffix == ".so" and path.is_file()
        },
    }


def _needed(path: Path) -> tuple[str, ...]:
    try:
        with reader.open_image(path) as image:
            table = image.dynamic()
            strings = next(
                (entry.value for entry in table if entry.tag == constants.DT_STRTAB), 0
            )
            size = next(
                (entry.value for entry in table if entry.tag == constants.DT_STRSZ), 0
            )
            names = image.read(image.offset_of(strings), size) if size else b""
            return tuple(
                reader.string_at(names, e.value, path.name)
                for e in table
                if e.tag == constants.DT_NEEDED
            )
    except (OSError, ElfError):
        return ()


def _leftovers(site: Path) -> list[str]:
    # When pip uninstalls a package that was used, it does not remove folders that
    # contain caches.
    leftovers = []
    for folder in (*site.glob("jax_plugins/xla_rocm*"), *site.glob("jax_rocm*_plugin")):
        parts = re.fullmatch(r"xla_rocm([0-9]+)|jax_rocm([0-9]+)_plugin", folder.name)
        if parts is None or not any(path.is_file() for path in folder.glob("*")):
            continue
        name = f"jax_rocm{parts[1] or parts[2]}_{'pjrt' if parts[1] else 'plugin'}"
        if not any(site.glob(f"{name}-*.dist-info")):
            leftovers.append(str(folder))
    return sorted(leftovers)
