"""The install layouts.

Run paths of our libraries, searched folders, and libraries that a wheel may need.
"""

from __future__ import annotations

import os.path
from pathlib import Path

import pytest

from core import targets as gfx
from core.errors import RequestError
from core.model import RocmVersion
from core.rocm_layouts import (
    allowed_sonames,
    family_packages,
    hip_soname,
    needed_sonames,
    runpath,
    search_dirs,
)
from core.versions import Kind

KINDS: tuple[Kind, ...] = ("pjrt", "plugin")
SITE = Path("/venv/lib/python3.12/site-packages")
HOME = {"pjrt": SITE / "jax_plugins/xla_rocm7", "plugin": SITE / "jax_rocm7_plugin"}


def allowed(version: str) -> frozenset[str]:
    return allowed_sonames(RocmVersion(text=version))


def resolved(kind: Kind, targets: str | None) -> list[Path]:
    """Return the run path as the dynamic loader expands it."""
    entries = runpath(kind, gfx.expand(targets) if targets else None).split(":")
    return [
        Path(os.path.normpath(entry.replace("$ORIGIN", str(HOME[kind]))))
        for entry in entries
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("targets", [None, "default", "gfx942,gfx950", "gfx1151"])
def test_run_path_lists_layouts_with_fixed_folder(
    kind: Kind, targets: str | None
) -> None:
    chosen = gfx.expand(targets) if targets else None
    expected: dict[Path, None] = {}
    for name in ("pip-multi-arch", "pip-family", "opt-rocm"):
        expected.update(
            dict.fromkeys(search_dirs(name, site_packages=SITE, targets=chosen))
        )
    assert resolved(kind, targets) == list(expected)


@pytest.mark.parametrize(
    ("targets", "families"),
    [
        ("gfx942", {"gfx94X_dcgpu"}),
        ("gfx90a:xnack-", {"gfx90a", "gfx90X_dcgpu"}),
        ("gfx9-4-generic", {"gfx94X_dcgpu", "gfx950_dcgpu"}),
        ("gfx1201,gfx1150", {"gfx120X_all", "gfx1150"}),
    ],
)
def test_run_path_has_families_of_targets_only(
    targets: str, families: set[str]
) -> None:
    assert set(family_packages(gfx.expand(targets))) == families


def test_folders_of_prefix() -> None:
    prefix = Path("/sw/rocm")
    assert search_dirs("prefix", site_packages=SITE, rocm_path=prefix) == (
        prefix / "lib",
        prefix / "lib64",
        prefix / "lib/rocm_sysdeps/lib",
    )
    assert (
        search_dirs("tarball", site_packages=SITE, rocm_path=prefix)[0]
        == prefix / "lib"
    )


def test_unlisted_version_uses_nearest_older_list() -> None:
    assert (
        allowed("7.2.9")
        == allowed("7.10.0a20251120")
        == allowed("7.11.0")
        == allowed("7.2.0")
    )
    assert allowed("7.13.0") == allowed("7.12.0a20260301") == allowed("7.12.0")
    assert allowed("7.99.0") == allowed("7.14.0rc1") == allowed("7.14.0")
    assert "libamd_smi.so.26" not in allowed("7.11.0")
    assert "librocsparse.so.1" not in allowed("7.14.0")


@pytest.mark.parametrize("version", ["7.0.0", "6.4.0", "1.0.0"])
def test_too_old_version_is_refused_with_file_to_edit(version: str) -> None:
    with pytest.raises(RequestError) as caught:
        allowed(version)
    assert "core/rocm_layouts.toml" in caught.value.hint
    assert f'"{version.removesuffix(".0")}"' in caught.value.hint


def test_rocm_10_has_hip_7_and_its_own_amd_smi() -> None:
    assert {
        hip_soname(RocmVersion(text=text)) for text in ("10.0.0", "10.1.0a20260811")
    } == {"libamdhip64.so.7"}
    assert allowed("10.0.0") ^ allowed("7.14.0") == {
        "libamd_smi.so.26",
        "libamd_smi.so.27",
    }


def test_needed_libraries_are_those_of_all_releases() -> None:
    needed = needed_sonames(RocmVersion(text="7.10.0a20251120"))
    assert {"libamdhip64.so.7", "librccl.so.1", "librocsolver.so.0"} <= needed
    # TheRock has it for few processors, and not all releases of jax use it.
    assert "libhipsparselt.so.0" not in needed
