"""Host functions that launch kernels, compared with the kernels that are registered for them.

For each kernel, clang emits a handle and a function: the handle points to the function,
which stores the address of each argument in an array and launches the handle
(CodeGen/CGCUDANV.cpp, emitDeviceStubBodyNew). A kernel that is registered for the
handle of another one runs in its place, with the arguments of the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from core.errors import ElfError
from wheelkit.elf import constants
from wheelkit.elf import elf_tables as reader
from wheelkit.elf.elf_tables import ElfImage
from wheelkit.gpu.registration import RegisteredKernels

_LIMIT = 4096
"""Number of bytes of a stub that are read; the longest of 0.12.0 has 1 kB."""

# x86-64 machine code: lea rax, [rsp+x] or mov rax, rsp; then mov [rsp+y], rax.
_ARGUMENT = re.compile(
    rb"(?:\x48\x8d\x44\x24.|\x48\x8d\x84\x24....|\x48\x89\xe0)\x48\x89(?:\x04\x24|\x44\x24.|\x84\x24....)",
    re.DOTALL,
)
_CONFIGURATION = re.compile(
    rb"\x48\x8d\x7c\x24.\x48\x8d\x74\x24.|\x48\x8d\xbc\x24....\x48\x8d\xb4\x24....",
    re.DOTALL,
)
"""lea rdi, [rsp+x]; lea rsi, [rsp+y]: the arguments of __hipPopCallConfiguration."""
_HANDLE = re.compile(rb"\x48\x8d\x3d(....)", re.DOTALL)
"""lea rdi, [rip+x]: the first argument of hipLaunchKernel."""


def stub_problems(
    path: Path,
    registered: Sequence[RegisteredKernels],
    arguments: Mapping[int, Mapping[str, int]],
) -> Iterator[str]:
    """Yield a clause for each kernel that is registered for the handle of another one.

    Unreadable stubs are skipped.

    Args:
        arguments: address of a bundle -> kernel -> number of its arguments.

    Raises:
        ElfError: the file is not an ELF file, or is damaged.
    """
    with reader.open_image(path) as image:
        handles = chain.from_iterable(b.handles.values() for b in registered)
        functions = image.pointers(set(handles))
        for bundle in registered:
            expected = arguments.get(bundle.address, {})
            for kernel, handle in bundle.handles.items():
                if handle in functions:
                    yield from _problem(
                        image, kernel, handle, functions[handle], expected.get(kernel)
                    )


def name_problems(
    debug: Path, registered: Sequence[RegisteredKernels]
) -> Iterator[str]:
    """Yield a clause for each kernel whose handle has another kernel's symbol name.

    Args:
        debug: file with the library's symbol table; clang names a handle after its
            kernel.

    Raises:
        ElfError: the file is not an ELF file, or is damaged.
    """
    kernels: dict[int, str] = {}
    for bundle in registered:
        kernels.update((handle, kernel) for kernel, handle in bundle.handles.items())
    with reader.open_image(debug) as image:
        for handle, name in image.symbol_names(kernels, constants.STT_OBJECT):
            if name != kernels[handle]:
                yield f"registers kernel {kernels[handle]} for the handle of {name}"


def _problem(
    image: ElfImage, kernel: str, handle: int, address: int, expected: int | None
) -> Iterator[str]:
    try:
        offset = image.offset_of(address)
    except ElfError:
        yield (
            f"registers kernel {kernel} for a handle that points to {address:#x}, where"
            " no function is"
        )
        return
    code = bytes(image.data[offset : offset + _LIMIT])
    end = _CONFIGURATION.search(code)
    launched = _HANDLE.search(code, end.end()) if end else None
    if end is None or launched is None:
        return
    target = (
        address + launched.end() + int.from_bytes(launched[1], "little", signed=True)
    )
    if target != handle:
        yield (
            f"registers kernel {kernel} for the handle {handle:#x}, whose function"
            f" launches {target:#x}"
        )
        return
    count = len(_ARGUMENT.findall(code, 0, end.start()))
    if expected is not None and count != expected:
        yield f"launches kernel {kernel} with {count} arguments, but it has {expected}"
