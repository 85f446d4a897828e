"""Unpacking of the toolchain of the package index, and ROCms that cannot compile kernels."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from core.errors import InputError, MachineError
from core.process import HostRunner
from core.report import NoProgress
from kernels import toolchains
from kernels.build_context import context_in
from kernels.rocmchain import with_rocm
from kernels.tests.unit.test_kernel_graph import TOOLCHAIN
from tests.support.tiny_wheel import contents, make_wheel

NAME = "ziglang-0.17.0-py3-none-manylinux_2_12_x86_64.whl"
INFO = "ziglang-0.17.0.dist-info"
INCLUDE = "ziglang/lib/libc/include"
KEPT = [
    "ziglang/zig",
    "ziglang/lib/std/os/windows.zig",
    "ziglang/lib/include/emmintrin.h",
    "ziglang/lib/libcxx/include/vector",
    "ziglang/lib/libc/glibc/abilists",
    "ziglang/lib/libc/musl/src/math/pow.c",
    f"{INCLUDE}/generic-glibc/stdio.h",
    f"{INCLUDE}/x86-linux-gnu/bits/wordsize.h",
    f"{INCLUDE}/x86-linux-any/asm/unistd.h",
    f"{INCLUDE}/x86_64-linux-muslx32/bits/alltypes.h",
    f"{INCLUDE}/any-linux-any/linux/types.h",
]
OTHERS = [
    "ziglang/lib/libc/mingw/crt/crtexe.c",
    "ziglang/lib/libc/wasi/libc-top-half/crt1.c",
    f"{INCLUDE}/any-windows-any/windows.h",
    f"{INCLUDE}/generic-freebsd/stdio.h",
    f"{INCLUDE}/x86_64-netbsd-none/machine/asm.h",
    f"{INCLUDE}/aarch64-linux-gnu/bits/wordsize.h",
]
FILES = {name: name.encode() for name in (*KEPT, *OTHERS)}


def test_unpack_omits_files_for_other_systems_and_processors(tmp_path: Path) -> None:
    root = tmp_path / "root"
    toolchains._unpack(
        make_wheel(
            tmp_path,
            FILES,
            name=NAME,
        ),
        root,
    )
    assert sorted(
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()
    ) == sorted(KEPT)


def test_unpack_refuses_damage_in_omitted_file(tmp_path: Path) -> None:
    members = contents(FILES, info=INFO) | {OTHERS[0]: b"damaged"}
    with pytest.raises(InputError, match=f"is damaged: {OTHERS[0]}"):
        toolchains._unpack(
            make_wheel(
                tmp_path,
                name=NAME,
                members=members,
            ),
            tmp_path / "root",
        )


def test_other_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        os, "uname", lambda: SimpleNamespace(machine="aarch64", sysname="Linux")
    )
    with pytest.raises(MachineError, match="x86-64 Linux only"):
        toolchains.obtain_pypi(context_in(tmp_path, HostRunner({}), NoProgress()))


def test_rocm_without_compiler_is_refused(tmp_path: Path) -> None:
    def refused(said: str) -> None:
        with pytest.raises(InputError, match=said):
            with_rocm(TOOLCHAIN, tmp_path)

    refused("has no compiler")
    (tmp_path / "llvm/bin").mkdir(parents=True)
    (tmp_path / "llvm/bin/clang++").write_text("")
    refused("has no device bitcode")
    (tmp_path / "amdgcn/bitcode").mkdir(parents=True)
    (tmp_path / "amdgcn/bitcode/ocml.bc").write_text("")
    (tmp_path / "llvm/lib/clang/19/include").mkdir(parents=True)
    refused("is clang 19; the kernels need 20 or later")
    (tmp_path / "llvm/lib/clang/22/include").mkdir(parents=True)
    assert with_rocm(TOOLCHAIN, tmp_path).places["rocm"] == str(tmp_path)
