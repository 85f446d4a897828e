"""Check of a whole code object: ELF tables, symbols, kernel descriptors, machine code and the metadata note.

HIP loads a code object when the first of its kernels is launched, so that its defects appear only on a GPU. Sources:
LLVM, "User Guide for AMDGPU Backend" (code object V3 to V6), and gABI chapters 4 and 5. `code_object_problem` compares
the processor and its features.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from core.errors import ElfError, RequestError
from core.model import GfxTarget
from core.rocm_releases import AMD_CLANG
from wheelkit.elf import constants
from wheelkit.elf.hardening import segment_problems, writable_code
from wheelkit.elf.reader import ElfImage, RawSymbol, Segment
from wheelkit.gpu.agreement import KernelTraits
from wheelkit.gpu.code_object import read_metadata
from wheelkit.gpu.kernel_descriptor import (
    ENTRY_ALIGNMENT,
    SIZE,
    Descriptor,
    descriptor_problem,
    kernel_needs,
    metadata_problem,
    start_problem,
    work_item_ids,
)
from wheelkit.gpu.limits import GpuLimits, limits_of
from wheelkit.gpu.machine_code import foreign_instruction, unknown_instruction

_METADATA_VERSIONS = {1: [1, 0], 2: [1, 1], 3: [1, 2], 4: [1, 2]}
"""EI_ABIVERSION of code object V3 to V6 -> `amdhsa.version`."""
_LATEST = 4
_TARGET_ID = re.compile(r"amdgcn-amd-amdhsa-(?:unknown)?-(gfx.+)")
_SUFFIX = ".kd"
_VISIBLE = tuple((bind << 4) | constants.STT_OBJECT for bind in (constants.STB_GLOBAL, constants.STB_WEAK))
"""Binding and type of the symbols by which ROCm finds kernel descriptors."""
_HIDDEN = (constants.STV_INTERNAL, constants.STV_HIDDEN)
_BODY = 64
"""Size in bytes from which a kernel has a body, which ends; a shorter one may have only its prologue."""
_UNPACK_Y, _UNPACK_Z = struct.pack("<I", 0x2291500), struct.pack("<I", 0x2292900)
"""Second word of v_bfe_u32 with bits 10 to 19, or 20 to 29, of v0: the work-item ID y or z."""
_DECODED = "gfx9"
"""Beginning of the processors whose instructions are decoded."""
_TABLES = {
    ".hash": constants.DT_HASH, ".gnu.hash": constants.DT_GNU_HASH, ".dynsym": constants.DT_SYMTAB,
    ".dynstr": constants.DT_STRTAB,
}  # fmt: skip
"""Section -> tag with its address."""
_FOREIGN_TAGS = {
    constants.DT_NEEDED: "DT_NEEDED", constants.DT_TEXTREL: "DT_TEXTREL", constants.DT_INIT_ARRAY: "DT_INIT_ARRAY",
}  # fmt: skip
_HOLE = bytes(32)
"""Zeros that no kernel contains."""
_GAP = bytes(256)
"""Zeros that machine code never contains; compilers fill gaps with instructions."""


class CodeProblem(NamedTuple):
    """A defect of a code object: the code of its finding, and a verb phrase without a full stop."""

    code: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeCheck:
    """Kernels and defects of one code object.

    Attributes:
        kernels: names of the kernels with a descriptor.
        problems: defects; at most one for each kernel.
        compiler: name of the clang in .comment; empty if there is none.
        traits: kernel -> properties that are the same for every target.
    """

    kernels: tuple[str, ...] = ()
    problems: tuple[CodeProblem, ...] = ()
    compiler: str = ""
    traits: Mapping[str, KernelTraits] = field(default_factory=dict, compare=False, repr=False)


def check_code(data: bytes, target: GfxTarget) -> CodeCheck:
    """Check a code object for a target; defects of the header that `code_object_problem` reports are left out."""
    try:
        image = ElfImage.parse(data, "the code object")
        symbols = {name: symbol for symbol, name in image.dynamic_symbols() if name}
        content = _Content(data, image, symbols, target)
        problems = [CodeProblem("code-object-damaged", text) for text in content.image_problems()]
        if not problems:
            problems += [CodeProblem("code-object-damaged", text) for text in content.unknown_instructions()]
        problems += [CodeProblem("code-object-wrong", text) for text in content.foreign_instructions()]
        problems += content.metadata_problems()
        comment = image.section(".comment")
        names = image.contents(comment).decode(errors="replace").split("\0") if comment else []
    except ElfError as error:
        text = f"cannot be read: {error.message.removesuffix('.')}"
        return CodeCheck(problems=(CodeProblem("code-object-damaged", text),))
    kernels = (name.removesuffix(_SUFFIX) for name in content.descriptors)
    compiler = next(filter(AMD_CLANG.match, names), "")
    return CodeCheck(kernels=tuple(kernels), problems=tuple(problems), compiler=compiler, traits=content.traits)


class _Content:
    """Tables of one code object."""

    def __init__(self, data: bytes, image: ElfImage, symbols: Mapping[str, RawSymbol], target: GfxTarget) -> None:
        self._data, self._image, self._symbols, self._target = data, image, symbols, target
        self._assembled = self._derives = False
        self.traits: dict[str, KernelTraits] = {}
        self._loads = [segment for segment in image.segments if segment.type == constants.PT_LOAD]
        self.descriptors = {
            name: symbol for name, symbol in symbols.items() if symbol.section and name.endswith(_SUFFIX)
        }

    def image_problems(self) -> Iterator[str]:
        """Yield the defects of header, program headers, sections and symbols."""
        data = self._data
        if data[6] != 1 or data[8] not in _METADATA_VERSIONS:
            yield f"has version {data[6]} and code object ABI {data[8]}, which ROCm does not load"
        held = {segment.type: segment for segment in self._image.segments}
        if any(kind not in held for kind in (constants.PT_LOAD, constants.PT_DYNAMIC, constants.PT_NOTE)):
            yield "lacks a program header that ROCm needs to load it"
            return
        if any(
            section.offset != held[constants.PT_NOTE].offset or section.size != held[constants.PT_NOTE].file_size
            for section in self._image.sections if section.type == constants.SHT_NOTE
        ):  # fmt: skip
            yield "has a program header of notes that does not fit its notes"
        dynamic = held[constants.PT_DYNAMIC]
        if _segment_of(self._loads, dynamic.address, dynamic.memory_size) is None:
            yield "has a dynamic table outside of the segments that ROCm maps"
        yield from segment_problems(self._image)
        yield from writable_code(self._image)
        for section in self._image.sections:
            if not section.flags & constants.SHF_ALLOC or not section.size:
                continue
            segment = _segment_of(self._loads, section.address, section.size)
            code = bool(section.flags & constants.SHF_EXECINSTR)
            moved = segment and section.file_size and section.address - section.offset != _shift(segment)
            if segment is None or moved or code > bool(segment.flags & constants.PF_X):
                yield f"has section {section.name} outside of the segments that ROCm maps for it"
            elif code and self._data.find(_GAP, section.offset, section.offset + section.file_size) >= 0:
                yield f"has zeros instead of machine code in section {section.name}"
        yield from self._table_problems()
        for name, symbol in self._symbols.items():
            if not symbol.section and symbol.info >> 4 != constants.STB_WEAK:
                yield f"needs the symbol {name}, which no code object provides"

    def unknown_instructions(self) -> Iterator[str]:
        """Yield a clause about the first bytes in the functions that are no instructions of the target."""
        text = self._image.section(".text")
        if text is None or not self._target.processor.startswith(_DECODED):
            return
        functions = [
            (symbol.value - text.address + text.offset, symbol.size)
            for symbol in self._symbols.values()
            if symbol.size and symbol.section and symbol.info & 0xF == constants.STT_FUNC
        ]
        at = unknown_instruction(self._data, (text.offset, text.file_size), functions)
        if at is not None:
            yield f"has bytes that are no instructions at {at - text.offset + text.address:#x}"

    def _table_problems(self) -> Iterator[str]:
        """Yield the defects of the dynamic table, by which ROCm finds symbols."""
        tags = {entry.tag: entry.value for entry in self._image.dynamic()}
        for name, tag in _TABLES.items():
            section = self._image.section(name)
            if section and tags.get(tag) != section.address:
                yield f"has {name} at {section.address:#x}, but not in its dynamic table"
        names, hashes = self._image.section(".dynstr"), self._image.section(".hash")
        if names and tags.get(constants.DT_STRSZ) != names.size:
            yield f"has {names.size} bytes of names, but {tags.get(constants.DT_STRSZ)} in its dynamic table"
        rows = sum(s.size for s in self._image.sections if s.type == constants.SHT_DYNSYM) // constants.SYMBOL.size
        if hashes and int.from_bytes(self._image.contents(hashes)[4:8], "little") != rows:
            yield f"has hashes that are not those of its {rows} symbols"
        for tag in sorted(_FOREIGN_TAGS.keys() & tags.keys()):
            yield f"has {_FOREIGN_TAGS[tag]} in its dynamic table, which ROCm does not load"

    def foreign_instructions(self) -> Iterator[str]:
        """Yield a clause about the first instruction that the target lacks, and that another GPU has."""
        limits, text = limits_of(self._target.processor), self._image.section(".text")
        if limits and text:
            at = foreign_instruction(self._data, (text.offset, text.file_size), limits.foreign)
            if at is not None:
                place = at - text.offset + text.address
                yield f"has an instruction at {place:#x} that {self._target.processor} lacks, and others have"

    def metadata_problems(self) -> Iterator[CodeProblem]:
        """Yield the defects of the metadata note, and of each kernel."""
        try:
            metadata = read_metadata(self._image)
        except ElfError as error:
            yield CodeProblem("kernel-metadata-wrong", f"has no metadata: {error.message.removesuffix('.')}")
            return
        version, target = metadata.get("amdhsa.version"), metadata.get("amdhsa.target")
        # Compilers name the target since V4. Assembly sources also leave out the size of kernargs in the descriptor.
        self._assembled = target is None
        if not self._assembled and version != _METADATA_VERSIONS.get(self._data[8]):
            yield CodeProblem("kernel-metadata-wrong", f"has metadata of version {version}")
        if not self._assembled and _target(target) != self._target:
            yield CodeProblem("code-object-wrong", f"has metadata for {target}")
        self._derives = not self._assembled and version == _METADATA_VERSIONS[_LATEST]
        kernels = metadata.get("amdhsa.kernels")
        try:
            described: dict[str, dict[str, Any]] = {str(kernel[".symbol"]): kernel for kernel in kernels or ()}
        except (KeyError, TypeError):
            described = {}
        if not isinstance(kernels, list) or len(described) != len(kernels):
            yield CodeProblem("kernel-metadata-wrong", "has no list of kernels in its metadata")
            return
        for name in sorted(self.descriptors.keys() - described.keys()):
            yield CodeProblem("kernel-metadata-wrong", f"has no metadata of kernel {name.removesuffix(_SUFFIX)}")
        limits = limits_of(self._target.processor)
        executable = [segment for segment in self._loads if segment.flags & constants.PF_X]
        for symbol, kernel in described.items():
            if problem := self._kernel_problem(symbol, kernel, limits, executable):
                yield problem

    def _kernel_problem(
        self, symbol: str, kernel: Mapping[str, Any], limits: GpuLimits | None, executable: list[Segment]
    ) -> CodeProblem | None:
        """Return the first defect of one kernel."""
        row, name = self.descriptors.get(symbol), symbol.removesuffix(_SUFFIX)
        if row is None:
            return CodeProblem("kernel-metadata-wrong", f"has metadata of {symbol}, but no such kernel descriptor")
        try:
            needs = kernel_needs(kernel)
            text = metadata_problem(kernel, needs, exact=self._derives)
            if not text and not self._assembled and kernel[".name"] != name:
                text = f"its metadata name {kernel['.name']}"
        except (KeyError, TypeError, ValueError) as error:
            text = f"has incomplete metadata ({error})"
        if text:
            return CodeProblem("kernel-metadata-wrong", f"has kernel {name}, which {text}")
        segment = _segment_of(self._loads, row.value, SIZE)
        at = row.value - _shift(segment) if segment else -1
        data = self._data[at : at + SIZE] if at >= 0 else b""
        if row.value % SIZE or row.size != SIZE or len(data) != SIZE:
            text = "has no descriptor of 64 bytes at its symbol"
        elif row.info not in _VISIBLE or row.other & 3 in _HIDDEN:
            text = "has a descriptor that ROCm does not find, since its symbol is hidden, local or no object"
        else:
            found = Descriptor.parse(data)
            if self._assembled and not found.kernarg:
                found = found._replace(kernarg=needs.kernarg)
            function = self._symbols.get(name)
            body = function is not None and function.size >= _BODY
            self.traits[name] = KernelTraits(kernel, found.rsrc1, found.rsrc2, body)
            text = self._entry_problem(name, row.value + found.entry, limits, executable)
            text = text or (descriptor_problem(found, needs, limits) if limits else "")
            if limits and not text and not self._assembled:
                text = start_problem(kernel, found, limits) or self._ids_problem(name, work_item_ids(found), limits)
        return CodeProblem("kernel-descriptor-wrong", f"has kernel {name}, which {text}") if text else None

    def _entry_problem(self, name: str, entry: int, limits: GpuLimits | None, executable: list[Segment]) -> str:
        """Return a description of the first defect of a kernel's machine code."""
        function = self._symbols.get(name)
        if function and (function.value, function.size) == (entry, 0) and not self._assembled:
            return ""  # compilers leave out the body of a kernel that the target never runs
        segment = _segment_of(executable, entry, 4)
        if segment is None or entry % ENTRY_ALIGNMENT:
            return f"begins at {entry:#x}, where no machine code begins"
        if function is None:
            return ""
        if function.value != entry:
            return f"begins at {entry:#x}, not at its function"
        # Labels of assembly sources have no size.
        size = function.size or segment.address + segment.memory_size - entry
        start = entry - _shift(segment)
        if limits and size >= _BODY:
            if self._data.rfind(limits.end, start, start + size) < 0:
                return "does not end (s_endpgm)"
            if self._data.startswith(limits.end, start):
                return "ends at its first instruction"
            if self._data.find(_HOLE, start, start + size) >= 0:
                return "has zeros in its machine code"
        return ""

    def _ids_problem(self, name: str, ids: int, limits: GpuLimits) -> str:
        """Return a description of a work-item ID that a kernel unpacks from v0, but does not get."""
        function = self._symbols.get(name)
        if function is None or function.size < _BODY or not limits.unpack:
            return ""
        segment = _segment_of(self._loads, function.value, function.size)
        if segment is None:
            return ""
        start = function.value - _shift(segment)
        for number, axis, word in ((1, "y", _UNPACK_Y), (2, "z", _UNPACK_Z)):
            at = self._data.find(word, start, start + function.size) if ids < number else -1
            while at >= 0:
                if (at - start) % 4 == 0 and self._data[at - 3] == 0 and self._data.startswith(limits.unpack, at - 2):
                    return f"reads the work-item ID {axis}, which its descriptor does not enable"
                at = self._data.find(word, at + 1, start + function.size)
        return ""


def _segment_of(segments: list[Segment], address: int, size: int) -> Segment | None:
    """Return the segment that contains a range of addresses."""
    for segment in segments:
        if segment.address <= address and address + size <= segment.address + segment.memory_size:
            return segment
    return None


def _shift(segment: Segment) -> int:
    """Return the difference between addresses and file offsets in a segment."""
    return segment.address - segment.offset


def _target(text: object) -> GfxTarget | None:
    """Return the target that metadata name; None if it is damaged or missing."""
    match = _TARGET_ID.fullmatch(text) if isinstance(text, str) else None
    try:
        return GfxTarget.parse(match[1]) if match else None
    except RequestError:
        return None
