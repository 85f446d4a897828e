"""Generated valid wheels, which tests change in one field before writing them."""

from __future__ import annotations

import csv
import functools
import io
import itertools
import struct
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wheel.wheelfile import WheelFile

from core.model import GfxTarget
from tests.support.tiny_elf import TinySymbol, tiny_elf
from tests.support.whole_code import whole_code
from wheelkit.elf import constants
from wheelkit.elf.elf_tables import ElfImage
from wheelkit.gpu import offload_bundle as bundle
from wheelkit.gpu.registration import WRAPPER_MAGIC, WRAPPER_VERSION
from wheelkit.inspect.inspection_model import WheelReport
from wheelkit.inspect.inspector import Expectations, inspect_wheel

GLIBC = TinySymbol("fcntl64", "libc.so.6", "GLIBC_2.28")
"""A symbol whose version requires manylinux_2_28."""
PJRT = TinySymbol("GetPjrtApi", defined=True)
"""The entry point of PJRT plugins."""
MACHS = {
    "gfx906": 0x2F,
    "gfx942": 0x4C,
    "gfx950": 0x4F,
    "gfx1100": 0x41,
    "gfx9-4-generic": 0x5F,
}
"""EF_AMDGPU_MACH values (LLVM, "User Guide for AMDGPU Backend")."""


def code_object(mach: int) -> bytes:
    """Return the header of an AMDGPU code object, followed by zeros."""
    ident = b"\x7fELF\x02\x01\x01\x40\x03" + bytes(7)
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH", 3, 224, 1, 0, 0, 0, mach, 64, 0, 0, 0, 0, 0
    )
    return header.ljust(512, b"\1")


def fat_binary(
    targets: Sequence[str] = ("gfx942", "gfx950"), machs: dict[str, int] | None = None
) -> bytes:
    """Return a compressed bundle with code for each target, padded to a page as the linker does."""
    return _fat_binary(tuple(targets), tuple((machs or {}).items()))


@functools.cache
def _fat_binary(targets: Sequence[str], machs: Sequence[tuple[str, int]]) -> bytes:
    parts = [("host-x86_64-unknown-linux--", b"")]
    parts += [
        (f"hipv4-amdgcn-amd-amdhsa--{t}", whole_code(t, mach=dict(machs).get(t)))
        for t in targets
    ]
    packed = bundle.pack(bundle.build(parts))
    return packed + bytes(-len(packed) % 4096)


def with_sections(elf: bytes, *sections: tuple[str, int, int, bytes]) -> bytes:
    """Append sections (name, type, flags, content) to an ELF file.

    Their addresses are their file offsets.
    """
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    count, own = struct.unpack_from("<HH", elf, 0x3C)
    rows = [bytearray(elf[table + 64 * n : table + 64 * n + 64]) for n in range(count)]
    at, size = struct.unpack_from("<QQ", rows[own], 24)
    names = bytearray(elf[at : at + size])
    body = bytearray(elf)
    for name, kind, flags, content in sections:
        body += bytes(-len(body) % 4096)
        # The strings of a symbol table must be in the next section.
        link, entry = (len(rows) + 1, 24) if kind == 2 else (0, 0)
        at = len(body)
        place = struct.pack(
            "<IIQQQQIIQQ",
            len(names),
            kind,
            flags,
            at,
            at,
            len(content),
            link,
            0,
            8,
            entry,
        )
        rows.append(bytearray(place))
        names += name.encode() + b"\0"
        body += content
    struct.pack_into("<QQ", rows[own], 24, len(body), len(names))
    body += names
    body += bytes(-len(body) % 8)
    struct.pack_into("<Q", body, 0x28, len(body))
    struct.pack_into("<HH", body, 0x3C, len(rows), own)
    return bytes(body + b"".join(rows))


def library(
    *symbols: TinySymbol,
    fatbins: Sequence[bytes] = (),
    entry: Sequence[TinySymbol] = (PJRT,),
    **more: Any,
) -> bytes:
    """Return a library with device code and an entry point.

    The other arguments are those of `tiny_elf`.
    """
    fixed = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in more.items()
    }
    elf = _elf((*(symbols or (GLIBC,)), *entry), **fixed)
    return (
        with_sections(elf, (".hip_fatbin", 1, 2, b"".join(fatbins))) if fatbins else elf
    )


