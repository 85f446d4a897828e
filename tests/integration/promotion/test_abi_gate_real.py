"""The ABI gate on published wheels and our set, with a real ROCm and loader."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from core.model import GfxTarget, RocmVersion
from core.rocm_layouts import allowed_sonames
from promotion.gates.abi.loader import SITE, SYSTEM, InstalledLibrary, load, scenarios
from promotion.gates.abi.symbols import LibraryExports, unmet_symbols
from promotion.gates.common.stubs import write_stubs
from wheelkit.elf.snapshot import Elf
from wheelkit.inspect.platform_rules import platform_libraries
from wheelkit.repair.platform_tags import PLATFORM
from wheelkit.rocm_manifest import (
    RocmLibrary,
    RocmManifest,
    from_needs,
    shipped_manifest,
)

pytestmark = pytest.mark.network
HIP = "libamdhip64.so.7"


def elves(wheels: Sequence[Path], folder: Path) -> dict[str, Elf]:
    """Return the libraries of wheels by path inside the wheel.

    The extracted files are deleted at once.
    """
    found = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in (name for name in archive.namelist() if name.endswith(".so")):
                path = Path(archive.extract(name, folder))
                found[name] = Elf.read(path)
                path.unlink()
    return found


def complete(found: Mapping[str, Elf], version: str = "7.2.0") -> RocmManifest:
    """Return a ROCm that has exactly the needs of these libraries and is marked as a real one."""
    needs = from_needs(
        found.values(), version, allowed_sonames(RocmVersion(text=version))
    )
    return dataclasses.replace(needs, weak=False)


# Published wheels as they are


@pytest.mark.parametrize(
    ("version", "rocm"),
    [
        ("0.10.2", "7.2.0"),
        ("0.12.0", "7.14.0"),
    ],
)
def test_shipped_manifest_has_needs_of_published_wheels(
    tmp_path: Path, real_wheel: Callable[..., Path], version: str, rocm: str
) -> None:
    shipped = shipped_manifest(RocmVersion(text=rocm))
    assert shipped is not None
    exports = {
        name: LibraryExports(
            origin=rocm, symbols=library.symbols, needed=library.needed
        )
        for name, library in shipped.libraries.items()
    }
    for path, elf in elves([real_wheel("jax-rocm7-plugin", version)], tmp_path).items():
        assert [
            item.message
            for item in unmet_symbols(elf, exports, platform_libraries(PLATFORM), rocm)
        ] == [], path


# The real dynamic loader


def by_the_real_loader(library: Path, root: Path) -> dict[str, str]:
    """Return the path of each soname below `root`, SYSTEM, or nothing, by the loader."""
    (loader,) = Path("/lib64").glob("ld-linux-*.so.*")
    env = {key: value for key, value in os.environ.items() if not key.startswith("LD_")}
    env["LD_TRACE_LOADED_OBJECTS"] = "1"
    said = subprocess.run(
        [str(loader), str(library)],
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )
    found = {}
    for soname, path in re.findall(
        r"^\s*(\S+) => (.+?)(?: \(0x[0-9a-f]+\))?$", said.stdout, re.MULTILINE
    ):
        inside = os.path.normpath(path).startswith(f"{root}/")
        if path == "not found":
            found[soname] = ""
        else:
            found[soname] = os.path.relpath(path, root) if inside else SYSTEM
    return found


@pytest.mark.parametrize("missing", ["", "librocblas.so.5"])
def test_simulated_loader_agrees_with_real_loader(
    real_wheel: Callable[..., Path], tmp_path: Path, missing: str
) -> None:
    site = tmp_path / "site-packages"
    for project in ("jax-rocm7-pjrt", "jax-rocm7-plugin"):
        with zipfile.ZipFile(real_wheel(project, "0.10.2")) as archive:
            archive.extractall(
                site, [name for name in archive.namelist() if name.endswith(".so")]
            )
    found = {str(path.relative_to(site)): Elf.read(path) for path in site.rglob("*.so")}
    # Libraries of ROCm need each other as well, and something of the system.
    needs = {
        "librocblas.so.5": (HIP, "libc.so.6"),
        "libMIOpen.so.1": ("librccl.so.1", HIP),
        HIP: ("libm.so.6",),
    }
    libraries = [
        dataclasses.replace(row, needed=needs.get(row.soname, ()), runpath=("$ORIGIN",))
        for row in complete(found).libraries.values()
    ]
    at = {
        path: InstalledLibrary(
            path=SITE / path,
            soname=Path(path).name,
            needed=elf.needed,
            runpath=elf.search_path,
        )
        for path, elf in found.items()
    }
    wheels = {library.path: library for library in at.values()}
    tried = 0
    for scenario in scenarios(
        libraries, [GfxTarget.parse("gfx942"), GfxTarget.parse("gfx1100")]
    ):
        if not scenario.name.startswith("pip-"):
            continue
        files = {
            path: file
            for path, file in scenario.files.items()
            if file.soname != missing
        }
        installed = [
            _at(libraries, str(path), file.soname) for path, file in files.items()
        ]
        write_stubs(
            RocmManifest(
                rocm_version="7.2.0", libraries={row.soname: row for row in installed}
            ),
            tmp_path,
        )
        for path, library in at.items():
            done = load(
                library,
                dataclasses.replace(scenario, files=files),
                wheels,
                system=platform_libraries(PLATFORM),
            )
            expected = dict(done.found) | {soname: "" for _, soname in done.missing}
            said = by_the_real_loader(site / path, tmp_path)
            ours_only = {
                name for name in expected if name.startswith("ld-linux")
            }  # listed in another form
            assert said == {
                name: place for name, place in expected.items() if name not in ours_only
            }
            tried += 1
        for place in files:
            (tmp_path / place).unlink()
    for file in site.rglob("*.so"):
        file.unlink()  # they are large
    assert tried == 3 * len(found)


def _at(libraries: Sequence[RocmLibrary], path: str, soname: str) -> RocmLibrary:
    (row,) = [library for library in libraries if library.soname == soname]
    return dataclasses.replace(row, path=path)
