"""The install layouts: run paths of our libraries, searched folders, and libraries that a wheel may need."""

from __future__ import annotations

import os.path
from pathlib import Path

import pytest

from core import targets as gfx
from core.errors import RequestError
from core.layouts import (
    allowed_sonames,
    family_packages,
    hip_soname,
    load_layouts,
    package_of,
    rocm_majors,
    runpath,
    search_dirs,
)
from core.model import RocmVersion
from core.versions import Kind

KINDS: tuple[Kind, ...] = ("pjrt", "plugin")
SITE = Path("/venv/lib/python3.12/site-packages")
HOME = {"pjrt": SITE / "jax_plugins/xla_rocm7", "plugin": SITE / "jax_rocm7_plugin"}
SHORTEST_PUBLISHED = 4258  # bytes; the plugin and pjrt of 0.12.0, the shortest RUNPATH of 0.10.2 and later

# Suffixes of `_rocm_sdk_libraries_` in the RUNPATHs of the published 0.10.2 and 0.12.0 wheels.
PUBLISHED_FAMILIES = {
    "gfx950_dcgpu", "gfx94X_dcgpu", "gfx90a", "gfx90X_dcgpu", "gfx908", "gfx906", "gfx900", "gfx120X_all", "gfx1153",
    "gfx1152", "gfx1151", "gfx1150", "gfx110X_all", "gfx103X_all", "gfx101X_dgpu",
}  # fmt: skip

# DT_NEEDED of the published wheels that neither manylinux_2_28 nor the wheels provide, by the ROCm of their build.
PUBLISHED_NEEDED = {
    "7.2.0": {
        "librocprofiler-sdk.so.1", "librccl.so.1", "libhipblaslt.so.1", "libhipfft.so.0", "libMIOpen.so.1",
        "librocblas.so.5", "librocm_smi64.so.1", "libamdhip64.so.7", "libhipblas.so.3", "libhipsolver.so.1",
        "librocsolver.so.0", "libhipsparse.so.4",
    },
    "7.12.0": {
        "libMIOpen.so.1", "libamd_smi.so.26", "libamdhip64.so.7", "libhipblas.so.3", "libhipblaslt.so.1",
        "libhipfft.so.0", "libhipsolver.so.1", "libhipsparse.so.4", "librccl.so.1", "librocblas.so.5",
        "librocm_smi64.so.1", "librocprofiler-sdk.so.1", "librocsolver.so.0",
    },
    "7.14.0": {
        "librocprofiler-sdk.so.1", "librccl.so.1", "libhsa-runtime64.so.1", "librocm_sysdeps_drm.so.2",
        "librocm_sysdeps_drm_amdgpu.so.1", "librocm_sysdeps_numa.so.1", "libhipblaslt.so.1", "libhipfft.so.0",
        "libMIOpen.so.1", "librocblas.so.5", "libamd_smi.so.26", "libamdhip64.so.7", "libhipblas.so.3",
        "librocsolver.so.0", "libhipsolver.so.1", "libhipsparse.so.4", "librocm_smi64.so.1",
    },
    "10.0.0": {
        "libMIOpen.so.1", "libamd_smi.so.27", "libamdhip64.so.7", "libhipblas.so.3", "libhipblaslt.so.1",
        "libhipfft.so.0", "libhipsolver.so.1", "libhipsparse.so.4", "librccl.so.1", "librocblas.so.5",
        "librocm_smi64.so.1", "librocprofiler-sdk.so.1", "librocsolver.so.0",
    },
    "10.1.0": {
        "libMIOpen.so.1", "libamd_smi.so.27", "libamdhip64.so.7", "libhipblas.so.3", "libhipblaslt.so.1",
        "libhipfft.so.0", "libhipsolver.so.1", "libhipsparse.so.4", "libhsa-runtime64.so.1", "librccl.so.1",
        "librocblas.so.5", "librocm_sysdeps_drm.so.2", "librocm_sysdeps_drm_amdgpu.so.1", "librocm_sysdeps_numa.so.1",
        "librocprofiler-sdk.so.1", "librocsolver.so.0",
    },
}  # fmt: skip


def allowed(version: str) -> frozenset[str]:
    return allowed_sonames(RocmVersion(text=version))


def resolved(kind: Kind, targets: str | None) -> list[Path]:
    """Return the run path as the dynamic loader expands it."""
    entries = runpath(kind, gfx.expand(targets) if targets else None).split(":")
    return [Path(os.path.normpath(entry.replace("$ORIGIN", str(HOME[kind])))) for entry in entries]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("targets", [None, "default", "gfx942,gfx950", "gfx1151"])
