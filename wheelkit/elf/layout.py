"""Defects of a library's layout: sections, segments, dynamic table and exported symbols that do not fit one another.

Sources: gABI chapters 4 and 5; LSB Core (.gnu.hash); glibc, elf/dl-lookup.c, which finds symbols by their hash alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from itertools import pairwise

from wheelkit.elf import constants
from wheelkit.elf.reader import ElfImage, RawSymbol, Section, Segment, bytes_at, string_at
from wheelkit.elf.symbol_versions import definitions, needs_with_hashes

_HASH_HEAD = struct.Struct("<IIII")
_TABLES = {
    ".hash": constants.DT_HASH, ".gnu.hash": constants.DT_GNU_HASH, ".dynstr": constants.DT_STRTAB,
    ".dynsym": constants.DT_SYMTAB, ".rela.dyn": constants.DT_RELA, ".rela.plt": constants.DT_JMPREL,
    ".init_array": constants.DT_INIT_ARRAY,
    ".fini_array": constants.DT_FINI_ARRAY, ".gnu.version": constants.DT_VERSYM,
    ".gnu.version_r": constants.DT_VERNEED, ".gnu.version_d": constants.DT_VERDEF,
}  # fmt: skip
"""Section -> tag with its address."""
_RELRO = (".dynamic", ".init_array", ".fini_array", ".data.rel.ro")
"""Sections that become read-only after relocation."""
_TYPED = (constants.STT_OBJECT, constants.STT_FUNC)


def layout_problems(image: ElfImage, tags: Mapping[int, int]) -> Iterator[str]:
    """Yield a clause for each kind of defect; a library without machine code is skipped.

    Args:
        tags: tag -> value of the dynamic table.

    Raises:
        ElfError: a table lies outside of the file.
    """
    loads = [segment for segment in image.segments if segment.type == constants.PT_LOAD]
    if not any(section.flags & constants.SHF_EXECINSTR for section in image.sections):
        return
    if image.flags or image.data[7] not in (constants.ELFOSABI_NONE, constants.ELFOSABI_GNU):
        yield f"is for OS ABI {image.data[7]} with flags {image.flags:#x}"
    if image.data[6] != 1 or int.from_bytes(image.data[20:24], "little") != 1 or any(image.data[9:16]):
        yield "has a header of another version, which the loader refuses"
    if image.data[8] and image.data[7] == constants.ELFOSABI_NONE:
        yield f"is for version {image.data[8]} of its ABI, which the loader refuses"
    # .tbss has an address, but no memory; each thread has its own.
    loaded = [s for s in image.sections if s.flags & constants.SHF_ALLOC and s.size and not _is_tbss(s)]
    for section in loaded:
        if problem := _section_problem(section, loads):
            yield problem
    for rows in (
        sorted((s.address, s.size, s.name) for s in loaded),
        sorted((s.offset, s.file_size, s.name) for s in image.sections if s.file_size),
    ):
        for (start, size, name), (following, _, other) in pairwise(rows):
            if start + size > following:
                yield f"has sections {name} and {other} that overlap"
    for section in loaded:
        tag = _TABLES.get(section.name)
        if tag is not None and tags.get(tag) != section.address:
            value = f"{tags[tag]:#x}" if tag in tags else "none"
            yield f"has {section.name} at {section.address:#x}, but {value} in its dynamic table"
    yield from _segment_problems(image, loads)
    yield from _symbol_problems(image, tags)


def _is_tbss(section: Section) -> bool:
    return bool(section.flags & constants.SHF_TLS) and section.type == constants.SHT_NOBITS


def _section_problem(section: Section, loads: list[Segment]) -> str:
    end = section.address + section.size
    segment = next((s for s in loads if s.address <= section.address and end <= s.address + s.memory_size), None)
    if segment is None:
        return f"has section {section.name} outside of its segments"
    if section.file_size and section.address - section.offset != segment.address - segment.offset:
        return f"has section {section.name} at another place in the file than in memory"
    needed = (constants.PF_X if section.flags & constants.SHF_EXECINSTR else 0) | (
        constants.PF_W if section.flags & constants.SHF_WRITE else 0
    )
    if needed & ~segment.flags or not segment.flags & constants.PF_R:
        return f"has section {section.name} in a segment without the access that it needs"
    return ""


def _segment_problems(image: ElfImage, loads: list[Segment]) -> Iterator[str]:
    """Yield clauses about segments that do not cover the sections of their kind."""
    sections = {section.name: section for section in image.sections}
    dynamic = sections.get(".dynamic")
    threads = [section for section in image.sections if section.flags & constants.SHF_TLS]
    kinds = {segment.type: segment for segment in image.segments}
    table, relro, tls = (kinds.get(k) for k in (constants.PT_DYNAMIC, constants.PT_GNU_RELRO, constants.PT_TLS))
    if table and dynamic and (table.address, table.file_size) != (dynamic.address, dynamic.size):
        yield "has a PT_DYNAMIC that is not its section .dynamic"
    if relro:
        end = relro.address + relro.memory_size
        if not any(s.address <= relro.address and end <= s.address + s.memory_size for s in loads):
            yield "has a PT_GNU_RELRO outside of its segments"
        for section in (sections[name] for name in _RELRO if name in sections):
            if not relro.address <= section.address <= section.address + section.size <= end:
                yield f"keeps section {section.name} writable, which PT_GNU_RELRO leaves out"
        for section in (sections[name] for name in (".data", ".bss") if name in sections):
            if section.size and relro.address <= section.address < end:
                yield f"makes section {section.name} read-only by its PT_GNU_RELRO, so that writing to it fails"
    if bool(threads) != bool(tls):
        yield "has variables of threads without PT_TLS, or the other way round"
    elif tls and (
        tls.address != min(section.address for section in threads)
        or tls.address + tls.memory_size < max(section.address + section.size for section in threads)
    ):
        yield "has a PT_TLS that does not cover the variables of threads"
    if tls and (tls.file_size > tls.memory_size or tls.alignment & (tls.alignment - 1)):
        yield "has a PT_TLS that the loader cannot set up"


def _symbol_problems(image: ElfImage, tags: Mapping[int, int]) -> Iterator[str]:
    """Yield a clause for the first exported symbol outside of its section, and for the first that is never found."""
    symbols = list(image.dynamic_symbols()) if constants.DT_SYMTAB in tags else []
    versions = image.section(".gnu.version")
    if versions and constants.DT_VERSYM in tags and versions.size != 2 * len(symbols):
        yield f"has {versions.size // 2} symbol versions for {len(symbols)} symbols"
    local = next((name for symbol, name in symbols if name and symbol.info >> 4 == constants.STB_LOCAL and
                  not symbol.section), "")  # fmt: skip
    if local:
        yield f"needs {local} by a local symbol, which the loader takes for the start of the library"
    if not all(name for _, name in symbols[1:]):
        yield "has a dynamic symbol without a name"
    yield from _version_problems(image, tags, symbols)
    for symbol, name in symbols:
        if not symbol.section or symbol.section >= constants.SHN_LORESERVE or symbol.info & 0xF not in _TYPED:
            continue
        section = image.sections[symbol.section] if symbol.section < len(image.sections) else None
        if (
            section is None
            or not section.address <= symbol.value <= symbol.value + symbol.size <= section.address + section.size
            or (symbol.info & 0xF == constants.STT_FUNC and not section.flags & constants.SHF_EXECINSTR)
        ):
            yield f"exports {name} at {symbol.value:#x}, outside of its section"
            break
    hashes = image.section(".gnu.hash")
    if hashes and constants.DT_GNU_HASH in tags:
        yield from _hash_problems(image.contents(hashes), symbols)


def _version_problems(image: ElfImage, tags: Mapping[int, int], symbols: list[tuple[RawSymbol, str]]) -> Iterator[str]:
    """Yield a clause about the first version that the loader does not find by its hash or index."""
    if constants.DT_VERSYM not in tags or constants.DT_STRTAB not in tags:
        return
    known, start = {0, 1}, image.offset_of(tags[constants.DT_STRTAB])
    strings = image.read(start, tags.get(constants.DT_STRSZ, 0))
    for index, name, _, value in needs_with_hashes(image, tags):
        known.add(index)
        if value != _version_hash(bytes_at(strings, name, image.label)):
            yield f"needs version {string_at(strings, name, image.label)}, whose hash is wrong"
            return
    known |= {index for index, _ in definitions(image, tags)}
    data = image.read(image.offset_of(tags[constants.DT_VERSYM]), 2 * len(symbols))
    for (_, symbol), (index,) in zip(symbols, struct.iter_unpack("<H", data), strict=True):
        if index & 0x7FFF not in known:
            yield f"has {symbol} in version {index & 0x7FFF} of its list, which has no such version"
            return


def _version_hash(name: bytes) -> int:
    """Return the hash of the gABI."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        value = (value ^ (value & 0xF0000000) >> 24) & 0x0FFFFFFF
    return value