@functools.cache
def _elf(symbols: Sequence[TinySymbol], **more: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return tiny_elf(Path(folder) / "lib.so", symbols=symbols, **more).read_bytes()


def hip_library(*symbols: TinySymbol, fatbins: Sequence[bytes], **more: Any) -> bytes:
    """Return a library with a wrapper for each bundle and a constructor run on loading."""
    data = library(*symbols, fatbins=fatbins, spare=2, **more)
    image = ElfImage.parse(data, "library")
    section = image.section(".hip_fatbin")
    assert section is not None
    starts = itertools.accumulate(map(len, fatbins[:-1]), initial=section.address)
    wrappers = b"".join(
        struct.pack("<IIQQ", WRAPPER_MAGIC, WRAPPER_VERSION, start, 0)
        for start in starts
    )
    out = bytearray(
        with_sections(
            data,
            (".hipFatBinSegment", 1, 3, wrappers),
            (".init_array", 14, 3, bytes(8)),
        )
    )
    init = ElfImage.parse(bytes(out), "library").section(".init_array")
    spare = next(entry for entry in image.dynamic() if entry.tag == constants.DT_NULL)
    assert init is not None
    struct.pack_into(
        "<4Q",
        out,
        spare.offset,
        constants.DT_INIT_ARRAY,
        init.address,
        constants.DT_INIT_ARRAYSZ,
        8,
    )
    return bytes(out)


@dataclass
class MadeWheel:
    """Content of a wheel; tests change fields, then call `write`.

    Attributes:
        files: path -> content, outside dist-info.
        metadata, wheel: header lines.
        info: further files of dist-info.
        modes: path -> permission bits other than 0644.
        record: function that changes the rows (path, hash, size) of RECORD before they
            are written.
        stored: paths that are not compressed.
        archive: function that changes the bytes of the finished archive.
    """

    project: str = "jax_rocm7_pjrt"
    version: str = "1.2.3"
    python: str = "py3"
    abi: str = "none"
    platform: str = "manylinux_2_28_x86_64"
    files: dict[str, bytes] = field(default_factory=dict)
    metadata: list[str] = field(default_factory=list)
    wheel: list[str] = field(default_factory=list)
    info: dict[str, bytes] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    record: Callable[[list[list[str]]], list[list[str]]] = list
    stored: tuple[str, ...] = ()
    archive: Callable[[bytes], bytes] = bytes

    @property
    def filename(self) -> str:
        """File name of the wheel according to PEP 427."""
        return f"{self.project}-{self.version}-{self.python}-{self.abi}-{self.platform}.whl"

    @property
    def dist_info(self) -> str:
        """Name of the dist-info folder."""
        return f"{self.project}-{self.version}.dist-info"

    def replace(self, field_name: str, *values: str) -> None:
        """Set a METADATA or WHEEL field to these values; without values, remove it."""
        for lines in (self.metadata, self.wheel):
            found = [line for line in lines if line.startswith(f"{field_name}:")]
            if found or (
                lines is self.metadata
                and not any(w.startswith(f"{field_name}:") for w in self.wheel)
            ):
                lines[:] = [line for line in lines if line not in found] + [
                    f"{field_name}: {v}" for v in values
                ]

    def write(self, folder: Path) -> Path:
        """Write the wheel."""
        info = {
            "METADATA": "\n".join([*self.metadata, "", ""]).encode(),
            "WHEEL": "\n".join([*self.wheel, ""]).encode(),
            **self.info,
        }
        files = {
            **self.files,
            **{f"{self.dist_info}/{name}": data for name, data in info.items()},
        }
        path = folder / self.filename
        with _RecordedWheel(path, self.record) as wheel:
            for name, data in files.items():
                compressed = name not in self.stored
                wheel.add(name, data, self.modes.get(name, 0o644), compressed)
        path.write_bytes(self.archive(path.read_bytes()))
        return path


class _RecordedWheel(WheelFile):  # type: ignore[misc] # it has no types
    """A new wheel, whose RECORD a function changes before it is written."""

    def __init__(
        self, path: Path, change: Callable[[list[list[str]]], list[list[str]]]
    ) -> None:
        super().__init__(path, "w")
        self._change = change

    def add(
        self,
        name: str,
        data: bytes,
        mode: int,
        compressed: bool,
    ) -> None:
        """Add a file, whose time is that of every other one."""
        entry = zipfile.ZipInfo(name)
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_STORED
        if compressed:
            entry.compress_type = zipfile.ZIP_DEFLATED
        super().writestr(entry, data, entry.compress_type)

    def writestr(
        self,
        entry: Any,
        data: Any,
        compress_type: int | None = None,
    ) -> None:
        """Write RECORD, the only file that WheelFile itself adds."""
        rows = self._change(list(csv.reader(io.StringIO(data))))
        text = "".join(",".join(row) + "\n" for row in rows)
        self.add(self.record_path, text.encode("utf-8", "surrogateescape"), 0o644, True)


def zero_bytes(path: Path, member: str) -> None:
    """Overwrite three bytes of a member of a wheel with zeros, as a bad disk does."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(member)
    data = bytearray(path.read_bytes())
    start = info.header_offset + 30 + len(member)
    at = next(
        at
        for at in range(start + 8, start + info.compress_size)
        if all(data[at : at + 3])
    )
    data[at : at + 3] = bytes(3)
    path.write_bytes(data)


def clean_pjrt() -> MadeWheel:
    """Return a wheel without problems like jax-rocm7-pjrt, with code for gfx942 and gfx950."""
    made = MadeWheel()
    made.files = {
        "jax_plugins/xla_rocm7/__init__.py": b"def initialize():\n    pass\n",
        "jax_plugins/xla_rocm7/version.py": (
            b"_version = '1.2.3'\n_release_version: str = '1.2.3'\n"
        ),
        "jax_plugins/xla_rocm7/plugin.so": library(
            fatbins=[fatbin := fat_binary(), fatbin]
        ),
    }
    made.info = {
        "entry_points.txt": b"[jax_plugins]\nxla_rocm7 = jax_plugins.xla_rocm7\n",
        "licenses/LICENSE.txt": b"Apache License\n",
    }
    made.metadata = [
        "Metadata-Version: 2.4",
        "Name: jax-rocm7-pjrt",
        "Version: 1.2.3",
        "Summary: JAX PJRT plugin (ROCm:7.2.0)",
        "License-Expression: Apache-2.0",
        "License-File: LICENSE.txt",
        "Requires-Python: >=3.11",
        "Requires-Dist: jaxlib<=1.2.3,>=1.2.2",
    ]
    made.wheel = [
        "Wheel-Version: 1.0",
        "Generator: made up",
        "Root-Is-Purelib: false",
        "Tag: py3-none-manylinux_2_28_x86_64",
    ]
    return made


def clean_plugin() -> MadeWheel:
    """Return a wheel without problems like jax-rocm7-plugin for CPython 3.12."""
    made = clean_pjrt()
    made.project = "jax_rocm7_plugin"
    made.python = "cp312"
    made.abi = "cp312"
    module = library(
        GLIBC, TinySymbol("PyInit__linalg", defined=True), fatbins=[fat_binary()]
    )
    made.files = {
        "jax_rocm7_plugin/__init__.py": b"",
        "jax_rocm7_plugin/version.py": b"_release_version: str = '1.2.3'\n",
        "jax_rocm7_plugin/_linalg.so": module,
    }
    del made.info["entry_points.txt"]
    made.replace("Name", "jax-rocm7-plugin")
    made.replace("Requires-Dist", "jaxlib<=1.2.3,>=1.2.2", "jax-rocm7-pjrt==1.2.3")
    made.replace("Tag", "cp312-cp312-manylinux_2_28_x86_64")
    return made


LIB = "jax_plugins/xla_rocm7/plugin.so"
"""The library of `clean_pjrt`."""
MODULE = "jax_rocm7_plugin/_linalg.so"
"""The module of `clean_plugin`."""
PROMISED = (GfxTarget(processor="gfx942"), GfxTarget(processor="gfx950"))


def linked(made: MadeWheel, *symbols: TinySymbol, **more: Any) -> None:
    """Replace the library of a pjrt wheel; the arguments are those of `tiny_elf`."""
    made.files[LIB] = library(GLIBC, *symbols, fatbins=[fat_binary()], **more)


def coded(made: MadeWheel, *fatbins: bytes) -> None:
    """Replace the device code in the library of a pjrt wheel."""
    made.files[LIB] = library(fatbins=fatbins)


def look(made: MadeWheel, folder: Path, **more: Any) -> WheelReport:
    """Inspect a generated wheel like the driver, with its promised targets."""
    known: dict[str, Any] = {"targets": PROMISED}
    folder.mkdir(exist_ok=True)
    return inspect_wheel(
        made.write(folder), Expectations(**{**known, **more}), scratch=folder
    )


def codes(report: WheelReport) -> list[str]:
    """Return the codes of the findings, without duplicates."""
    return sorted({finding.code for finding in report.findings})