def test_run_path_lists_layouts_with_fixed_folder(kind: Kind, targets: str | None) -> None:
    chosen = gfx.expand(targets) if targets else None
    expected: dict[Path, None] = {}
    for name in ("pip-multi-arch", "pip-family", "opt-rocm"):
        expected.update(dict.fromkeys(search_dirs(name, site_packages=SITE, targets=chosen)))
    assert resolved(kind, targets) == list(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_run_path_of_small_set(kind: Kind) -> None:
    up = {"pjrt": "$ORIGIN/../..", "plugin": "$ORIGIN/.."}[kind]
    assert runpath(kind, gfx.expand("gfx942,gfx950")).split(":") == [
        f"{up}/_rocm_sdk_core/lib",
        f"{up}/_rocm_sdk_core/lib/rocm_sysdeps/lib",
        f"{up}/_rocm_sdk_libraries/lib",
        f"{up}/_rocm_sdk_libraries_gfx94X_dcgpu/lib",
        f"{up}/_rocm_sdk_libraries_gfx950_dcgpu/lib",
        "/opt/rocm/lib",
        "/opt/rocm/lib64",
        "/opt/rocm/lib/rocm_sysdeps/lib",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_run_path_fits_in_published_one(kind: Kind) -> None:
    text = runpath(kind, None)
    assert len(text) < SHORTEST_PUBLISHED / 4
    assert not any(word in text for word in ("_solib", ".runfiles", "python3", "//", "::"))
    entries = text.split(":")
    assert len(entries) == len(set(entries))
    assert all(entry.startswith(("$ORIGIN/..", "/opt/rocm/")) for entry in entries)


def test_families_cover_published_wheels_and_two_newer() -> None:
    assert set(family_packages(None)) == PUBLISHED_FAMILIES | {"gfx90c", "gfx125X_dcgpu"}


@pytest.mark.parametrize(
    ("targets", "families"),
    [
        ("gfx942", {"gfx94X_dcgpu"}),
        ("gfx90a:xnack-", {"gfx90a", "gfx90X_dcgpu"}),
        ("gfx9-4-generic", {"gfx94X_dcgpu", "gfx950_dcgpu"}),
        ("gfx1201,gfx1150", {"gfx120X_all", "gfx1150"}),
    ],
)
def test_run_path_has_families_of_targets_only(targets: str, families: set[str]) -> None:
    assert set(family_packages(gfx.expand(targets))) == families


def test_folders_of_prefix() -> None:
    prefix = Path("/sw/rocm")
    assert search_dirs("prefix", site_packages=SITE, rocm_path=prefix) == (
        prefix / "lib", prefix / "lib64", prefix / "lib/rocm_sysdeps/lib",
    )  # fmt: skip
    assert search_dirs("tarball", site_packages=SITE, rocm_path=prefix)[0] == prefix / "lib"
    with pytest.raises(RequestError, match="tarball needs a prefix"):
        search_dirs("tarball", site_packages=SITE)


def test_unknown_layout_is_refused_with_known_ones() -> None:
    with pytest.raises(RequestError, match="'spack' is not a ROCm layout") as caught:
        search_dirs("spack", site_packages=SITE)
    assert "pip-multi-arch, pip-family, tarball, prefix, opt-rocm" in caught.value.hint


@pytest.mark.parametrize("version", PUBLISHED_NEEDED)
def test_sonames_of_published_wheels_are_allowed(version: str) -> None:
    assert allowed(version) >= PUBLISHED_NEEDED[version]


@pytest.mark.parametrize("version", ["7.1.0", "7.2.0", "7.14.0", "10.0.0", "99.0.0"])
@pytest.mark.parametrize(
    "soname", ["libnuma.so.1", "libdrm.so.2", "libcudart.so.12", "libamdhip64.so", "libamdhip64.so.10", "libhip*.so.7"]
)
def test_other_sonames_are_refused(version: str, soname: str) -> None:
    assert soname not in allowed(version)


def test_unlisted_version_uses_nearest_older_list() -> None:
    assert allowed("7.2.9") == allowed("7.10.0a20251120") == allowed("7.11.0") == allowed("7.2.0")
    assert allowed("7.13.0") == allowed("7.12.0a20260301") == allowed("7.12.0")
    assert allowed("7.99.0") == allowed("7.14.0rc1") == allowed("7.14.0")
    assert "libamd_smi.so.26" not in allowed("7.11.0")
    assert "librocsparse.so.1" not in allowed("7.14.0")


@pytest.mark.parametrize("version", ["7.0.0", "6.4.0", "1.0.0"])
def test_too_old_version_is_refused_with_file_to_edit(version: str) -> None:
    with pytest.raises(RequestError) as caught:
        allowed(version)
    assert "core/layouts.toml" in caught.value.hint
    assert f'"{version.removesuffix(".0")}"' in caught.value.hint


def test_rocm_10_has_hip_7_and_its_own_amd_smi() -> None:
    assert {hip_soname(RocmVersion(text=text)) for text in ("10.0.0", "10.1.0a20260811")} == {"libamdhip64.so.7"}
    assert allowed("10.0.0") ^ allowed("7.14.0") == {"libamd_smi.so.26", "libamd_smi.so.27"}


def test_unlisted_major_uses_newest_older_list() -> None:
    assert allowed("8.0.0") == allowed("9.9.9") == allowed("7.14.0")
    assert allowed("99.0.0") == allowed("10.1.0") == allowed("10.0.0")


def test_hip_runtime_belongs_to_several_rocm_majors() -> None:
    assert rocm_majors(7) == {7, 10}
    assert rocm_majors(6) == {6}


def test_hip_runtime_is_allowed_in_every_version() -> None:
    for major, minor in load_layouts().sonames:
        assert hip_soname(RocmVersion(text=f"{major}.{minor}.0")) in allowed(f"{major}.{minor}.0")


def test_listed_libraries_and_packages_agree() -> None:
    table = load_layouts()
    stems = {name.removeprefix("lib").split(".so")[0] for names in table.sonames.values() for name in names}
    assert stems == set(table.packages)


@pytest.mark.parametrize(
    ("soname", "package"),
    [
        ("libamdhip64.so.7", "rocm-sdk-core"),
        ("libhiprtc-builtins.so.99", "rocm-sdk-core"),
        ("librocm_sysdeps_drm.so.2", "rocm-sdk-core"),
        ("libhipfftw.so", "rocm-sdk-libraries"),
        ("libhipblas.so.3", "rocm-sdk-libraries"),
        ("libhipsolver_fortran.so.1", ""),
        ("libstdc++.so.6", ""),
        ("notalib", ""),
    ],
)
def test_package_of_library(soname: str, package: str) -> None:
    assert package_of(soname) == package
