"""Libraries whose host code registers kernels as clang's constructors do."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import zstandard

from tests.support.made_wheel import GLIBC, library, with_sections
from tests.support.tiny_elf import TinySymbol
from tests.support.whole_code import whole_code
from wheelkit.elf import constants
from wheelkit.elf.elf_tables import ElfImage
from wheelkit.gpu import offload_bundle as bundle
from wheelkit.gpu.bundle_reader import find_bundles

FAT_BINARY = TinySymbol("__hipRegisterFatBinary")
FUNCTION = TinySymbol("__hipRegisterFunction")
_SYMBOLS = (2, 3)
"""Numbers of both symbols, after the null symbol and GLIBC."""
_OPCODE_IN_OFFSET = b"\x48\x8d\x35\x00\x00\x00\xe8"
"""lea rsi, [rip + x], where x contains the opcode of a call."""


def kernel_bundle(kernels: Mapping[str, Sequence[str]]) -> bytes:
    """Return a bundle with kernels by target."""
    parts = [("host-x86_64-unknown-linux--", b"")]
    parts += [
        (f"hipv4-amdgcn-amd-amdhsa--{target}", whole_code(target, names))
        for target, names in kernels.items()
    ]
    packed = bundle.pack(bundle.build(parts))
    return packed + bytes(-len(packed) % 4096)


def unpacked_bundle(data: bytes) -> bytes:
    """Return the decompressed bundle at the start of bytes, without the product's code."""
    if not data.startswith(bundle.PACKED_MAGIC):
        return data
    header = bundle.CompressedHeader.parse(data)
    decoder = zstandard.ZstdDecompressor().decompressobj()
    return decoder.decompress(data[header.header_size : header.file_size])


