"""What device code offers and what host code registers: kernels by name, bundles by address."""

from __future__ import annotations

import struct
from collections.abc import Collection
from pathlib import Path

from ci_build.wheel import code_object, elf64
from ci_build.wheel.bundle import Entry
from ci_build.wheel.fatstream import BundleAt, Reader, each, find_bundles

_BLOCK = 8 << 20
_R_RELATIVE = 8  # R_X86_64_RELATIVE, System V ABI for AMD64
_WRAPPER = struct.Struct("<IIQQ")  # magic, version, bundle address, unused: what __hipRegisterFatBinary gets
_WRAPPER_MAGIC = 0x48495046  # "HIPF"


def kernels(path: Path, *, name: str = "", threads: int = 2) -> dict[str, frozenset[str]]:
    """Names of the kernels in a file per target, over all its bundles.

    Streams: besides the names, one code object per thread is in memory.

    Args:
        path: an ELF file.
        name: what errors call it.
        threads: each needs up to 130 MiB for 0.10.2's bundles.

    Raises:
        ElfError: not an ELF file, or a damaged code object.
        FatbinError: a damaged bundle; MD5s are not checked.
    """

    def code_of(entry: Entry) -> int:
        return entry.size if entry.target else 0

    # Targets have nearly the same names: keep one string for each.
    shared: dict[str, str] = {}

    def scan(reader: Reader, bundle: BundleAt) -> list[tuple[str, list[str]]]:
        found = []
        for entry, code in reader.objects(bundle, code_of, verify=False):
            label = f"{bundle.label}: bundle {bundle.index}: {entry.name}"
            names = [shared.setdefault(kernel, kernel) for kernel in code_object.kernels(code, label)]
            found.append((entry.name, names))
        return found

    result: dict[str, set[str]] = {}
    for found in each(path, find_bundles(path, name=name), scan, threads=threads):
        for target, names in found:
            result.setdefault(target, set()).update(names)
    return {target: frozenset(names) for target, names in sorted(result.items())}


def registered_kernels(path: Path, names: Collection[str]) -> frozenset[str]:
    """Which of the kernel names the host code knows: those that stand as whole strings in its read-only data.

    HIP registers a kernel under its mangled name, a C string in .rodata.

    Raises:
        ElfError: not an ELF file.
    """
    wanted = {name.encode(): name for name in names}
    found: set[str] = set()
    with elf64.open_image(path) as image:
        for section in image.sections:
            if not section.name.startswith(".rodata"):
                continue
            rest, end = b"", section.offset + section.file_size
            for position in range(section.offset, end, _BLOCK):
                *strings, rest = (rest + image.read(position, min(_BLOCK, end - position))).split(b"\0")
                found.update(wanted[text] for text in wanted.keys() & set(strings))
    return frozenset(found)


def bundle_pointers(path: Path) -> tuple[int, ...]:
    """Addresses of the bundles that the host code registers: what the wrappers in .hipFatBinSegment point at.

    The pointer is the addend of a relative relocation, or stands in the file where the linker left it there.
    """
    with elf64.open_image(path) as image:
        wrappers = image.section(".hipFatBinSegment")
        if wrappers is None:
            return ()
        table = image.contents(wrappers)
        pointers = {}
        for place in range(0, len(table) - _WRAPPER.size + 1, _WRAPPER.size):
            magic, _, pointer, _ = _WRAPPER.unpack_from(table, place)
            if magic == _WRAPPER_MAGIC:
                pointers[wrappers.address + place + 8] = pointer
        for section in image.sections:
            if section.type == elf64.SHT_RELA and section.flags & elf64.SHF_ALLOC:
                content = image.contents(section)
                for where, info, addend in struct.iter_unpack("<QQq", content[: len(content) // 24 * 24]):
                    if where in pointers and info & 0xFFFFFFFF == _R_RELATIVE:
                        pointers[where] = addend
    return tuple(pointers.values())
