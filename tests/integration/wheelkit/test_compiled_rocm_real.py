"""Published wheels compared with the ROCm that AMD built them with, and with other ROCms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from core.model import RocmVersion
from core.rocm_layouts import allowed_sonames
from wheelkit.inspect.compiled_rocm import BuildRocm, compare_rocm

pytestmark = pytest.mark.network

LLVM = "https://github.com/RadeonOpenCompute/llvm-project"
CLANGS = {
    "7.1.0": (
        f"AMD clang version 20.0.0git ({LLVM} roc-7.1.0 25425"
        " 1b0eada6b0ee93e2e694c8c146d23fca90bc11c5)"
    ),
    "7.2.0": (
        f"AMD clang version 22.0.0git ({LLVM} roc-7.2.0 26014"
        " 7b800a19466229b8479a78de19143dc33c3ab9b5)"
    ),
    "7.14.0": (
        "AMD clang version 23.0.0git (https://github.com/ROCm/llvm-project.git "
        "46fcb339fb61119b337f973c7ca9e710a319fdd0+PATCHED:440716f8b87be9d8e20ed910e10e5b6d14d57cf6)"
    ),
}
"""First line of `clang --version` of each ROCm."""
BUILT_WITH = {"0.7.1": "7.1.0", "0.9.1": "7.2.0", "0.10.2": "7.2.0", "0.12.0": "7.14.0"}
"""Release of the wheels -> their ROCm."""


def rocm(version: str) -> BuildRocm:
    """Return a ROCm with the libraries that wheels for it may need."""
    identity = CLANGS[version]
    sonames = allowed_sonames(RocmVersion(text=version)) | {
        "libamd_comgr.so.3",
        "libhiprtc.so.7",
    }
    return BuildRocm(
        version=version,
        sonames=sonames,
        compiler=identity.split()[3],
        identity=identity,
        folders=("/opt/rocm",),
    )


@pytest.mark.parametrize("release", BUILT_WITH)
def test_published_plugin_has_rocm_of_its_build_only(
    release: str, real_wheel: Callable[..., Path]
) -> None:
    path = real_wheel("jax-rocm7-plugin", release)
    own = rocm(BUILT_WITH[release])
    assert compare_rocm(path, own).differences == ()
    assert compare_rocm(path, own).unmarked == ()
    # Without the line of clang, as far as numbers tell.
    assert compare_rocm(path, replace(own, identity="")).differences == ()
    for version in CLANGS.keys() - {own.version}:
        for other in (rocm(version), replace(rocm(version), identity="")):
            found = compare_rocm(path, other).differences
            assert [
                text for text in found if text.startswith("_solver.so was compiled by")
            ]


@pytest.mark.parametrize("release", BUILT_WITH)
def test_published_pjrt_has_rocm_of_its_build_only(
    release: str, real_wheel: Callable[..., Path]
) -> None:
    path = real_wheel("jax-rocm7-pjrt", release)
    own = rocm(BUILT_WITH[release])
    assert compare_rocm(path, own).differences == ()
    found = compare_rocm(
        path, rocm("7.2.0" if own.version != "7.2.0" else "7.14.0")
    ).differences
    assert [text for text in found if "was compiled by" in text]
