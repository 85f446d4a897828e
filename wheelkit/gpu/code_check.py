"""Check of one code object.

Its ABI, its target, and a descriptor of each kernel that leads to machine code.

HIP loads a code object when the first of its kernels is launched, so its defects appear
only on a GPU. `code_object_problem` compares the processor and its features. Source:
LLVM, "User Guide for AMDGPU Backend" (code object V3 to V6, kernel descriptor,
metadata).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from isal import isal_zlib

from core.errors import ElfError, RequestError
from core.frozen import frozen
from core.model import GfxTarget
from wheelkit.elf import constants
from wheelkit.elf.elf_tables import ElfImage, RawSymbol
from wheelkit.gpu.code_object import KERNEL_SUFFIX, argument_counts, read_metadata

_ABI_VERSIONS = range(1, 5)
"""EI_ABIVERSION of code object V3 to V6; ROCm loads no other version."""
_TARGET_ID = re.compile(r"amdgcn-amd-amdhsa-(?:unknown)?-(gfx.+)")
_DESCRIPTOR_SIZE = 64
_ENTRY_AT = 16
"""Offset in a descriptor of the distance from it to the kernel's first instruction."""
_ENTRY_ALIGNMENT = 256


class CodeProblem(NamedTuple):
    """A defect of a code object: the code of its finding, and a verb phrase without a full stop."""

    code: str
    text: str


@frozen
class CodeCheck:
    """Kernels and defects of one code object.

    Attributes:
        kernels: names of the kernels with a descriptor.
        problems: defects; at most one for each kernel.
        text: CRC-32 of the machine code; 0 without code.
        arguments: kernel -> number of arguments in its source.
    """

    kernels: tuple[str, ...] = ()
    text: int = field(default=0, compare=False)
    problems: tuple[CodeProblem, ...] = ()
    arguments: Mapping[str, int] = field(
        default_factory=dict, compare=False, repr=False
    )


def check_code(data: bytes, target: GfxTarget) -> CodeCheck:
    """Check a code object for a target.

    Defects of the header that `code_object_problem` reports are left out.
    """
    try:
        image = ElfImage.parse(data, "the code object")
        metadata = read_metadata(image)
        arguments = argument_counts(metadata, image.label)
        symbols = {
            name: symbol for symbol, name in image.dynamic_symbols() if symbol.section
        }
    except ElfError as error:
        text = f"cannot be read: {error.message.removesuffix('.')}"
        return CodeCheck(problems=(CodeProblem("code-object-damaged", text),))

    problems: list[CodeProblem] = []
    if data[8] not in _ABI_VERSIONS:
        problems.append(
            CodeProblem(
                "code-object-damaged",
                f"has code object ABI {data[8]}, which ROCm does not load",
            )
        )
    # Assembly sources may leave out the target.
    named = metadata.get("amdhsa.target")
    if named is not None and _target(named) != target:
        problems.append(CodeProblem("code-object-wrong", f"has metadata for {named}"))
    kernels = [
        name.removesuffix(KERNEL_SUFFIX)
        for name in symbols
        if name.endswith(KERNEL_SUFFIX)
    ]
    problems += _kernel_problems(image, symbols, kernels)
    code = image.section(".text")
    return CodeCheck(
        kernels=tuple(kernels),
        text=isal_zlib.crc32(image.contents(code)) if code and code.size else 0,
        problems=tuple(problems),
        arguments=arguments,
    )


def _target(text: object) -> GfxTarget | None:
    """Return the target that metadata name; None if it is damaged."""
    match = _TARGET_ID.fullmatch(text) if isinstance(text, str) else None
    try:
        return GfxTarget.parse(match[1]) if match else None
    except RequestError:
        return None


def _kernel_problems(
    image: ElfImage, symbols: Mapping[str, RawSymbol], kernels: Sequence[str]
) -> Iterator[CodeProblem]:
    for kernel in kernels:
        text = _descriptor_problem(image, symbols, kernel)
        if text:
            yield CodeProblem(
                "kernel-descriptor-wrong", f"has kernel {kernel}, which {text}"
            )


def _descriptor_problem(
    image: ElfImage, symbols: Mapping[str, RawSymbol], kernel: str
) -> str:
    """Return a verb phrase about a descriptor that does not lead to machine code.

    Empty without a defect.
    """
    address = symbols[kernel + KERNEL_SUFFIX].value
    try:
        descriptor = image.read(image.offset_of(address), _DESCRIPTOR_SIZE)
    except ElfError:
        return "has no descriptor at its symbol"
    entry = address + int.from_bytes(
        descriptor[_ENTRY_AT : _ENTRY_AT + 8], "little", signed=True
    )

    # Compilers leave out the body of a kernel that the target never runs.
    function = symbols.get(kernel)
    if function is not None and function.value == entry and not function.size:
        return ""
    in_code = any(entry in addresses for addresses in _machine_code(image))
    if in_code and entry % _ENTRY_ALIGNMENT == 0:
        return ""
    return f"begins at {entry:#x}, where no machine code begins"


def _machine_code(image: ElfImage) -> Iterator[range]:
    for segment in image.segments:
        if segment.type == constants.PT_LOAD and segment.flags & constants.PF_X:
            yield range(segment.address, segment.address + segment.memory_size)
