"""Bundles and kernels that host code registers with HIP, read from its module constructors.

For each translation unit with device code, clang (CodeGen/CGCUDANV.cpp) emits a module
constructor. The constructor passes the bundle's wrapper to `__hipRegisterFatBinary` and
then, directly or through a helper, calls `__hipRegisterFunction` with the mangled name
of each kernel. At a launch, HIP looks up the name in the code object for the GPU's
target. A registered kernel that this code object lacks therefore fails only when it is
first launched.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from core.errors import ElfError
from wheelkit.elf import constants
from wheelkit.elf import elf_tables as reader
from wheelkit.elf.elf_tables import ElfImage, Section

_WRAPPER = struct.Struct(
    "<IIQQ"
)  # argument of __hipRegisterFatBinary: magic, version, bundle address, unused
WRAPPER_MAGIC, WRAPPER_VERSION = 0x48495046, 1
"""Values with which HIP accepts a wrapper; the magic is "HIPF"."""
_FAT_BINARY = "__hipRegisterFatBinary"
_FUNCTION = "__hipRegisterFunction"

_POINTER = 8
_GAP = 256
"""A function ends after this many bytes without a relevant call.

One registration has at most 60 bytes.
"""
_LIMIT = 16 << 20
"""Maximum number of bytes scanned per function; the longest function of 0.10.2 has 74 kB."""

# x86-64 machine code: lea rdi, [rip+x]; lea rcx, rdx or rsi, [rip+x]; call x; jmp
# [rip+x], the jump of a PLT stub. The four bytes of x are a lookahead, so that a false
# match does not hide a real instruction that begins inside its x.
_WRAPPER_LOAD = re.compile(rb"\x48\x8d\x3d(?=(....))", re.DOTALL)
_LOAD_OR_CALL = re.compile(
    rb"\x48\x8d[\x0d\x15](?=(....))|\xe8(?=(....))|\x48\x8d\x35(?=(....))", re.DOTALL
)
_STUB = re.compile(rb"\xff\x25(?=(....))", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisteredKernels:
    """Kernels that the host code registers for one bundle.

    Attributes:
        address: virtual address of the bundle, as in `BundleLocation`.
        kernels: names of the registered kernels.
        unread: number of registrations whose kernel name could not be determined.
        handles: kernel -> address of its handle, with which host code launches it.
        repeated: names that are registered several times.
    """

    address: int
    kernels: frozenset[str]
    unread: int
    handles: Mapping[str, int]
    repeated: frozenset[str]


def bundle_pointers(path: Path) -> tuple[int, ...]:
    """Return the bundle addresses in the wrappers of section .hipFatBinSegment.

    Raises:
        ElfError: the file is not an ELF file, or is damaged.
    """
    with reader.open_image(path) as image:
        return tuple(_HostCode(image).wrappers.values())


def registered_kernels(path: Path) -> tuple[RegisteredKernels, ...]:
    """Return the kernels of each bundle that a constructor registers.

    Empty for a file without device code.

    Raises:
        ElfError: the file is not an ELF file, or is damaged.
    """
    with reader.open_image(path) as image:
        return tuple(_HostCode(image).registered())


def registration_problems(path: Path, bundles: Collection[int]) -> list[str]:
    """Return a clause for each reason why HIP misses device code when a file is loaded.

    Args:
        bundles: addresses of the bundles in the file.

    Raises:
        ElfError: the file is not an ELF file, or is damaged.
    """
    with reader.open_image(path) as image:
        host = _HostCode(image)
        segment = image.section(".hipFatBinSegment")
        table = image.contents(segment) if segment else b""
        rows = [
            _WRAPPER.unpack_from(table, at)
            for at in range(0, len(table) - _WRAPPER.size + 1, _WRAPPER.size)
        ]
        wrong = [
            row
            for row in rows
            if row[:2] != (WRAPPER_MAGIC, WRAPPER_VERSION) and any(row)
        ]
        problems = [
            f"has a wrapper with magic {row[0]:#x} and version {row[1]}, which HIP"
            " refuses"
            for row in wrong
        ]
        lost = sorted(set(bundles) - set(host.wrappers.values()))
        problems += [
            f"has no wrapper of the bundle at {address:#x}" for address in lost
        ]
        if bundles and not host.runs_constructors:
            problems.append(
                "runs no constructor when it is loaded (DT_INIT_ARRAY), so that no"
                " kernel is registered"
            )
    return problems


class _HostCode:
    """Host code of one open file.

    Attributes:
        wrappers: address of a wrapper -> address of its bundle.
    """

    def __init__(self, image: ElfImage) -> None:
        self._image = image
        self._segment = image.section(".hipFatBinSegment")
        self._init = _init_array(image)
        self._pointers: Mapping[int, int] = {}
        self.wrappers: Mapping[int, int] = {}
        if self._segment is not None:
            places = set[int]()
            for section in filter(None, (self._segment, self._init)):
                end = section.address + section.size
                places.update(range(section.address, end, _POINTER))
            self._pointers = image.pointers(places)
            self.wrappers = dict(self._wrappers(self._segment))

    @property
    def runs_constructors(self) -> bool:
        """True if the loader calls functions of the file."""
        return self._init is not None and self._init.size >= _POINTER

    def registered(self) -> Iterator[RegisteredKernels]:
        """Yield the kernels of each bundle; see `registered_kernels`."""
        if not self.wrappers:
            return
        stubs = dict(self._stubs())
        seen: set[int] = set()
        for start in self._constructors():
            wrapper = self._wrapper_of(start, stubs)
            if wrapper is not None and wrapper not in seen:
                seen.add(wrapper)
                reading = _ConstructorScan(self._image, stubs)
                reading.function(start)
                yield RegisteredKernels(
                    address=self.wrappers[wrapper],
                    kernels=frozenset(reading.handles),
                    unread=reading.unread,
                    handles=reading.handles,
                    repeated=frozenset(reading.repeated),
                )

    def _pointer(self, section: Section, address: int) -> int:
        """Return the pointer at an address.

        Its relocated value, or the stored value if it has no relocation.
        """
        stored = self._image.read(section.offset + address - section.address, 8)
        return self._pointers.get(address, int.from_bytes(stored, "little"))

    def _wrappers(self, segment: Section) -> Iterator[tuple[int, int]]:
        table = self._image.contents(segment)
        for place in range(0, len(table) - _WRAPPER.size + 1, _WRAPPER.size):
            if _WRAPPER.unpack_from(table, place)[0] == WRAPPER_MAGIC:
                yield (
                    segment.address + place,
                    self._pointer(segment, segment.address + place + 8),
                )

    def _constructors(self) -> list[int]:
        """Return the addresses of the functions in .init_array."""
        init = self._init
        if init is None:
            return []
        places = range(
            init.address, init.address + init.size // _POINTER * _POINTER, _POINTER
        )
        return sorted({self._pointer(init, place) for place in places})

    def _stubs(self) -> Iterator[tuple[int, str]]:
        """Yield the address of each registration function's PLT stub, with its name."""
        slots = self._image.slots()
        symbols = enumerate(self._image.dynamic_symbols())
        names = {
            index: name
            for index, (_, name) in symbols
            if name in (_FAT_BINARY, _FUNCTION)
        }
        for section in self._image.sections:
            if section.name.startswith(".plt"):
                for match in _STUB.finditer(self._image.contents(section)):
                    name = names.get(slots.get(_target(section.address, match), 0))
                    if name:
                        # With control-flow protection the stub begins with endbr64,
                        # four bytes before the jump.
                        yield section.address + match.start(), name
                        yield section.address + match.start() - 4, name

    def _wrapper_of(self, start: int, stubs: Mapping[int, str]) -> int | None:
        """Return the address of the wrapper that a constructor passes to HIP.

        None for other constructors.
        """
        code = _code(self._image, start, _GAP)
        for match in _WRAPPER_LOAD.finditer(code):
            wrapper = _target(start, match)
            call = _LOAD_OR_CALL.match(code, match.end() + 4)
            if (
                wrapper in self.wrappers
                and call
                and call[2]
                and stubs.get(_target(start, call)) == _FAT_BINARY
            ):
                return wrapper
        return None


