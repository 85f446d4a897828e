"""Stubs of a real ROCm's libraries, loaded by glibc, and the results of their functions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ci_build.rocm.tree import read_tree
from promotion.gates.common.stubs import REGISTERING, REGISTRATIONS, write_stubs
from tests.support.real_rocm import VERSION, unpack_real_rocm
from tests.support.silent import Silent
from wheelkit.elf.snapshot import Elf
from wheelkit.rocm_manifest import RocmLibrary, RocmManifest

LOAD = """
import ctypes, json, sys
for path in json.loads(sys.argv[1]):
    ctypes.CDLL(path)
print("loaded")
"""
CALL = """
import ctypes, sys
hip = ctypes.CDLL(sys.argv[1])
count = ctypes.c_int(7)
print(hip.hipInit(0), hip.hipGetDeviceCount(ctypes.byref(count)), count.value)
hip.hipGetErrorString.restype = ctypes.c_char_p
print(hip.hipGetErrorString(100).decode())
hip.__getattr__("__hipRegisterFatBinary").restype = ctypes.c_void_p
print(hip.__getattr__("__hipRegisterFatBinary")(None) is not None)
print((ctypes.c_char * 4096).in_dll(hip, "_ZTV6Device").raw == bytes(4096))
"""


def run(code: str, *words: str, env: dict[str, str] | None = None) -> str:
    argv = [sys.executable, "-I", "-c", code, *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={"LD_BIND_NOW": "1", **(env or {})})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.network
def test_stubs_replace_a_whole_rocm(tmp_path: Path) -> None:
    manifest, _ = read_tree(unpack_real_rocm(tmp_path / "debian"), VERSION, progress=Silent())
    folders = write_stubs(manifest, tmp_path / "stubs")
    paths = [tmp_path / "stubs" / library.path for library in manifest.libraries.values()]
    assert len(paths) >= 7
    for path, library in zip(paths, manifest.libraries.values(), strict=True):
        elf = Elf.read(path)
        own = set() if library.symbols.keys().isdisjoint(REGISTERING) else {REGISTRATIONS}
        assert elf.offered.keys() - library.symbols.keys() == own
        offered = {name: elf.offered[name] for name in library.symbols}
        assert (elf.soname, offered) == (library.soname, library.symbols)
    env = {"LD_LIBRARY_PATH": ":".join(map(str, folders))}
    assert run(LOAD, json.dumps(list(map(str, paths))), env=env) == "loaded\n"


def test_stub_functions_fail_as_without_gpu(tmp_path: Path) -> None:
    names = ("hipInit", "hipGetDeviceCount", "hipGetErrorString", "__hipRegisterFatBinary", "_ZTV6Device")
    hip = RocmLibrary(
        soname="libamdhip64.so.7", path="lib/libamdhip64.so.7", symbols=dict.fromkeys(names, ("hip_4.2", "hip_4.0"))
    )
    write_stubs(RocmManifest(rocm_version="7.2.0", libraries={hip.soname: hip}), tmp_path)
    told = run(CALL, str(tmp_path / hip.path)).splitlines()
    assert told == ["100 100 0", "no device: this is a stub of ROCm", "True", "True"]