@dataclass
class HostCode:
    """Registered kernels and the form of their registration.

    Attributes:
        names: for each bundle, the kernels that are registered for it.
        helper: whether constructors call a helper that registers, as clang does for
            many kernels.
        guarded: whether PLT stubs begin with endbr64.
        nameless: number of additional registrations for the first bundle for which no
            name is loaded.
        silent: numbers of the bundles that no constructor registers.
        arguments: kernel -> number of arguments that its function passes; kernels have
            a handle only if they are here.
        handles: kernel -> kernel for whose handle it is registered instead of its own.
    """

    names: Sequence[Sequence[str]]
    helper: bool = False
    guarded: bool = False
    nameless: int = 0
    silent: Sequence[int] = ()
    arguments: Mapping[str, int] = field(default_factory=dict)
    handles: Mapping[str, str] = field(default_factory=dict)
    _text: bytearray = field(default_factory=bytearray)

    def library(self, folder: Path, fatbins: Sequence[bytes]) -> bytes:
        """Return the library; every address in it is a file offset."""
        elf = library(GLIBC, FAT_BINARY, FUNCTION, fatbins=fatbins, spare=2)
        (folder / "bundles.so").write_bytes(elf)
        bundles = [found.address for found in find_bundles(folder / "bundles.so")]
        start = len(elf) + -len(elf) % 4096
        # Eight sections of one page each; the code may need several pages, so it comes
        # last.
        strings, got, plt, wrappers, _, init, handles, self._at = (
            start + 4096 * n for n in range(8)
        )
        self._handles = {name: handles + 8 * n for n, name in enumerate(self.arguments)}
        self._places = {name: strings + at for name, at in self._strings()[1].items()}
        self._stubs = {"fat binary": plt, "function": plt + 16}
        self._text.clear()
        constructors = [
            self._constructor(wrappers + 24 * n, names, self.nameless if n == 0 else 0)
            for n, names in enumerate(self.names)
            if n not in self.silent
        ]
        functions = {
            name: self._function(name, count) for name, count in self.arguments.items()
        }
        rows = [
            struct.pack("<QQq", got + 8 * n, index << 32 | 7, 0)
            for n, index in enumerate(_SYMBOLS)
        ]
        rows += [
            struct.pack("<QQq", wrappers + 24 * n + 8, 8, address)
            for n, address in enumerate(bundles)
        ]
        rows += [
            struct.pack("<QQq", init + 8 * n, 8, address)
            for n, address in enumerate(constructors)
        ]
        rows += [
            struct.pack("<QQq", self._handles[name], 8, address)
            for name, address in functions.items()
        ]
        data = bytearray(
            with_sections(
                elf,
                (".rodata", 1, 2, self._strings()[0]),
                (".got.plt", 1, 3, bytes(16)),
                (".plt", 1, 6, self._plt(plt, got)),
                (
                    ".hipFatBinSegment",
                    1,
                    3,
                    struct.pack("<IIQQ", 0x48495046, 1, 0, 0) * len(bundles),
                ),
                (".rela.dyn", 4, 2, b"".join(rows)),
                (".init_array", 14, 3, bytes(8 * len(constructors))),
                (".data.rel.ro", 1, 3, bytes(8 * max(1, len(functions)))),
                (".text", 1, 6, bytes(self._text)),
            )
        )
        struct.pack_into(
            "<QQ", data, 64 + 32, len(data), len(data)
        )  # the first segment loads the whole file
        table = ElfImage.parse(bytes(data), "library").dynamic()
        spare = next(entry for entry in table if entry.tag == constants.DT_NULL)
        struct.pack_into(
            "<4Q",
            data,
            spare.offset,
            constants.DT_INIT_ARRAY,
            init,
            constants.DT_INIT_ARRAYSZ,
            8 * len(constructors),
        )
        return bytes(data)

    def _strings(self) -> tuple[bytes, dict[str, int]]:
        data = b"\0"
        places = {}
        for name in dict.fromkeys(chain.from_iterable(self.names)):
            places[name] = len(data)
            data += name.encode() + b"\0"
        return data, places

    def _plt(self, plt: int, got: int) -> bytes:
        stubs = b""
        for number in range(2):
            prefix = b"\xf3\x0f\x1e\xfa" if self.guarded else b""
            end = plt + 16 * number + len(prefix) + 6
            stubs += (
                prefix + b"\xff\x25" + struct.pack("<i", got + 8 * number - end)
            ).ljust(16, b"\x90")
        return stubs

    def _constructor(
        self,
        wrapper: int,
        names: Sequence[str],
        nameless: int,
    ) -> int:
        helper = self._at + len(self._text)
        if self.helper:
            self._registrations(names, nameless)
            self._end()
        start = self._at + len(self._text)
        self._text += b"\x50"
        self._refer(b"\x48\x8d\x3d", wrapper)
        self._refer(b"\xe8", self._stubs["fat binary"])
        if self.helper:
            self._refer(b"\xe8", helper)
        else:
            self._registrations(names, nameless)
        self._end()
        return start

    def _registrations(self, names: Sequence[str], nameless: int) -> None:
        for name in names:
            handle = self._handles.get(self.handles.get(name, name))
            if handle is None:
                self._text += _OPCODE_IN_OFFSET
            else:
                self._refer(b"\x48\x8d\x35", handle)
            self._refer(b"\x48\x8d\x0d", self._places[name])
            self._refer(b"\x48\x89\xca\xe8", self._stubs["function"])
        for _ in range(nameless):
            self._refer(b"\xe8", self._stubs["function"])

    def _function(self, name: str, arguments: int) -> int:
        """Add the function that launches a kernel, and return its address."""
        start = self._at + len(self._text)
        for number in range(arguments):
            load = (
                b"\x48\x89\xe0"
                if number == 1
                else bytes((0x48, 0x8D, 0x44, 0x24, 8 * number))
            )
            store = bytes((0x44, 0x24, 8 * number)) if number else b"\x04\x24"
            self._text += load + b"\x48\x89" + store
        self._text += b"\x48\x8d\x7c\x24\x30\x48\x8d\x74\x24\x28"
        self._refer(b"\x48\x8d\x3d", self._handles[name])
        self._text += b"\xc3"
        return start

    def _refer(self, opcode: bytes, target: int) -> None:
        end = self._at + len(self._text) + len(opcode) + 4
        self._text += opcode + struct.pack("<i", target - end)

    def _end(self) -> None:
        self._text += b"\xc3" + b"\xcc" * 600