def _init_array(image: ElfImage) -> Section | None:
    """Return the array of constructors that the dynamic table names."""
    tags = {entry.tag: entry.value for entry in image.dynamic()}
    address = tags.get(constants.DT_INIT_ARRAY)
    arrays = (
        section
        for section in image.sections
        if section.type == constants.SHT_INIT_ARRAY
    )
    section = next((section for section in arrays if section.address == address), None)
    return (
        None
        if section is None
        else section._replace(
            size=min(section.size, tags.get(constants.DT_INIT_ARRAYSZ, 0))
        )
    )


class _ConstructorScan:
    """Scan of one constructor and of the helper that it calls."""

    def __init__(self, image: ElfImage, stubs: Mapping[int, str]) -> None:
        self._image = image
        self._stubs = stubs
        self.handles: dict[str, int] = {}
        self.repeated: set[str] = set()
        self.unread = 0

    def function(self, start: int, *, follow: bool = True) -> None:
        """Read the registrations of a constructor and of the helper that it calls."""
        code = _code(self._image, start, _LIMIT)
        name = None
        handle = 0
        last = 0
        for match in _LOAD_OR_CALL.finditer(code):
            if match.start() - last > _GAP:
                return
            target = _target(start, match)
            if match[1]:
                name = target
                continue
            if match[3]:
                handle = target
                continue
            callee = self._stubs.get(target)
            if callee == _FUNCTION:
                self._register(name, handle)
                name = None
                handle = 0
                last = match.end()
            elif callee is None and follow and last:
                self.function(target, follow=False)
            elif callee == _FAT_BINARY:
                if last:
                    return
                last = match.end()

    def _register(self, address: int | None, handle: int) -> None:
        try:
            if address is None:
                raise ElfError("No name was loaded.")
            offset = self._image.offset_of(address)
            end = self._image.data.find(b"\0", offset)
            kernel = bytes(self._image.data[offset:end]).decode()
        except (ElfError, UnicodeDecodeError):
            self.unread += 1
            return
        if kernel in self.handles:
            self.repeated.add(kernel)
        self.handles[kernel] = handle


def _code(image: ElfImage, address: int, limit: int) -> bytes:
    """Return up to `limit` bytes of code at an address.

    Empty if no segment contains the address.
    """
    try:
        offset = image.offset_of(address)
    except ElfError:
        return b""
    return bytes(image.data[offset : offset + limit])


def _target(base: int, match: re.Match[bytes]) -> int:
    """Return the address that a matched instruction refers to.

    Its end plus the signed displacement after the match.
    """
    return (
        base
        + match.end()
        + 4
        + int.from_bytes(match[match.lastindex or 1], "little", signed=True)
    )
