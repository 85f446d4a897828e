"""Unpacked bytes of a wheel by kind of content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from wheelkit.elf import constants
from wheelkit.elf.elf_tables import Section

OTHER = "other"

_LINKING_TYPES = frozenset(
    {
        constants.SHT_STRTAB,
        constants.SHT_RELA,
        constants.SHT_HASH,
        constants.SHT_REL,
        constants.SHT_DYNSYM,
    }
)
_FATBIN = ".hip_fatbin"


def part_of_section(section: Section) -> str:
    """Return the part that a section belongs to, by its name and its gABI type and flags."""
    if section.name == _FATBIN:
        return "device code"
    if section.name.startswith((".eh_frame", ".gcc_except_table")):
        return "exception tables"
    if not section.is_loaded:
        if section.name.startswith((".debug", ".zdebug", ".gdb_index")):
            return "debug info"
        if section.type == constants.SHT_SYMTAB or section.name == ".strtab":
            return "symbol tables"
        return OTHER
    if section.flags & constants.SHF_EXECINSTR:
        return "host code"
    if section.type in _LINKING_TYPES or section.type >= constants.SHT_GNU_FIRST:
        return "dynamic linking"
    return "data" if section.flags & constants.SHF_WRITE else "read-only data"


def part_of_file(name: str) -> str:
    """Return the part that a file other than a library belongs to."""
    if ".dist-info/" in name:
        return "metadata"
    return "Python" if name.endswith((".py", ".pyi", ".pth", ".typed")) else OTHER


def split_library(sections: Iterable[Section], size: int) -> Mapping[str, int]:
    """Return the bytes of each part of a library.

    Bytes outside all sections (headers, padding) belong to `other`.

    Args:
        sections: sections of the library, in any order.
        size: size of the library in bytes, the sum of the parts.
    """
    parts = Counter[str]()
    end = 0
    for section in sorted(sections, key=lambda item: item.offset):
        start = max(section.offset, end)
        stop = min(section.end, size)
        if stop > start:
            parts[part_of_section(section)] += stop - start
            end = stop
    parts[OTHER] += size - parts.total()
    return parts
