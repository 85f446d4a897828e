"""Manifests of ROCm trees and their JSON, including weak manifests."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import FormatError
from core.model import RocmVersion
from core.rocm_layouts import needed_sonames
from tests.support.tiny_elf import TinySymbol, tiny_elf
from wheelkit.elf.snapshot import Elf
from wheelkit.rocm_manifest import (
    RocmLibrary,
    RocmManifest,
    dump_manifest,
    from_needs,
    load_manifest,
    shipped_manifest,
)

HIP = RocmLibrary(
    soname="libamdhip64.so.7",
    path="lib/libamdhip64.so.7",
    symbols={
        "hipFree": ("hip_4.2",),
        "hipInit": ("hip_6.0", "1.0", "hip_4.2"),
        "plain": ("",),
    },
    needed=("libc.so.6",),
    runpath=("$ORIGIN",),
    size=12,
    build_id="ab",
    sha256="c" * 64,
)
MANIFEST = RocmManifest(rocm_version="7.2.0", libraries={HIP.soname: HIP})


def test_manifest_json_round_trip_is_reproducible() -> None:
    text = dump_manifest(MANIFEST)
    assert load_manifest(text) == MANIFEST
    assert dump_manifest(load_manifest(text)) == text


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"schema": 1, "libraries": {"a": 1}}', b"\xff"]
)
def test_load_manifest_refuses_other_json(text: bytes) -> None:
    with pytest.raises(FormatError, match="rocm-manifest"):
        load_manifest(text)


def test_load_manifest_refuses_other_schema() -> None:
    with pytest.raises(FormatError, match="expected 1, got 2"):
        load_manifest(b'{"schema": 2}')


def test_from_needs_gives_weak_manifest(tmp_path: Path) -> None:
    symbols = [
        TinySymbol("hipFree", "libamdhip64.so.7", "hip_4.2"),
        TinySymbol("rocblas_sgemm"),
        TinySymbol("ncclSend"),
        TinySymbol("whatever"),
        TinySymbol("optional", bind="WEAK"),
        TinySymbol("PyList_New"),
        TinySymbol("_ZNSt6localeC1Ev"),
        TinySymbol("memcpy", "libc.so.6", "GLIBC_2.14"),
        TinySymbol("helper"),
    ]
    needed = ("libamdhip64.so.7", "librocblas.so.5", "librccl.so.1", "libc.so.6")
    user = Elf.read(tiny_elf(tmp_path / "user.so", needed=needed, symbols=symbols))
    sibling = Elf.read(
        tiny_elf(tmp_path / "sibling.so", symbols=[TinySymbol("helper", defined=True)])
    )
    manifest = from_needs([user, sibling], "7.2.0", frozenset(needed[:3]))
    assert manifest.weak
    assert {
        soname: dict(library.symbols) for soname, library in manifest.libraries.items()
    } == {
        "libamdhip64.so.7": {"hipFree": ("hip_4.2",), "whatever": ("",)},
        "librocblas.so.5": {"rocblas_sgemm": ("",)},
        "librccl.so.1": {"ncclSend": ("",)},
    }
    assert load_manifest(dump_manifest(manifest)) == manifest


@pytest.mark.parametrize("version", ["7.1.0", "7.2.0", "7.12.0", "7.14.0", "10.1.0"])
def test_published_wheels_need_what_a_build_requires(version: str) -> None:
    rocm = RocmVersion(text=version)
    manifest = shipped_manifest(rocm)
    assert manifest is not None
    assert needed_sonames(rocm) <= manifest.libraries.keys()
