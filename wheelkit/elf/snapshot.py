"""Frozen snapshot of one ELF file for inspection and repair: properties, needs and exports.

Names and versions of needed libraries come from PT_DYNAMIC, which the loader uses;
symbols, build ID and comments come from sections.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

from core.frozen import frozen
from core.rocm_releases import rocm_of_compiler
from wheelkit.elf import constants, symbol_versions
from wheelkit.elf import elf_tables as reader
from wheelkit.elf.elf_tables import ElfImage, Section

_MACHINES = {
    constants.EM_X86_64: "x86_64",
    constants.EM_AARCH64: "aarch64",
    constants.EM_AMDGPU: "amdgpu",
    constants.EM_RISCV: "riscv64",
}
_BINDS = {
    constants.STB_LOCAL: "LOCAL",
    constants.STB_GLOBAL: "GLOBAL",
    constants.STB_WEAK: "WEAK",
    constants.STB_GNU_UNIQUE: "UNIQUE",
}

HIP_RUNTIME = re.compile(r"(?:__)?hip[A-Z]\w*")
"""Names of HIP runtime functions.

In hipBLAS and similar libraries, a lower-case letter follows (hipblasCreate).
"""


@frozen
class Symbol:
    """One undefined symbol of a file.

    Attributes:
        version: symbol version such as GLIBC_2.17; None for a reference without a
            version.
        library: soname that should provide the version; None without a version.
        bind: GLOBAL, WEAK, UNIQUE or LOCAL.
    """

    name: str
    version: str | None
    library: str | None
    bind: str


@frozen
class Elf:
    """Snapshot of one ELF file.

    Attributes:
        machine: x86_64, aarch64, amdgpu, riscv64, or the number of e_machine.
        needed: DT_NEEDED sonames in order.
        undefined: dynamic symbols without a definition, in table order.
        offered: exported dynamic symbol -> its versions, default version first; ""
            means no version.
        version_needs: soname -> versions required from it.
        sections: sections by name; only the first of several sections with one name.
        build_id: build ID in hexadecimal, from .note.gnu.build-id; None if the file has
            none.
        debug_link: name and CRC-32 of the separate debug file, from .gnu_debuglink;
            None without one.
        comments: names of compilers and linkers, from .comment.
        init_functions: exported PyInit_* functions.
    """

    machine: str
    size: int
    needed: tuple[str, ...]
    runpath: str | None
    rpath: str | None
    soname: str | None
    undefined: tuple[Symbol, ...]
    offered: Mapping[str, tuple[str, ...]]
    version_needs: Mapping[str, frozenset[str]]
    sections: Mapping[str, Section]
    build_id: str | None
    debug_link: tuple[str, int] | None
    comments: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Elf:
        """Read the file at `path`.

        Raises:
            ElfError: the file is not an ELF64 little-endian file, or is damaged.
        """
        with reader.open_image(path) as image:
            return _snapshot(image)

    @property
    def exported(self) -> tuple[str, ...]:
        """Names of the exported dynamic symbols."""
        return tuple(self.offered)

    @property
    def search_path(self) -> tuple[str, ...]:
        """Entries of DT_RUNPATH, or of DT_RPATH if there is no RUNPATH."""
        path = self.rpath if self.runpath is None else self.runpath
        return tuple(path.split(":")) if path else ()

    @property
    def init_functions(self) -> tuple[str, ...]:
        """Names of the module initialisation functions of a Python extension."""
        return tuple(name for name in self.exported if name.startswith("PyInit_"))

    @property
    def hip_symbols(self) -> tuple[str, ...]:
        """Undefined symbols of the HIP runtime, sorted."""
        names = {symbol.name for symbol in self.undefined}
        return tuple(sorted(filter(HIP_RUNTIME.fullmatch, names)))

    @property
    def rocm_versions(self) -> tuple[str, ...]:
        """ROCm releases of the compilers that .comment names, sorted.

        Empty if it names no known ROCm compiler.
        """
        known = filter(None, map(rocm_of_compiler, self.comments))
        return tuple(sorted({versions[0] for versions in known}))

    def highest_versions(self) -> dict[str, str]:
        """Return the highest required version per prefix, such as {"GLIBC": "2.27"}."""
        return highest_versions(chain.from_iterable(self.version_needs.values()))


def highest_versions(versions: Iterable[str]) -> dict[str, str]:
    """Return the highest number per prefix of symbol versions.

    Names without a number (GLIBC_PRIVATE) are skipped.
    """
    best: dict[str, tuple[int, ...]] = {}
    for version in versions:
        match = re.fullmatch(r"(.+?)_(\d+(?:\.\d+)*)", version)
        if match:
            number = tuple(int(part) for part in match[2].split("."))
            best[match[1]] = max(number, best.get(match[1], ()))
    return {
        prefix: ".".join(map(str, number)) for prefix, number in sorted(best.items())
    }


def _debug_link(
    image: ElfImage, sections: Mapping[str, Section]
) -> tuple[str, int] | None:
    """Return the content of .gnu_debuglink.

    A name that ends with zeros at a multiple of 4 bytes, and a CRC-32.
    """
    section = sections.get(".gnu_debuglink")
    name, _, rest = (
        image.contents(section).partition(b"\0") if section else (b"", b"", b"")
    )
    if not name or len(rest) < 4:
        return None
    return name.decode(errors="backslashreplace"), int.from_bytes(rest[-4:], "little")


def _snapshot(image: ElfImage) -> Elf:
    entries = image.live_dynamic()
    tags = {entry.tag: entry.value for entry in reversed(entries)}
    strings = b""
    if constants.DT_STRTAB in tags:
        strings = image.read(
            image.offset_of(tags[constants.DT_STRTAB]), tags.get(constants.DT_STRSZ, 0)
        )

    def string(offset: int) -> str:
        return reader.string_at(strings, offset, image.label)

    def name(tag: int) -> str | None:
        return string(tags[tag]) if tag in tags else None

    needs = {
        index: (string(version), string(library))
        for index, version, library in symbol_versions.needs(image, tags)
    }
    libraries: dict[str, set[str]] = {}
    for version, library in needs.values():
        libraries.setdefault(library, set()).add(version)
    own = {1: ""}
    for index, offset in symbol_versions.definitions(image, tags):
        # The first name is the version's own, the next are its parents.
        own.setdefault(index, string(offset))
    undefined, offered = _symbols(image, tags, strings, needs, own)
    sections: dict[str, Section] = {}
    for section in image.sections:
        sections.setdefault(section.name, section)
    build_ids = (
        description.hex()
        for name, kind, description in image.notes()
        if (name, kind) == (b"GNU\0", constants.NT_GNU_BUILD_ID)
    )
    comment = sections.get(".comment")
    comments = image.contents(comment).split(b"\0") if comment else []
    return Elf(
        machine=_MACHINES.get(image.machine, str(image.machine)),
        size=len(image.data),
        needed=tuple(
            string(entry.value) for entry in entries if entry.tag == constants.DT_NEEDED
        ),
        runpath=name(constants.DT_RUNPATH),
        rpath=name(constants.DT_RPATH),
        soname=name(constants.DT_SONAME),
        undefined=undefined,
        offered=offered,
        sections=sections,
        build_id=next(build_ids, None),
        debug_link=_debug_link(image, sections),
        version_needs={
            library: frozenset(versions) for library, versions in libraries.items()
        },
        comments=tuple(
            dict.fromkeys(c.decode(errors="backslashreplace") for c in comments if c)
        ),
    )


def _symbols(
    image: ElfImage,
    tags: Mapping[int, int],
    strings: bytes,
    needs: Mapping[int, tuple[str, str]],
    own: Mapping[int, str],
) -> tuple[tuple[Symbol, ...], dict[str, tuple[str, ...]]]:
    """Return the undefined symbols, and the exported ones with their versions."""
    table = image.of_type(constants.SHT_DYNSYM)
    if table is None:
        if constants.DT_SYMTAB in tags:
            raise reader.damaged(
                f"{image.label} has dynamic symbols but no section for them."
            )
        return (), {}
    indices = [1] * (len(image.contents(table)) // constants.SYMBOL.size)
    if constants.DT_VERSYM in tags:
        raw = image.read(image.offset_of(tags[constants.DT_VERSYM]), 2 * len(indices))
        indices = [index for (index,) in struct.iter_unpack("<H", raw)]
    undefined: list[Symbol] = []
    offered: dict[str, tuple[str, ...]] = {}
    for number, symbol in enumerate(image.symbols(table)):
        name = reader.string_at(strings, symbol.name, image.label)
        bind = _BINDS.get(symbol.info >> 4, str(symbol.info >> 4))
        index = indices[number] & 0x7FFF
        hidden = indices[number] & constants.VERSYM_HIDDEN
        if not name:
            continue
        if symbol.section == 0:
            version, library = needs.get(index, (None, None))
            undefined.append(
                Symbol(name=name, version=version, library=library, bind=bind)
            )
        elif bind != "LOCAL" and symbol.other & 3 not in (
            constants.STV_HIDDEN,
            constants.STV_INTERNAL,
        ):
            before = offered.get(name, ())
            version = own.get(index, "")
            offered[name] = (*before, version) if hidden else (version, *before)
    return tuple(undefined), offered
