"""A ROCm that only returns errors, as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import GateError
from promotion.gates.common.stubs import stub_code, write_stubs
from wheelkit.elf.snapshot import Elf
from wheelkit.rocm_manifest import RocmLibrary, RocmManifest

HIP = RocmLibrary(
    soname="libamdhip64.so.7",
    path="lib/libamdhip64.so.7",
    symbols={"hipInit": ("hip_4.2",), "hipGetDeviceCount": ("hip_6.0", "hip_4.2")},
    needed=("libhsa-runtime64.so.1", "libc.so.6"),
    runpath=("/opt/rocm/lib", "$ORIGIN", "$ORIGIN/rocm_sysdeps/lib"),
)
HSA = RocmLibrary(soname="libhsa-runtime64.so.1", path="lib/libhsa-runtime64.so.1", symbols={"hsa_init": ("ROCR_1",)})
DRM = RocmLibrary(soname="librocm_sysdeps_drm.so.2", path="lib/rocm_sysdeps/lib/librocm_sysdeps_drm.so.2", symbols={})


def manifest(*libraries: RocmLibrary) -> RocmManifest:
    return RocmManifest(rocm_version="7.2.0", libraries={library.soname: library for library in libraries})


def test_write_stubs_uses_paths_of_manifest(tmp_path: Path) -> None:
    folders = write_stubs(manifest(HIP, HSA, DRM), tmp_path)
    assert folders == (tmp_path / "lib", tmp_path / "lib/rocm_sysdeps/lib")
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {HIP.path, HSA.path, DRM.path}


def test_stubs_need_only_each_other(tmp_path: Path) -> None:
    write_stubs(manifest(HIP, HSA), tmp_path)
    elf = Elf.read(tmp_path / HIP.path)
    assert elf.soname == "libamdhip64.so.7"
    assert elf.needed == ("libhsa-runtime64.so.1",)
    assert elf.runpath == "$ORIGIN:$ORIGIN/rocm_sysdeps/lib"
    assert Elf.read(tmp_path / HSA.path).runpath == "$ORIGIN"


def test_stubs_export_symbols_and_versions_of_manifest(tmp_path: Path) -> None:
    write_stubs(manifest(HIP), tmp_path)
    assert Elf.read(tmp_path / HIP.path).offered == HIP.symbols


@pytest.mark.parametrize("path", ["/etc/libx.so.1", "../libx.so.1", "lib/../../libx.so.1", "lib/other.so"])
def test_path_outside_tree_is_refused(path: str, tmp_path: Path) -> None:
    bad = RocmLibrary(soname="libx.so.1", path=path, symbols={})
    with pytest.raises(GateError, match=r"invalid path for libx\.so\.1"):
        write_stubs(manifest(bad), tmp_path / "tree")
    assert not list(tmp_path.rglob("*.so*"))


@pytest.mark.parametrize(
    ("symbols", "status"),
    [
        ("hipInit hipGetLastError __hipPushCallConfiguration", 100),
        ("hsa_init", 0x1000),
        ("hipblasCreate rocblas_create_handle ncclGetVersion rsmi_init", 1),
    ],
)
def test_stub_functions_return_error_codes(symbols: str, status: int) -> None:
    for symbol in symbols.split():
        assert stub_code(symbol) == b"\xb8" + status.to_bytes(4, "little") + b"\xc3", symbol


def test_stub_functions_return_strings() -> None:
    symbols = """
        hipGetErrorString hiprtcGetErrorString ncclGetErrorString miopenGetErrorString rocprofiler_get_status_string
        hipGetErrorName hipsparseGetErrorName ncclGetLastError rocblas_status_to_string hipblasStatusToString hipApiName
    """
    for symbol in symbols.split():
        assert b"stub of ROCm\0" in stub_code(symbol), symbol
