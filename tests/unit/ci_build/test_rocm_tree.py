"""Reading a ROCm tree: relevant files, their names, and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ci_build.rocm.tree import read_tree
from core.digests import sha256_of
from core.errors import InputError, RequestError
from tests.support.silent import Silent
from tests.support.tiny_elf import TinySymbol, tiny_elf
from wheelkit.rocm_manifest import RocmManifest, dump_manifest, load_manifest


def add(
    folder: Path,
    soname: str,
    *symbols: TinySymbol,
    needed: Sequence[str] = (),
    runpath: str = "",
) -> Path:
    """Write a library as packages install it.

    The file with the full version, and a link named after its soname.
    """
    made = tiny_elf(
        folder / f"{soname}.0.1",
        soname=soname,
        symbols=symbols,
        needed=needed,
        runpath=runpath,
    )
    (folder / soname).symlink_to(made.name)
    return made


def rocm(root: Path, version: str = "7.2.0-43") -> Path:
    (root / ".info").mkdir(parents=True)
    (root / ".info/version").write_text(f"{version}\n")
    hip = (
        TinySymbol("hipFree", version="hip_4.2", defined=True),
        TinySymbol("hipInit", defined=True),
        TinySymbol("_ZNSt6vectorIiSaIiEED1Ev", defined=True),
    )
    add(
        root / "lib",
        "libamdhip64.so.7",
        *hip,
        needed=("libamd_comgr.so.3", "libc.so.6"),
        runpath="$ORIGIN:$ORIGIN/llvm",
    )
    return root


def read(root: Path, version: str = "") -> tuple[RocmManifest, tuple[str, ...]]:
    return read_tree(root, version, progress=Silent())


def paths(manifest: RocmManifest) -> list[str]:
    return [library.path for library in manifest.libraries.values()]


def test_manifest_lists_symbols_versions_needs_and_runpath(tmp_path: Path) -> None:
    manifest, notes = read(rocm(tmp_path))
    (library,) = manifest.libraries.values()
    assert (manifest.rocm_version, manifest.weak, notes) == ("7.2.0", False, ())
    assert (library.soname, library.path) == (
        "libamdhip64.so.7",
        "lib/libamdhip64.so.7",
    )
    assert library.symbols == {"hipFree": ("hip_4.2",), "hipInit": ("",)}
    assert library.needed == ("libamd_comgr.so.3", "libc.so.6")
    assert library.runpath == ("$ORIGIN", "$ORIGIN/llvm")
    data = (tmp_path / "lib/libamdhip64.so.7").read_bytes()
    assert (library.size, library.sha256) == (
        len(data),
        sha256_of(data),
    )
    assert load_manifest(dump_manifest(manifest)) == manifest


def test_manifest_reads_all_folders_and_needed_compiler_libraries(
    tmp_path: Path,
) -> None:
    root = rocm(tmp_path)
    add(root / "lib64", "librccl.so.1")
    add(root / "lib/rocm_sysdeps/lib", "librocm_sysdeps_numa.so.1")
    add(root / "lib/x86_64-linux-gnu", "libhipfft.so.0")
    add(root / "lib", "libamd_comgr.so.3", needed=("libLLVM.so.20",))
    add(root / "lib/llvm/lib", "libLLVM.so.20", needed=("libclang-cpp.so.20",))
    add(root / "lib/llvm/lib", "libclang-cpp.so.20")
    add(root / "lib/llvm/lib", "libomp.so")
    assert paths(read(root)[0]) == [
        "lib/llvm/lib/libLLVM.so.20",
        "lib/libamd_comgr.so.3",
        "lib/libamdhip64.so.7",
        "lib/llvm/lib/libclang-cpp.so.20",
        "lib/x86_64-linux-gnu/libhipfft.so.0",
        "lib64/librccl.so.1",
        "lib/rocm_sysdeps/lib/librocm_sysdeps_numa.so.1",
    ]


def test_manifest_reads_site_packages(tmp_path: Path) -> None:
    rocm(tmp_path / "_rocm_sdk_core")
    add(tmp_path / "_rocm_sdk_libraries_gfx94X_dcgpu/lib", "librocblas.so.5")
    add(tmp_path / "lib", "libother.so.1")
    (tmp_path / "lib").rename(tmp_path / "numpy")
    assert paths(read(tmp_path)[0]) == [
        "_rocm_sdk_core/lib/libamdhip64.so.7",
        "_rocm_sdk_libraries_gfx94X_dcgpu/lib/librocblas.so.5",
    ]


def test_manifest_ignores_libraries_of_other_machines(tmp_path: Path) -> None:
    root = rocm(tmp_path)
    (root / "lib/libscript.so").write_text("INPUT(libamdhip64.so)\n")
    (root / "lib/libgone.so").symlink_to("nowhere.so")
    (root / "lib/libold.so").write_bytes(b"\x7fELF\x01\x01" + bytes(60))
    (root / "lib/libfolder.so").mkdir()
    tiny_elf(root / "lib/libkernels.so", machine=224)
    assert paths(read(root)[0]) == ["lib/libamdhip64.so.7"]


def test_manifest_names_every_damaged_library(tmp_path: Path) -> None:
    root = rocm(tmp_path)
    for name in ("libone.so", "libtwo.so"):
        (root / "lib" / name).write_bytes(
            (root / "lib/libamdhip64.so.7").read_bytes()[:200]
        )
    with pytest.raises(InputError, match=r"lib/libone\.so.*lib/libtwo\.so"):
        read(root)


def test_manifest_needs_one_known_version(tmp_path: Path) -> None:
    root = rocm(tmp_path / "a")
    assert read(root, "7.2.0")[0].rocm_version == "7.2.0"
    with pytest.raises(RequestError, match=r"is for ROCm 7\.2\.0, not 7\.1\.0"):
        read(root, "7.1.0")
    (root / ".info/version").unlink()
    with pytest.raises(RequestError, match=r"--rocm-version"):
        read(root)
    assert read(root, "7.1.0")[0].rocm_version == "7.1.0"
    nameless, (note,) = read_tree(root, unknown="of unknown version", progress=Silent())
    assert nameless.rocm_version == "of unknown version"
    assert "has no version" in note
    rocm(tmp_path / "b/_rocm_sdk_core")
    rocm(tmp_path / "b/_rocm_sdk_libraries", "7.1.1")
    with pytest.raises(RequestError, match=r"7\.1\.1, 7\.2\.0"):
        read(tmp_path / "b")


def test_manifest_refuses_other_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        read(tmp_path / "nowhere", "7.2.0")
    with pytest.raises(InputError, match="has no shared libraries"):
        read(tmp_path, "7.2.0")
