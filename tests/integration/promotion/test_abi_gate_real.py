"""The ABI gate on published wheels, on a set of our own, against a real ROCm, and against the real dynamic loader."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ci_build.rocm.tree import read_tree
from core.layouts import allowed_sonames, load_layouts
from core.model import Evidence, GfxTarget, Outcome, RocmVersion, Severity
from promotion.gates.abi.gate import make_gate
from promotion.gates.abi.loader import SYSTEM, in_site_packages, load, scenarios
from promotion.gates.abi.members import PLATFORM
from promotion.gates.abi.symbols import LibraryExports, unmet_symbols
from promotion.gates.common.runs import run_gates
from promotion.gates.common.stubs import write_stubs
from promotion.stage import read_staged, stage
from promotion.storage.directory_bucket import DirBucket
from promotion.storage.keys import StagedSet
from tests.support.gating import messages, stage_published
from tests.support.real_rocm import VERSION, unpack_real_rocm
from tests.support.silent import NoProcesses, Silent
from wheelkit.elf.snapshot import Elf
from wheelkit.inspect.manylinux import platform_libraries
from wheelkit.rocm_manifest import ROCM_MANIFEST, RocmLibrary, RocmManifest, dump_manifest, from_needs, shipped_manifest

pytestmark = pytest.mark.network
ROOT = Path(__file__).resolve().parents[3]
PYTHON = "{}.{}".format(*sys.version_info)
HIP = "libamdhip64.so.7"
PJRT = "jax_plugins/xla_rocm7/xla_rocm_plugin.so"


def judge(bucket: DirBucket, staged: StagedSet, manifest: RocmManifest | None) -> Evidence:
    (evidence,) = run_gates(bucket, staged, [make_gate(manifest)], NoProcesses(), Silent())
    return evidence


def about(evidence: Evidence, *words: str, severity: Severity = Severity.ERROR) -> list[str]:
    """Return the messages that contain all of these words."""
    return [text for text in messages(evidence.findings, severity) if all(word in text for word in words)]


def elves(wheels: Sequence[Path], folder: Path) -> dict[str, Elf]:
    """Return the libraries of wheels by path inside the wheel; the extracted files are deleted at once."""
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
    needs = from_needs(found.values(), version, allowed_sonames(RocmVersion(text=version)))
    return dataclasses.replace(needs, weak=False)


def but(manifest: RocmManifest, soname: str, *, symbols: Mapping[str, tuple[str, ...]]) -> RocmManifest:
    changed = dataclasses.replace(manifest.libraries[soname], symbols=symbols)
    return dataclasses.replace(manifest, libraries={**manifest.libraries, soname: changed})


# Published wheels as they are


@pytest.fixture(scope="module")
def plugin_set(
    tmp_path_factory: pytest.TempPathFactory, real_wheel: Callable[..., Path]
) -> tuple[DirBucket, StagedSet]:
    """Return a set with the plugin wheel of 0.10.2 as published."""
    folder = tmp_path_factory.mktemp("plugin")
    return stage_published(folder, [real_wheel("jax-rocm7-plugin", "0.10.2")])


@pytest.fixture(scope="module")
def plugin_elves(tmp_path_factory: pytest.TempPathFactory, real_wheel: Callable[..., Path]) -> dict[str, Elf]:
    return elves([real_wheel("jax-rocm7-plugin", "0.10.2")], tmp_path_factory.mktemp("elves"))


@pytest.fixture(scope="module")
def plugin_needs(plugin_elves: dict[str, Elf]) -> RocmManifest:
    return complete(plugin_elves)


def test_abi_gate_accepts_published_wheels_with_complete_manifest(
    plugin_set: tuple[DirBucket, StagedSet], plugin_needs: RocmManifest
) -> None:
    evidence = judge(*plugin_set, plugin_needs)
    assert messages(evidence.findings) == []
    assert evidence.outcome is Outcome.PASSED
    assert evidence.counts["skipped"] == 0
    # Published wheels find a prefix only through their users' LD_LIBRARY_PATH.
    assert about(evidence, "layout-unresolved", "in layout tarball", severity=Severity.WARNING)
    assert not about(evidence, "layout-unresolved", "in layout opt-rocm", severity=Severity.WARNING)


@pytest.mark.parametrize(
    ("version", "rocm"), [("0.7.1", "7.1.0"), ("0.9.1", "7.2.0"), ("0.10.2", "7.2.0"), ("0.12.0", "7.14.0")]
)
def test_shipped_manifest_has_needs_of_published_wheels(
    tmp_path: Path, real_wheel: Callable[..., Path], version: str, rocm: str
) -> None:
    shipped = shipped_manifest(RocmVersion(text=rocm))
    assert shipped is not None
    exports = {
        name: LibraryExports.of(name, rocm, library.symbols, library.needed)
        for name, library in shipped.libraries.items()
    }
    for path, elf in elves([real_wheel("jax-rocm7-plugin", version)], tmp_path).items():
        assert [item.message for item in unmet_symbols(elf, exports, platform_libraries(PLATFORM), rocm)] == [], path


def test_abi_gate_names_libraries_affected_by_rocm_fault(
    plugin_set: tuple[DirBucket, StagedSet], plugin_elves: dict[str, Elf], plugin_needs: RocmManifest
) -> None:
    hip = dict(plugin_needs.libraries[HIP].symbols)
    changed = {name: versions for name, versions in hip.items() if name != "hipGetErrorString"}
    changed["hipInit"] = ("hip_9.9",)
    broken = but(plugin_needs, HIP, symbols=changed)
    renamed = {
        ("libhipsparse.so.5" if name == "libhipsparse.so.4" else name): row for name, row in broken.libraries.items()
    }
    evidence = judge(*plugin_set, dataclasses.replace(broken, libraries=renamed))
    assert evidence.outcome is Outcome.FAILED
    assert about(evidence, "symbol-missing", "_hybrid.so", f"{HIP} of ROCm 7.2.0 does not export: hipGetErrorString")
    assert about(evidence, "symbol-version-missing", "_triton.so", "hipInit", "has hip_9.9")
    assert about(evidence, "needed-unresolved", "_sparse.so", "libhipsparse.so.4 (available: libhipsparse.so.5)")
    users = {
        path
        for path, elf in plugin_elves.items()
        if any((symbol.name, symbol.library) == ("hipGetErrorString", HIP) for symbol in elf.undefined)
    }
    assert 2 < len(users) < len(plugin_elves)
    told = about(evidence, "symbol-missing", "hipGetErrorString")
    assert {path for path in plugin_elves if any(f": {path} needs" in text for text in told)} == users


def test_abi_gate_rejects_real_rocm_of_other_major(plugin_set: tuple[DirBucket, StagedSet], tmp_path: Path) -> None:
    real, _ = read_tree(unpack_real_rocm(tmp_path), VERSION, progress=Silent())
    evidence = judge(*plugin_set, real)
    assert about(evidence, "needed-unresolved", "_prng.so", f"{HIP} (available: libamdhip64.so.5)")
    # The library has the soname that the wheel needs, but lacks the versions and symbols added after ROCm 5.
    hip = dataclasses.replace(real.libraries["libamdhip64.so.5"], soname=HIP)
    evidence = judge(*plugin_set, dataclasses.replace(real, libraries={HIP: hip}))
    assert about(evidence, "symbol-version-missing", "_triton.so", "hip_6.0", "hipGetDevicePropertiesR0600")
    assert not about(evidence, "_hybrid.so", "symbol"), "it uses three functions that HIP has had since 4.2"


@pytest.mark.heavy
def test_abi_gate_warns_about_published_0_12_0(tmp_path: Path, real_wheel: Callable[..., Path]) -> None:
    wheels = [real_wheel(name, "0.12.0") for name in ("jax-rocm7-pjrt", "jax-rocm7-plugin")]
    evidence = judge(*stage_published(tmp_path, wheels), None)
    (unversioned,) = about(evidence, "unversioned-symbol-too-new", PJRT, severity=Severity.WARNING)
    assert "3 symbols of std::filesystem" in unversioned
    assert re.findall(r"10filesystem\w+", unversioned) == [
        "10filesystem7__cxx114path14_M_split_cmptsEv",
        "10filesystem7__cxx114path11parent_pathEv",
        "10filesystem9canonicalERKNS_7__cxx114pathE",
    ]
    for layout in ("pip-multi-arch", "opt-rocm"):
        (lost,) = about(evidence, PJRT, f"in layout {layout}", severity=Severity.WARNING)
        assert "librocm_sysdeps_drm.so.2" in lost
        assert HIP not in lost
    assert about(evidence, "symbol-missing", severity=Severity.WARNING) == [], "the shipped manifest has them"
    assert evidence.counts["skipped"] == 0


# A set of our own


@pytest.fixture(scope="module")
def own_set(
    tmp_path_factory: pytest.TempPathFactory, work_cache: Path, real_wheel: Callable[..., Path]
) -> tuple[DirBucket, StagedSet]:
    """Return a set from `dist_wheels` with the manifest of a ROCm that satisfies all needs of the wheels."""
    folder = tmp_path_factory.mktemp("own")
    wheels = [real_wheel("jax-rocm7-pjrt", "0.10.2"), real_wheel("jax-rocm7-plugin", "0.10.2", PYTHON)]
    (folder / "rocm.json").write_bytes(dump_manifest(complete(elves(wheels, folder / "elves"))))
    argv = [sys.executable, "-m", "ci_build.cli", "dist_wheels", "--payload=published", f"--python-versions={PYTHON}"]
    argv += ["--targets=gfx942,gfx950", f"--rocm-manifest={folder / 'rocm.json'}"]
    argv += [f"--out={folder / 'set'}", f"--cache-dir={work_cache}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return DirBucket(folder / "bucket"), stage(DirBucket(folder / "bucket"), folder / "set")


@pytest.mark.heavy
def test_built_wheels_resolve_libraries_in_every_layout(own_set: tuple[DirBucket, StagedSet]) -> None:
    wheel_set = read_staged(*own_set)
    assert ROCM_MANIFEST in wheel_set.files
    evidence = judge(*own_set, None)
    assert messages(evidence.findings) == []
    assert (evidence.outcome, evidence.counts["skipped"]) == (Outcome.PASSED, 0)
    layouts: dict[str, Mapping[str, Any]] = {
        check["name"]: check["files"] for check in evidence.details["checks"] if check["name"].startswith("layout ")
    }
    assert {name.split()[1].rstrip(",") for name in layouts} == set(load_layouts().layouts)
    needed = {soname for w in wheel_set.wheels if "rocm" in w.name for member in w.members for soname in member.needed}
    for files in layouts.values():
        assert needed - platform_libraries(PLATFORM) <= files.keys()
    told = [text for text in messages(evidence.findings, Severity.WARNING) if "jaxlib" not in text]
    assert [text.partition(":")[0] for text in told] == ["build-path-in-strings"], told


# The real dynamic loader


def by_the_real_loader(library: Path, root: Path) -> dict[str, str]:
    """Return, by soname, the path below `root`, SYSTEM, or nothing if not found, as traced by the loader."""
    (loader,) = Path("/lib64").glob("ld-linux-*.so.*")
    env = {key: value for key, value in os.environ.items() if not key.startswith("LD_")}
    env["LD_TRACE_LOADED_OBJECTS"] = "1"
    said = subprocess.run([str(loader), str(library)], capture_output=True, text=True, check=False, env=env)
    found = {}
    for soname, path in re.findall(r"^\s*(\S+) => (.+?)(?: \(0x[0-9a-f]+\))?$", said.stdout, re.MULTILINE):
        inside = os.path.normpath(path).startswith(f"{root}/")
        found[soname] = "" if path == "not found" else os.path.relpath(path, root) if inside else SYSTEM
    return found


@pytest.mark.parametrize("missing", ["", "librocblas.so.5"])
def test_simulated_loader_agrees_with_real_loader(
    real_wheel: Callable[..., Path], tmp_path: Path, missing: str
) -> None:
    site = tmp_path / "site-packages"
    for project in ("jax-rocm7-pjrt", "jax-rocm7-plugin"):
        with zipfile.ZipFile(real_wheel(project, "0.10.2")) as archive:
            archive.extractall(site, [name for name in archive.namelist() if name.endswith(".so")])
    found = {str(path.relative_to(site)): Elf.read(path) for path in site.rglob("*.so")}
    # Libraries of ROCm need each other as well, and something of the system.
    needs = {"librocblas.so.5": (HIP, "libc.so.6"), "libMIOpen.so.1": ("librccl.so.1", HIP), HIP: ("libm.so.6",)}
    libraries = [
        dataclasses.replace(row, needed=needs.get(row.soname, ()), runpath=("$ORIGIN",))
        for row in complete(found).libraries.values()
    ]
    at = {
        path: in_site_packages(path, soname="", needed=elf.needed, runpath=elf.runpath or "")
        for path, elf in found.items()
    }
    wheels = {library.path: library for library in at.values()}
    tried = 0
    for scenario in scenarios(libraries, [GfxTarget.parse("gfx942"), GfxTarget.parse("gfx1100")]):
        if not scenario.name.startswith("pip-"):
            continue
        files = {path: file for path, file in scenario.files.items() if file.soname != missing}
        installed = [_at(libraries, str(path), file.soname) for path, file in files.items()]
        write_stubs(RocmManifest(rocm_version="7.2.0", libraries={row.soname: row for row in installed}), tmp_path)
        for path, library in at.items():
            done = load(
                library, dataclasses.replace(scenario, files=files), wheels, system=platform_libraries(PLATFORM)
            )
            expected = dict(done.found) | {soname: "" for _, soname in done.missing}
            said = by_the_real_loader(site / path, tmp_path)
            ours_only = {name for name in expected if name.startswith("ld-linux")}  # listed in another form
            assert said == {name: place for name, place in expected.items() if name not in ours_only}
            tried += 1
        for place in files:
            (tmp_path / place).unlink()
    for file in site.rglob("*.so"):
        file.unlink()  # they are large
    assert tried == 3 * len(found)


def _at(libraries: Sequence[RocmLibrary], path: str, soname: str) -> RocmLibrary:
    (row,) = [library for library in libraries if library.soname == soname]
    return dataclasses.replace(row, path=path)