def _hash_problems(table: bytes, symbols: list[tuple[RawSymbol, str]]) -> Iterator[str]:
    """Yield a clause for the first symbol that the loader does not find by its hash."""
    if len(table) < _HASH_HEAD.size:
        yield "has a damaged .gnu.hash"
        return
    buckets, first, words, shift = _HASH_HEAD.unpack_from(table)
    chain = (len(table) - _HASH_HEAD.size - 8 * words) // 4 - buckets
    if not any(symbol.section and symbol.info >> 4 != constants.STB_LOCAL for symbol, _ in symbols):
        return
    if not buckets or not words or chain != max(0, len(symbols) - first):
        yield f"has a .gnu.hash of {chain} symbols, but exports {len(symbols) - first}"
        return
    bloom = struct.unpack_from(f"<{words}Q", table, _HASH_HEAD.size)
    heads = struct.unpack_from(f"<{buckets}I", table, _HASH_HEAD.size + 8 * words)
    held = struct.unpack_from(f"<{chain}I", table, len(table) - 4 * chain)
    for number, (_, name) in enumerate(symbols):
        if number < first:
            continue
        value = _gnu_hash(name)
        bits = 1 << value % 64 | 1 << (value >> shift) % 64
        head = heads[value % buckets]
        found = held[number - first] | 1 == value | 1 and bloom[value // 64 % words] & bits == bits
        if (
            not found
            or not first <= head <= number
            or not all(row & 1 == 0 for row in held[head - first : number - first])
        ):
            yield f"exports {name}, which the loader does not find by its hash"
            return


def _gnu_hash(name: str) -> int:
    value = 5381
    for byte in name.encode():
        value = value * 33 + byte & 0xFFFFFFFF
    return value
