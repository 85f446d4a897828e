"""Stub libraries for machines without ROCm.

Right names, symbols and versions, but every function fails.

The loader resolves every symbol of a wheel against the stubs, and XLA reports "no
device" as on a machine without a GPU. HIP functions return hipErrorNoDevice (100), HSA
functions HSA_STATUS_ERROR (0x1000) and all other functions 1, which means success in no
status type of ROCm (hip_runtime_api.h, hsa.h).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from core.atomic import write_whole
from core.errors import GateError
from wheelkit.elf.writer import Export, shared_library
from wheelkit.rocm_manifest import RocmLibrary, RocmManifest

_TEXT = re.compile(
    r".*(?:Error|Status|status)_?(?:Name|String|ToString|to_string|get_string|name|string)"
    r"|ncclGetLastError|hip(?:ApiName|KernelNameRef|KernelNameRefByPtr)|rocprofiler_get_status_(?:name|string)"
)
"""Functions that return a string.

Some functions with such names return a status instead; as a status, the stub's
pointer does not mean success either."""
_VARIABLE = re.compile(r"_ZT[VTISC]|_ZGV")
"""C++ tables and type information (Itanium C++ ABI), which are variables."""
_VARIABLE_SIZE = 4096
_RET = b"\xc3"

REGISTRATIONS = "jax_rocm_registrations"
"""Number of calls that host code makes when loaded, by function in REGISTERING.
in 64 bytes, then for each call 64 bytes with the function's number and its arguments 1
and 3 to 6."""
REGISTERING = ("__hipRegisterFatBinary", "__hipRegisterFunction")
_MOST_CALLS = 1 << 17


def write_stubs(manifest: RocmManifest, folder: Path) -> tuple[Path, ...]:
    """Write a stub for every library of a manifest, and return the directories with libraries.

    Args:
        folder: root of the tree of stubs.

    Raises:
        GateError: a path in the manifest escapes the tree.
    """
    folders: dict[Path, None] = {}
    for library in manifest.libraries.values():
        path = PurePosixPath(library.path)
        if path.is_absolute() or ".." in path.parts or path.name != library.soname:
            raise GateError(
                f"The ROCm manifest has an invalid path for {library.soname}:"
                f" {library.path}.",
                hint="Build the set again with --rocm-manifest.",
            )
        out = folder / path
        out.parent.mkdir(parents=True, exist_ok=True)
        needed = [soname for soname in library.needed if soname in manifest.libraries]
        runpath = [
            entry for entry in library.runpath if entry.startswith("$ORIGIN")
        ] or ["$ORIGIN"]
        stub = shared_library(
            library.soname, _exports(library), needed=needed, runpath=":".join(runpath)
        )
        write_whole(
            out, stub
        )  # a process of another gate may have loaded the same file
        folders[out.parent] = None
    return tuple(folders)


def stub_code(symbol: str) -> bytes:
    """Return x86-64 code that fails like the named function without a GPU."""
    if symbol == "hipGetDeviceCount":
        return b"\xc7\x07\0\0\0\0" + _returning(100)  # mov dword [rdi], 0
    if symbol in REGISTERING:
        return _recording(REGISTERING.index(symbol))
    if _TEXT.fullmatch(symbol):
        return (
            b"\x48\x8d\x05\1\0\0\0" + _RET + b"no device: this is a stub of ROCm\0"
        )  # lea rax, [rip + 1]
    if re.match(r"_*hip[A-Z_]", symbol):
        return _returning(100)
    return _returning(0x1000 if symbol.startswith("hsa_") else 1)


def _recording(function: int) -> bytes:
    """Return code that records a call and returns the first argument."""
    record = (
        b"\x49\xff\x02"  # inc qword [r10]
        b"\x48\xc1\xe0\x06\x4c\x01\xd0"  # shl rax, 6; add rax, r10
        b"\xc7\x40\x40"
        + struct.pack("<I", function)  # mov dword [rax + 64], function
        # Mov [rax + 72], rdi; [rax + 80], rdx; [rax + 88], rcx.
        + b"\x48\x89\x78\x48\x48\x89\x50\x50\x48\x89\x48\x58"
        + b"\x4c\x89\x40\x60\x4c\x89\x48\x68"  # mov [rax + 96], r8; [rax + 104], r9
    )
    return (
        b"\x4c\x8d\x15\0\0\0\0\x49\x8b\x02"  # lea r10, [rip + table]; mov rax, [r10]
        b"\x48\x3d"
        + struct.pack("<I", _MOST_CALLS)
        + b"\x73"
        + bytes([len(record)])  # cmp rax, most; jae end
        + record
        + b"\x48\x89\xf8"
        + _RET  # end: mov rax, rdi
    )


def _returning(status: int) -> bytes:
    return b"\xb8" + struct.pack("<I", status) + _RET  # mov eax, status


def _exports(library: RocmLibrary) -> Iterator[Export]:
    for name, versions in sorted(library.symbols.items()):
        for position, version in enumerate(versions):
            variable = _VARIABLE.match(name) is not None
            yield Export(
                name=name,
                version=version,
                default=position == 0,
                code=b"" if variable else stub_code(name),
                data=_VARIABLE_SIZE if variable else 0,
                place=_VARIABLE_SIZE if name in REGISTERING else 0,
                reference=3 if name in REGISTERING else -1,
            )
    if not library.symbols.keys().isdisjoint(REGISTERING):
        yield Export(
            name=REGISTRATIONS, data=64 * (_MOST_CALLS + 1), place=_VARIABLE_SIZE
        )
