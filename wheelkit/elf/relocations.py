"""Defects of a library's relocations and of its stubs for calls of other libraries.

Sources: System V ABI, x86-64 supplement (relocation types, procedure linkage table). Linkers write one slot and one
stub for each called function, in the order of the relocations, and keep no function that nothing refers to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress

from wheelkit.elf import constants
from wheelkit.elf.reader import ElfImage, RawSymbol

_TYPES = frozenset({0, 1, 5, 6, 7, 8, 16, 17, 18, 36, 37})
"""Types in shared libraries: NONE, 64, COPY, GLOB_DAT, JUMP_SLOT, RELATIVE, TLS (4 types) and IRELATIVE."""
_STUB = re.compile(rb"\xff\x25(....)", re.DOTALL)
"""jmp [rip+x]: the jump of a stub."""
_POINTER = 8


def relocation_problems(image: ElfImage, tags: Mapping[int, int]) -> Iterator[str]:
    """Yield a clause for each kind of defect; libraries of other machines than x86-64 are skipped.

    Args:
        tags: tag -> value of the dynamic table.

    Raises:
        ElfError: a table lies outside of the file.
    """
    if image.machine != constants.EM_X86_64 or constants.DT_JMPREL not in tags:
        return
    symbols = [(symbol, name) for symbol, name in image.dynamic_symbols()]
    slots = _Table(image, tags, constants.DT_JMPREL, constants.DT_PLTRELSZ)
    data = _Table(image, tags, constants.DT_RELA, constants.DT_RELASZ)
    for table in (data, slots):
        yield from table.problems(len(symbols))
    relative = data.infos.count(constants.R_X86_64_RELATIVE)
    if tags.get(constants.DT_RELACOUNT, relative) != relative:
        yield f"has {relative} relative relocations, but {tags[constants.DT_RELACOUNT]} in its dynamic table"
    yield from _unused(symbols, {info >> 32 for info in (*data.others, *slots.infos)})
    yield from _slots(image, symbols, slots)
    yield from _functions(image, tags, data)


class _Table:
    """One relocation table: places, types with symbols, and addends."""

    def __init__(self, image: ElfImage, tags: Mapping[int, int], start: int, size: int) -> None:
        row = constants.RELA.size
        content = b""
        if start in tags:
            content = image.read(image.offset_of(tags[start]), tags.get(size, 0) // row * row)
        # A library has a million relocations, so columns are compared without a loop of Python.
        words = memoryview(content).cast("Q")
        self.places: Sequence[int] = words[0::3].tolist()
        self.infos: Sequence[int] = words[1::3].tolist()
        self.addends: Sequence[int] = words[2::3].tolist()
        self.others = [info for info in self.infos if info != constants.R_X86_64_RELATIVE]
        self._loads = [segment for segment in image.segments if segment.type == constants.PT_LOAD]

    def problems(self, symbols: int) -> Iterator[str]:
        """Yield a clause for each kind of defect.

        Args:
            symbols: number of dynamic symbols.
        """
        kinds = {info & 0xFFFFFFFF for info in self.others}
        if unknown := kinds - _TYPES:
            yield f"has relocations of type {min(unknown)}, which no loader applies to a library"
        if any(info >> 32 >= symbols for info in self.others):
            yield "has relocations with symbols behind the symbol table"
        if len(set(self.places)) != len(self.places):
            yield "has two relocations of one place"
        writable = [(s.address, s.address + s.memory_size) for s in self._loads if s.flags & constants.PF_W]
        if self.places and not all(
            any(start <= place < end for start, end in writable) for place in (min(self.places), max(self.places))
        ):
            yield "has relocations outside of its writable segments"
        relative = list(compress(self.addends, map(constants.R_X86_64_RELATIVE.__eq__, self.infos)))
        first = min((s.address for s in self._loads), default=0)
        last = max((s.address + s.memory_size for s in self._loads), default=0)
        if relative and not first <= min(relative) <= max(relative) <= last:
            yield "has pointers outside of its segments"


def _unused(symbols: Sequence[tuple[RawSymbol, str]], used: set[int]) -> Iterator[str]:
    """Yield a clause about functions of other libraries that are needed, but never called."""
    function = constants.STB_GLOBAL << 4 | constants.STT_FUNC
    for number, (symbol, name) in enumerate(symbols):
        # Objects may need helpers of compilers that no code calls.
        helper = name.startswith("__") and not name.startswith("__hip")
        if symbol.info == function and not symbol.section and number not in used and not helper:
            yield f"needs {name}, but no relocation refers to it, so that its callers reach another function"
            return


def _slots(image: ElfImage, symbols: Sequence[tuple[RawSymbol, str]], slots: _Table) -> Iterator[str]:
    """Yield clauses about slots that are out of order, and about stubs that jump elsewhere."""
    rows = [
        (place, info >> 32)
        for place, info in zip(slots.places, slots.infos, strict=True)
        if info & 0xFFFFFFFF == constants.R_X86_64_JUMP_SLOT
    ]
    order = [number for _, number in rows]
    moved = [number for number, usual in zip(order, sorted(order), strict=True) if number != usual]
    comment = image.section(".comment")
    by_lld = comment is not None and b"LLD" in image.contents(comment)
    # lld writes slots in the order of the symbols, other linkers do not.
    if by_lld and moved and len(moved) <= max(2, len(order) // 8) and max(moved) < len(symbols):
        yield f"calls {symbols[moved[0]][1]} in place of another function, since its slot is out of order"
    targets = [
        section.address + match.end() + int.from_bytes(match[1], "little", signed=True)
        for section in image.sections
        if section.name.startswith(".plt") and section.flags & constants.SHF_EXECINSTR
        for match in _STUB.finditer(image.contents(section))
    ]
    places = {place for place, _ in rows}
    reached = [target for target in targets if target in places]
    if not reached:
        return
    if set(reached) != places:
        yield f"has no stub that jumps through the slot at {min(places - set(reached)):#x}"
    elif reached != sorted(reached) and slots.places == sorted(slots.places):
        yield "has stubs that jump through the slots of others"


def _functions(image: ElfImage, tags: Mapping[int, int], data: _Table) -> Iterator[str]:
    """Yield clauses about constructors and destructors that are no machine code."""
    code = [
        (segment.address, segment.address + segment.memory_size)
        for segment in image.segments
        if segment.type == constants.PT_LOAD and segment.flags & constants.PF_X
    ]
    for name, start, size in (
        ("constructor", constants.DT_INIT_ARRAY, constants.DT_INIT_ARRAYSZ),
        ("destructor", constants.DT_FINI_ARRAY, constants.DT_FINI_ARRAYSZ),
    ):
        at = tags.get(start, 0)
        places = range(at, at + tags.get(size, 0), _POINTER)
        for row in compress(range(len(data.places)), map(places.__contains__, data.places)):
            if data.infos[row] == constants.R_X86_64_RELATIVE and not any(
                first <= data.addends[row] < last for first, last in code
            ):
                yield f"has a {name} at {data.addends[row]:#x}, where no machine code is"
                break
