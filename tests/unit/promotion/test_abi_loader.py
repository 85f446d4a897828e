"""The simulated dynamic loader: where each library would come from, in every declared layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

import pytest

from core.model import GfxTarget
from core.rocm_layouts import load_layouts, runpath
from promotion.gates.abi.loader import (
    SITE,
    SYSTEM,
    InstalledLibrary,
    LoadResult,
    Scenario,
    load,
    scenarios,
)
from wheelkit.rocm_manifest import RocmLibrary

TARGETS = [GfxTarget.parse("gfx942")]
PJRT = "jax_plugins/xla_rocm7/xla_rocm_plugin.so"
PLUGIN = "jax_rocm7_plugin/_solver.so"
RUNPATHS = {PJRT: runpath("pjrt", TARGETS), PLUGIN: runpath("plugin", TARGETS)}
NEEDED = (
    "libamdhip64.so.7",
    "librocblas.so.5",
    "librocm_sysdeps_drm.so.2",
    "libc.so.6",
)
SYSTEM_LIBRARIES = frozenset({"libc.so.6"})
CORE = "site-packages/_rocm_sdk_core"
BLAS = "site-packages/_rocm_sdk_libraries"


def rocm(
    soname: str,
    *needed: str,
    folder: str = "lib",
    runpath: Sequence[str] = ("$ORIGIN",),
) -> RocmLibrary:
    return RocmLibrary(
        soname=soname,
        path=f"{folder}/{soname}",
        symbols={},
        needed=needed,
        runpath=tuple(runpath),
    )


ROCM = (
    rocm("libamdhip64.so.7", "libamd_comgr.so.3", "libc.so.6"),
    rocm("libamd_comgr.so.3", "libz.so.1"),
    rocm("librocblas.so.5", "libamdhip64.so.7"),
    rocm("librocm_sysdeps_drm.so.2", folder="lib/rocm_sysdeps/lib"),
)


def machine(name: str, libraries: Sequence[RocmLibrary] = ROCM) -> Scenario:
    (found,) = [
        scenario for scenario in scenarios(libraries, TARGETS) if scenario.name == name
    ]
    return found


def wheel_library(
    path: str = PJRT, needed: Sequence[str] = NEEDED, search: str | None = None
) -> InstalledLibrary:
    runpath = RUNPATHS[path] if search is None else search
    return InstalledLibrary(
        path=SITE / path,
        soname=SITE.joinpath(path).name,
        needed=tuple(needed),
        runpath=tuple(runpath.split(":")),
    )


def loaded(
    library: InstalledLibrary,
    scenario: Scenario,
    *others: InstalledLibrary,
    preload: Sequence[str] = (),
) -> LoadResult:
    wheels = {file.path: file for file in (library, *others)}
    return load(library, scenario, wheels, system=SYSTEM_LIBRARIES, preload=preload)


def test_scenarios_cover_every_layout_and_family() -> None:
    two = [*TARGETS, GfxTarget.parse("gfx1151")]
    names = [scenario.name for scenario in scenarios(ROCM, two)]
    assert {name.partition(" ")[0] for name in names} == set(load_layouts().layouts)
    assert [name for name in names if name.startswith("pip-family ")] == [
        "pip-family gfx94X_dcgpu",
        "pip-family gfx1151",
    ]


@pytest.mark.parametrize("path", [PJRT, PLUGIN])
@pytest.mark.parametrize(
    ("layout", "hip", "blas"),
    [
        ("pip-multi-arch", f"{CORE}/lib", f"{BLAS}/lib"),
        ("pip-family gfx94X_dcgpu", f"{CORE}/lib", f"{BLAS}_gfx94X_dcgpu/lib"),
        ("tarball", "$ROCM_PATH/lib", "$ROCM_PATH/lib"),
        ("prefix", "$ROCM_PATH/lib", "$ROCM_PATH/lib"),
        ("opt-rocm", "/opt/rocm/lib", "/opt/rocm/lib"),
    ],
)
def test_plugin_resolves_libraries_in_every_layout(
    path: str, layout: str, hip: str, blas: str
) -> None:
    done = loaded(wheel_library(path), machine(layout), preload=NEEDED[:3])
    assert done.missing == []
    assert done.found == {
        "libamdhip64.so.7": f"{hip}/libamdhip64.so.7",
        "librocblas.so.5": f"{blas}/librocblas.so.5",
        "librocm_sysdeps_drm.so.2": f"{hip}/rocm_sysdeps/lib/librocm_sysdeps_drm.so.2",
        "libamd_comgr.so.3": f"{hip}/libamd_comgr.so.3",
        "libc.so.6": SYSTEM,
        "libz.so.1": SYSTEM,
    }


@pytest.mark.parametrize("layout", ["tarball", "prefix"])
def test_prefix_needs_preloads(layout: str) -> None:
    library = wheel_library()
    done = loaded(library, machine(layout))
    assert done.missing == [(library.path, soname) for soname in NEEDED[:3]]


def test_library_beside_it_is_loaded_with_its_needs() -> None:
    library = wheel_library(PLUGIN, needed=("libown.so",), search="$ORIGIN/inner")
    inner = wheel_library(
        "jax_rocm7_plugin/inner/libown.so",
        needed=("libother.so",),
        search="${ORIGIN}/..",
    )
    other = wheel_library("jax_rocm7_plugin/libother.so", needed=(), search="")
    done = loaded(library, machine("opt-rocm"), inner, other)
    assert (done.missing, done.found) == (
        [],
        {
            "libown.so": "site-packages/jax_rocm7_plugin/inner/libown.so",
            "libother.so": "site-packages/jax_rocm7_plugin/libother.so",
        },
    )


def test_loaded_library_satisfies_later_needs() -> None:
    # librocblas has no RUNPATH; libamdhip64 comes first, as a direct need.
    libraries = (
        rocm("libamdhip64.so.7"),
        rocm("librocblas.so.5", "libamdhip64.so.7", runpath=()),
    )
    both = wheel_library(needed=("librocblas.so.5", "libamdhip64.so.7"))
    assert loaded(both, machine("opt-rocm", libraries)).missing == []
    blas = wheel_library(needed=("librocblas.so.5",))
    place = PurePosixPath("/opt/rocm/lib/librocblas.so.5")
    assert loaded(blas, machine("opt-rocm", libraries)).missing == [
        (place, "libamdhip64.so.7")
    ]


def test_manifest_of_packages_applies_to_other_layouts() -> None:
    libraries = (
        rocm("libamdhip64.so.7", folder="_rocm_sdk_core/lib"),
        rocm("librocblas.so.5", folder="_rocm_sdk_libraries_gfx94X_dcgpu/lib"),
        rocm("libunlisted.so.1", folder="_rocm_sdk_core/lib"),
    )
    places = {}
    for scenario in scenarios(libraries, TARGETS):
        if scenario.name in ("pip-family gfx94X_dcgpu", "opt-rocm"):
            places[scenario.name] = sorted(str(path) for path in scenario.files)
    assert places == {
        "pip-family gfx94X_dcgpu": [
            f"{CORE}/lib/libamdhip64.so.7",
            f"{CORE}/lib/libunlisted.so.1",
            f"{BLAS}_gfx94X_dcgpu/lib/librocblas.so.5",
        ],
        "opt-rocm": [
            f"/opt/rocm/lib/{name}"
            for name in ("libamdhip64.so.7", "librocblas.so.5", "libunlisted.so.1")
        ],
    }


def test_library_missing_in_packages_is_missing_there_only() -> None:
    libraries = (rocm("libhipsolver_fortran.so.1"),)
    library = wheel_library(needed=("libhipsolver_fortran.so.1",))
    assert loaded(library, machine("pip-multi-arch", libraries)).missing
    assert not loaded(library, machine("opt-rocm", libraries)).missing
