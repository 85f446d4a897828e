"""Compiled programs: AMDGPU code objects, their kernels, and their use of the matrix cores.

Sources: LLVM, "User Guide for AMDGPU Backend": ELF code object, code object V3 and
later metadata; the instruction encodings of LLVM's AMDGPU target (VOP3P: MFMA of gfx9,
WMMA of gfx11 and gfx12).
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from core.model import Finding, GfxTarget
from promotion.gates.common.gate_context import error
from wheelkit.elf.elf_tables import ElfImage
from wheelkit.gpu.code_object import HEAD_SIZE, code_object_problem, read_metadata

MFMA, WMMA = "mfma", "wmma"
"""The two families of matrix-core instructions."""

_MFMA_PREFIX, _WMMA_PREFIX = 0xD380 >> 7, 0xCC
"""Bits 31-23 of a VOP3P instruction on gfx9.

Bits 31-24 of a VOP3P instruction on gfx11 and gfx12.
"""
_ACCUMULATOR_MOVES = frozenset({0x58, 0x59})
_MFMA_OPCODES = (
    frozenset({0x2D, 0x2E}) | frozenset(range(0x35, 0x80))
) - _ACCUMULATOR_MOVES
_WMMA_OPCODES = frozenset({0x33}) | frozenset(range(0x40, 0x8A))
_VGPR = 0x100
_NO_ACCUMULATOR = 128
"""Encoding of the inline constant 0.

Lower values are scalar registers, which no matrix instruction reads.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelMetadata:
    """Metadata of one kernel.

    Attributes:
        vgpr_spills, sgpr_spills: spilled registers.
        scratch_bytes: private memory per work item.
    """

    name: str
    vgpr_spills: int
    sgpr_spills: int
    scratch_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledCode:
    """One code object.

    Attributes:
        matrix_instructions: number of matrix-core instructions.
    """

    size: int
    sha256: str
    kernels: tuple[KernelMetadata, ...]
    matrix_instructions: int


def matrix_cores(processor: str) -> str:
    """Return the matrix-core instructions of a processor.

    MFMA, WMMA or "" (LLVM, features of AMDGPU processors).
    """
    if processor in ("gfx908", "gfx90a", "gfx9-4-generic") or processor.startswith(
        ("gfx94", "gfx95")
    ):
        return MFMA
    return WMMA if processor.startswith(("gfx11", "gfx12")) else ""


def header_finding(data: bytes, label: str, target: GfxTarget) -> Finding | None:
    """Return a finding if the ELF header of a code object does not match its target.

    Args:
        data: content of the code object.
        label: name of the code object in findings.
        target: requested target with its features.
    """
    if not (clause := code_object_problem(data[:HEAD_SIZE], target)):
        return None
    return error(
        "code-object-wrong",
        f"{label}: the code object for {target} {clause}.",
        "Do not promote the set for this target, which the compiler in the wheel ignores.",
    )


def read_code_object(data: bytes, label: str, processor: str) -> CompiledCode:
    """Parse a code object.

    Raises:
        ElfError: the file is damaged or has no metadata.
    """
    image = ElfImage.parse(data, label)
    texts = [
        image.contents(section)
        for section in image.sections
        if section.name.startswith(".text")
    ]
    return CompiledCode(
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        kernels=tuple(_kernels(image)),
        matrix_instructions=sum(
            count_matrix(text, matrix_cores(processor)) for text in texts
        ),
    )


def count_matrix(text: bytes, family: str) -> int:
    """Count the matrix-core instructions in machine code.

    Every aligned pair of words is tested, without disassembly. A literal or the second
    word of another instruction may look like the first word of a matrix instruction;
    the check of the operands excludes this case, since multiplicands must be vector
    registers and the accumulator a vector register or an inline constant.

    Args:
        text: machine code.
        family: MFMA, WMMA or "" for none.
    """
    shift, prefix, opcodes = (
        (23, _MFMA_PREFIX, _MFMA_OPCODES)
        if family == MFMA
        else (24, _WMMA_PREFIX, _WMMA_OPCODES)
    )
    mask = (1 << shift - 16) - 1
    if not family:
        return 0
    words = struct.unpack(f"<{len(text) // 4}I", text[: len(text) // 4 * 4])
    return sum(
        first >> shift == prefix
        and (first >> 16 & mask) in opcodes
        and _operands(second)
        for first, second in itertools.pairwise(words)
    )


def _operands(word: int) -> bool:
    first = word & 0x1FF
    second = word >> 9 & 0x1FF
    accumulator = word >> 18 & 0x1FF
    return first >= _VGPR and second >= _VGPR and accumulator >= _NO_ACCUMULATOR


def _kernels(image: ElfImage) -> Iterator[KernelMetadata]:
    for entry in read_metadata(image).get("amdhsa.kernels", ()):
        yield KernelMetadata(
            name=str(entry.get(".name", "")),
            vgpr_spills=int(entry.get(".vgpr_spill_count", 0)),
            sgpr_spills=int(entry.get(".sgpr_spill_count", 0)),
            scratch_bytes=int(entry.get(".private_segment_fixed_size", 0)),
        )
