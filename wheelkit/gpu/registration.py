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
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from core.errors import ElfError
from wheelkit.elf import constants
from wheelkit.elf import elf_tables as reader
from wheelkit.elf.elf_tables import ElfImage, Section

_WRAPPER_SIZE = 24
"""Bytes of the argument of __hipRegisterFatBinary: magic, version, bundle address, unused."""
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


@dataclass(kw_only=True, slots=True)
class RegisteredKernels:
    """Kernels that the host code registers for one bundle.

    Attributes:
        address: virtual address of the bundle, as in `BundleLocation`.
        handles: kernel -> address of its handle, with which host code launches it.
        repeated: names that are registered several times.
        unread: number of registrations whose kernel name could not be determined.
    """

    address: int
    handles: dict[str, int] = field(default_factory=dict)
    repeated: set[str] = field(default_factory=set)
    unread: int = 0

    @property
    def kernels(self) -> frozenset[str]:
        """Names of the registered kernels."""
        return frozenset(self.handles)


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
        problems = []
        for magic, version, bundle in host.rows.values():
            known = (magic, version) == (WRAPPER_MAGIC, WRAPPER_VERSION)
            if not known and any((magic, version, bundle)):
                row = f"magic {magic:#x} and version {version}"
                problems.append(f"has a wrapper with {row}, which HIP refuses")
        for address in sorted(set(bundles) - set(host.wrappers.values())):
            problems.append(f"has no wrapper of the bundle at {address:#x}")
        if bundles and (host.init is None or host.init.size < _POINTER):
            problems.append(
                "runs no constructor when it is loaded (DT_INIT_ARRAY), so that no"
                " kernel is registered"
            )
    return problems


class _HostCode:
    """Host code of one open file.

    Attributes:
        init: array of constructors that the loader calls.
        rows: address of a wrapper -> its magic, its version, and the address of its
            bundle.
        wrappers: address of a wrapper that HIP knows -> address of its bundle.
    """

    def __init__(self, image: ElfImage) -> None:
        self._image = image
        self.init = _init_array(image)
        self.rows: dict[int, tuple[int, int, int]] = {}
        segment = image.section(".hipFatBinSegment")
        if segment:
            self._words = image.words(*filter(None, (segment, self.init)))
            end = segment.address + segment.size - _WRAPPER_SIZE
            for place in range(segment.address, end + 1, _WRAPPER_SIZE):
                head = self._words[place]
                bundle = self._words[place + _POINTER]
                self.rows[place] = (head & 0xFFFFFFFF, head >> 32, bundle)
        self.wrappers: dict[int, int] = {}
        for place, (magic, _, bundle) in self.rows.items():
            if magic == WRAPPER_MAGIC:
                self.wrappers[place] = bundle

    def registered(self) -> Iterator[RegisteredKernels]:
        """Yield the kernels of each bundle; see `registered_kernels`."""
        if not self.wrappers or self.init is None:
            return
        stubs = dict(self._stubs())
        seen: set[int] = set()
        end = self.init.address + self.init.size - _POINTER
        places = range(self.init.address, end + 1, _POINTER)
        for start in sorted({self._words[place] for place in places}):
            wrapper = self._wrapper_of(start, stubs)
            if wrapper is not None and wrapper not in seen:
                seen.add(wrapper)
                found = RegisteredKernels(address=self.wrappers[wrapper])
                _read_registrations(self._image, stubs, start, found)
                yield found

    def _stubs(self) -> Iterator[tuple[int, str]]:
        """Yield the address of each registration function's PLT stub, with its name."""
        slots = self._image.slots()
        names = {}
        for index, (_, name) in enumerate(self._image.dynamic_symbols()):
            if name in (_FAT_BINARY, _FUNCTION):
                names[index] = name
        for section in self._image.sections:
            if section.name.startswith(".plt"):
                for match in _STUB.finditer(self._image.contents(section)):
                    slot = slots.get(_target(section.address, match), 0)
                    if slot in names:
                        # With control-flow protection the stub begins with endbr64,
                        # four bytes before the jump.
                        start = section.address + match.start()
                        yield start, names[slot]
                        yield start - 4, names[slot]

    def _wrapper_of(self, start: int, stubs: Mapping[int, str]) -> int | None:
        """Return the address of the wrapper that a constructor passes to HIP.

        None for other constructors.
        """
        code = _code(self._image, start, _GAP)
        for match in _WRAPPER_LOAD.finditer(code):
            wrapper = _target(start, match)
            call = _LOAD_OR_CALL.match(code, match.end() + 4)
            callee = stubs.get(_target(start, call)) if call and call[2] else ""
            if wrapper in self.wrappers and callee == _FAT_BINARY:
                return wrapper
        return None


def _init_array(image: ElfImage) -> Section | None:
    """Return the array of constructors that the dynamic table names."""
    tags = {entry.tag: entry.value for entry in image.dynamic()}
    size = tags.get(constants.DT_INIT_ARRAYSZ, 0)
    array = (constants.SHT_INIT_ARRAY, tags.get(constants.DT_INIT_ARRAY))
    for section in image.sections:
        if (section.type, section.address) == array:
            return section._replace(size=min(section.size, size))
    return None


def _read_registrations(
    image: ElfImage,
    stubs: Mapping[int, str],
    start: int,
    found: RegisteredKernels,
    *,
    follow: bool = True,
) -> None:
    """Read the registrations of a constructor and of the helper that it calls."""
    name = None
    handle = 0
    last = 0
    for match in _LOAD_OR_CALL.finditer(_code(image, start, _LIMIT)):
        if match.start() - last > _GAP:
            return
        target = _target(start, match)
        callee = stubs.get(target)
        if match[1]:
            name = target
        elif match[3]:
            handle = target
        elif callee == _FUNCTION:
            kernel = _text_at(image, name)
            if kernel is None:
                found.unread += 1
            else:
                if kernel in found.handles:
                    found.repeated.add(kernel)
                found.handles[kernel] = handle
            name = None
            handle = 0
            last = match.end()
        elif callee is None and follow and last:
            _read_registrations(image, stubs, target, found, follow=False)
        elif callee == _FAT_BINARY:
            if last:
                return
            last = match.end()


def _text_at(image: ElfImage, address: int | None) -> str | None:
    """Return the text at an address; None if it cannot be read."""
    if address is None:
        return None
    try:
        offset = image.offset_of(address)
        return bytes(image.data[offset : image.data.find(b"\0", offset)]).decode()
    except (ElfError, UnicodeDecodeError):
        return None


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
