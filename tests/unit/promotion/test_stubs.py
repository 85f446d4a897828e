"""A ROCm that only returns errors, as files."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from core.errors import GateError
from promotion.gates.common.stubs import (
    REGISTERING,
    REGISTRATIONS,
    stub_code,
    write_stubs,
)
from promotion.gates.load.load_child import _registrations
from wheelkit.elf.snapshot import Elf
from wheelkit.rocm_manifest import RocmLibrary, RocmManifest

HIP = RocmLibrary(
    soname="libamdhip64.so.7",
    path="lib/libamdhip64.so.7",
    symbols={"hipInit": ("hip_4.2",), "hipGetDeviceCount": ("hip_6.0", "hip_4.2")},
    needed=("libhsa-runtime64.so.1", "libc.so.6"),
    runpath=("/opt/rocm/lib", "$ORIGIN", "$ORIGIN/rocm_sysdeps/lib"),
)
HSA = RocmLibrary(
    soname="libhsa-runtime64.so.1",
    path="lib/libhsa-runtime64.so.1",
    symbols={"hsa_init": ("ROCR_1",)},
)
DRM = RocmLibrary(
    soname="librocm_sysdeps_drm.so.2",
    path="lib/rocm_sysdeps/lib/librocm_sysdeps_drm.so.2",
    symbols={},
)


def manifest(*libraries: RocmLibrary) -> RocmManifest:
    return RocmManifest(
        rocm_version="7.2.0",
        libraries={library.soname: library for library in libraries},
    )


def test_write_stubs_uses_paths_of_manifest(tmp_path: Path) -> None:
    folders = write_stubs(manifest(HIP, HSA, DRM), tmp_path)
    assert folders == (tmp_path / "lib", tmp_path / "lib/rocm_sysdeps/lib")
    files = {
        str(path.relative_to(tmp_path))
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
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


@pytest.mark.parametrize(
    "path", ["/etc/libx.so.1", "../libx.so.1", "lib/../../libx.so.1", "lib/other.so"]
)
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
        assert stub_code(symbol) == b"\xb8" + status.to_bytes(4, "little") + b"\xc3", (
            symbol
        )


def test_stub_functions_return_strings() -> None:
    symbols = """
        hipGetErrorString rocprofiler_get_status_string hipGetErrorName ncclGetLastError rocblas_status_to_string
    """
    for symbol in symbols.split():
        assert b"stub of ROCm\0" in stub_code(symbol), symbol


def registered(
    folder: Path, wrapper: bytes, *names: bytes, unknown: bool = False
) -> Mapping[str, Any]:
    """Load a stub, register kernels of a wrapper, and return the answer of the load gate's probe.

    Args:
        unknown: whether the kernels are registered for a bundle that was not
            registered.
    """
    hip = RocmLibrary(
        soname="libamdhip64.so.7",
        path="libamdhip64.so.7",
        symbols=dict.fromkeys(REGISTERING, ("hip_4",)),
    )
    write_stubs(manifest(hip), folder)
    loaded = ctypes.CDLL(str(folder / hip.path))
    for function in REGISTERING:
        getattr(loaded, function).restype = ctypes.c_void_p
    (folder / "host.bin").write_bytes(bytes(4096) + wrapper)
    with (
        (folder / "host.bin").open("r+b") as file,
        mmap.mmap(file.fileno(), 0) as mapped,
    ):
        buffer = (ctypes.c_char * len(mapped)).from_buffer(mapped)
        address = ctypes.addressof(buffer) + 4096
        struct.pack_into(
            "<Q", mapped, 4104, ctypes.addressof(buffer) + 0x2000
        )  # the bundle's address
        handle = getattr(loaded, REGISTERING[0])(ctypes.c_void_p(address))
        assert handle == address
        for name in names:
            getattr(loaded, REGISTERING[1])(
                ctypes.c_void_p(handle + unknown), None, name, ctypes.c_char_p(name)
            )
        try:
            assert ctypes.c_uint64.in_dll(loaded, REGISTRATIONS).value == len(names) + 1
            return dict(_registrations())
        finally:
            ctypes.c_uint64.in_dll(loaded, REGISTRATIONS).value = 0
            del buffer


def test_stub_of_hip_records_registrations(tmp_path: Path) -> None:
    seen = registered(
        tmp_path,
        struct.pack("<IIQQ", 0x48495046, 1, 0, 0),
        b"_Z3mulv",
        b"_Z3addv",
        b"_Z3mulv",
    )
    digest = hashlib.sha256(b"_Z3addv\n_Z3mulv").hexdigest()
    facts = [0x48495046, 1, 2, digest]
    assert seen == {"registered": {str(tmp_path / "host.bin"): {"0x2000": facts}}}
