"""Patches of libraries: functions that return the bytes to overwrite in a file."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from core.targets import machs
from tests.support.host_code import unpacked_bundle
from tests.support.whole_code import Edit
from wheelkit.elf import constants, reader
from wheelkit.gpu import bundle
from wheelkit.gpu.bundle_reader import find_bundles

Patches = Sequence[tuple[int, bytes]]
"""Bytes to write at offsets of a file."""

_RELACOUNT = 0x6FFFFFF9
_E_FLAGS = 48


def runpath(file: Path) -> Patches:
    """Prepend a directory of the build machine to the RUNPATH."""
    with reader.open_image(file) as image:
        place, old = _runpath(image)
    new = b"/home/builder/xla/bazel-out/lib:" + old
    return [(place, new[: len(old)])]


def outside_runpath(file: Path) -> Patches:
    """Prepend a folder above site-packages to the RUNPATH."""
    with reader.open_image(file) as image:
        place, old = _runpath(image)
    return [(place, (b"$ORIGIN/../../../../../../tmp/x:" + old)[: len(old)])]


def edited(edit: Edit) -> Callable[[Path], Patches]:
    """Edit a library; the patches are the changed blocks of 64 bytes."""

    def find(file: Path) -> Patches:
        old = file.read_bytes()
        new = bytearray(old)
        edit(new)
        blocks = (slice(at, at + 64) for at in range(0, len(old), 64))
        return [(block.start, bytes(new[block])) for block in blocks if new[block] != old[block]]

    return find


def leaked_needed(name: str) -> Callable[[Path], Patches]:
    """Add a NEEDED entry: the name is written after the RUNPATH, and the entry replaces an optional one."""

    def find(file: Path) -> Patches:
        with reader.open_image(file) as image:
            place, old = _runpath(image)
            data = b"\0" + name.encode() + b"\0"
            assert not any(image.read(place + len(old), len(data))), "there is no space after the RUNPATH"
            table = image.dynamic()
            tags = {entry.tag: entry for entry in table}
            at = place + len(old) + 1 - image.offset_of(tags[constants.DT_STRTAB].value)
            entry = tags[_RELACOUNT]
        return [(place + len(old), data), (entry.offset, constants.DYNAMIC.pack(constants.DT_NEEDED, at))]

    return find


def soname(name: bytes) -> Edit:
    """Set the soname to a name in .dynstr, in place of an optional entry of the dynamic table."""

    def edit(data: bytearray) -> None:
        image = reader.ElfImage.parse(bytes(data), "library")
        strings = image.section(".dynstr")
        assert strings is not None
        entry = next(entry for entry in image.dynamic() if entry.tag == _RELACOUNT)
        at = image.contents(strings).index(name + b"\0")
        constants.DYNAMIC.pack_into(data, entry.offset, constants.DT_SONAME, at)

    return edit


def weak(old: bytes, new: bytes) -> Edit:
    """Rename a symbol in .dynstr, with the bytes around its name, and make it weak."""

    def edit(data: bytearray) -> None:
        image = reader.ElfImage.parse(bytes(data), "library")
        table, strings = image.section(".dynsym"), image.section(".dynstr")
        assert table is not None
        assert strings is not None
        names = [name.encode() for _, name in image.dynamic_symbols()]
        data[table.offset + constants.SYMBOL.size * names.index(old.strip(b"\0")) + 4] = constants.STB_WEAK << 4
        at = strings.offset + image.contents(strings).index(old)
        data[at : at + len(new)] = new

    return edit


def rebound(old: str, new: str) -> Edit:
    """Make calls of one function reach another one."""

    def edit(data: bytearray) -> None:
        image = reader.ElfImage.parse(bytes(data), "library")
        slots, names = image.section(".rela.plt"), [name for _, name in image.dynamic_symbols()]
        assert slots is not None
        for at in range(slots.offset, slots.offset + slots.size, constants.RELA.size):
            place, info, addend = constants.RELA.unpack_from(data, at)
            if info >> 32 == names.index(old):
                constants.RELA.pack_into(data, at, place, names.index(new) << 32 | info & 0xFFFFFFFF, addend)

    return edit


def exchanged(one: str, two: str) -> Edit:
    """Make calls of two functions reach each other."""

    def edit(data: bytearray) -> None:
        image = reader.ElfImage.parse(bytes(data), "library")
        slots, names = image.section(".rela.plt"), [name for _, name in image.dynamic_symbols()]
        assert slots is not None
        other = {names.index(one): names.index(two), names.index(two): names.index(one)}
        for at in range(slots.offset, slots.offset + slots.size, constants.RELA.size):
            place, info, addend = constants.RELA.unpack_from(data, at)
            number = other.get(info >> 32, info >> 32)
            constants.RELA.pack_into(data, at, place, number << 32 | info & 0xFFFFFFFF, addend)

    return edit


def exchanged_names(one: bytes, two: bytes) -> Edit:
    """Register two kernels under each other's names: exchange the addresses that the constructor loads into rcx."""

    def edit(data: bytearray) -> None:
        image = reader.ElfImage.parse(bytes(data), "library")
        names, code = image.section(".rodata"), image.section(".text")
        assert names is not None
        assert code is not None
        first, second = (names.address + image.contents(names).index(b"\0" + name + b"\0") + 1 for name in (one, two))
        other, shift = {first: second, second: first}, code.address - code.offset
        for at in _all(image.contents(code), b"\x48\x8d\x0d"):
            place = code.offset + at + 3
            end = place + 4 + shift
            target = end + int(struct.unpack_from("<i", data, place)[0])
            if target in other:
                struct.pack_into("<i", data, place, other[target] - end)

    return edit


def no_symbols(file: Path) -> Patches:
    """Fill the dynamic symbol table with zeros."""
    with reader.open_image(file) as image:
        section = image.section(".dynsym")
        assert section is not None
        return [(section.offset, bytes(section.size))]


def word(old: bytes, new: bytes, section: str) -> Callable[[Path], Patches]:
    """Replace each occurrence of a word in a section by one of the same length."""
    assert len(old) == len(new)

    def find(file: Path) -> Patches:
        with reader.open_image(file) as image:
            part = image.section(section)
            assert part is not None
            places = [part.offset + at for at in _all(image.contents(part), old)]
        assert places, f"{file.name} has no {old!r}"
        return [(place, new) for place in places]

    return find


def words_exchanged(one: bytes, other: bytes, section: str) -> Callable[[Path], Patches]:
    """Exchange two words of the same length in a section."""
    return lambda file: [*word(one, other, section)(file), *word(other, one, section)(file)]


def newer_glibc(file: Path) -> Patches:
    """Require a symbol version of a newer glibc, with its hash."""
    old, new = b"GLIBC_2.17", b"GLIBC_2.38"
    names = word(old + b"\0", new + b"\0", ".dynstr")(file)
    hashes = word(struct.pack("<I", _hash(old)), struct.pack("<I", _hash(new)), ".gnu.version_r")(file)
    return [*names, *hashes]


def bitcode(file: Path) -> Patches:
    """Damage XLA's largest LLVM module, the device libraries that are linked into kernels, every 4 kB."""
    with reader.open_image(file) as image:
        section = image.section(".rodata")
        assert section is not None
        data = image.contents(section)
    sizes = {place: size for place in _all(data, b"BC\xc0\xde") if (size := _module_size(data, place))}
    largest = max(sizes, key=sizes.__getitem__)
    assert sizes[largest] > 100_000
    return [(section.offset + largest + at, b"\xff" * 64) for at in range(0x1000, sizes[largest], 0x1000)]


def _module_size(data: bytes, place: int) -> int:
    """Return the size of the module block of LLVM bitcode after the identification block; 0 for other data.

    Source: LLVM Bitcode File Format: abbreviation ID 1, block 13 and block 8, lengths in words.
    """
    first = place + 4
    (head, words) = struct.unpack_from("<II", data, first)
    if (head & 3, head >> 2 & 0xFF) != (1, 13):
        return 0
    head, size = struct.unpack_from("<II", data, first + 8 + 4 * words)
    return 4 * int(size) if (head & 3, head >> 2 & 0xFF) == (1, 8) else 0


def first_function(code: bytes) -> Edit:
    """Overwrite the beginning of the first function of 64 bytes, from the table of .eh_frame_hdr."""

    def edit(data: bytearray) -> None:
        image = reader.ElfImage.parse(bytes(data), "library")
        table, text = image.section(".eh_frame_hdr"), image.section(".text")
        assert table is not None
        assert text is not None
        starts = [table.address + start for start, _ in struct.iter_unpack("<ii", image.contents(table)[12:])]
        at = next(one for one, two in pairwise(starts) if one >= text.address and two - one >= 64)
        place = at - text.address + text.offset
        data[place : place + len(code)] = code

    return edit


def _relocations(data: bytearray) -> Iterator[tuple[int, int, int]]:
    """Yield offset, place and addend of the relocated pointers."""
    table = reader.ElfImage.parse(bytes(data), "library").section(".rela.dyn")
    assert table is not None
    for at in range(table.offset, table.offset + table.size, constants.RELA.size):
        place, info, addend = constants.RELA.unpack_from(data, at)
        if info == constants.R_X86_64_RELATIVE:
            yield at, place, addend


def stray_pointer(data: bytearray) -> None:
    """Move the first pointer to machine code by one byte."""
    text = reader.ElfImage.parse(bytes(data), "library").section(".text")
    assert text is not None
    at, addend = next((a, to) for a, _, to in _relocations(data) if text.address <= to < text.address + text.size)
    struct.pack_into("<q", data, at + 16, addend + 1)


def fast_math(data: bytearray) -> None:
    """Overwrite the last constructor by that of crtfastmath.o: stmxcsr, or, ldmxcsr, ret."""
    image = reader.ElfImage.parse(bytes(data), "library")
    array, text = image.section(".init_array"), image.section(".text")
    assert array is not None
    assert text is not None
    *_, place = (to for _, at, to in _relocations(data) if array.address <= at < array.address + array.size)
    code = bytes.fromhex("0fae5c24fc814c24fc408000000fae5424fcc3")
    start = place - text.address + text.offset
    data[start : start + len(code)] = code


def hidden_init(data: bytearray) -> None:
    """Hide the PyInit function."""
    image = reader.ElfImage.parse(bytes(data), "library")
    table, names = image.section(".dynsym"), [name for _, name in image.dynamic_symbols()]
    assert table is not None
    number = next(number for number, name in enumerate(names) if name.startswith("PyInit_"))
    data[table.offset + constants.SYMBOL.size * number + 5] = constants.STV_HIDDEN


def _all(data: bytes, old: bytes) -> list[int]:
    found, at = [], data.find(old)
    while at >= 0:
        found.append(at)
        at = data.find(old, at + 1)
    return found


def _hash(name: bytes) -> int:
    """Compute the hash function of the gABI."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        value = (value ^ (value & 0xF0000000) >> 24) & 0x0FFFFFFF
    return value


def _runpath(image: reader.ElfImage) -> tuple[int, bytes]:
    tags = {entry.tag: entry.value for entry in image.dynamic()}
    place = image.offset_of(tags[constants.DT_STRTAB]) + tags[constants.DT_RUNPATH]
    return place, image.read(place, 4096).partition(b"\0")[0]


# Device code


def device_code(change: Callable[[dict[str, bytes]], None]) -> Callable[[Path], Patches]:
    """Replace code objects (target -> code) in the first bundle, with a right checksum."""

    def find(file: Path) -> Patches:
        first = find_bundles(file)[0]
        plain = unpacked_bundle(file.read_bytes()[first.offset : first.offset + first.size])
        entries = bundle.parse_entries(plain, len(plain))
        code = {entry.id: plain[entry.offset : entry.offset + entry.size] for entry in entries}
        held = {entry.name: code[entry.id] for entry in entries if not entry.is_host}
        change(held)
        parts = [(e.id, code[e.id] if e.is_host else held[e.name]) for e in entries if e.is_host or e.name in held]
        packed = bundle.pack(bundle.build(parts))
        assert len(packed) <= first.capacity
        return [(first.offset, packed + bytes(max(0, first.size - len(packed))))]

    return find


def other_kind(file: Path) -> Patches:
    """Rename gfx942's entry to one of OpenMP, which HIP never loads."""
    first = find_bundles(file)[0]
    plain = unpacked_bundle(file.read_bytes()[first.offset : first.offset + first.size])
    entries = bundle.parse_entries(plain, len(plain))
    parts = [
        (entry.id.replace("hipv4-amdgcn-amd-amdhsa--gfx942", "openmp-amdgcn-amd-amdhsa--gfx942"),
         plain[entry.offset : entry.offset + entry.size])
        for entry in entries
    ]  # fmt: skip
    packed = bundle.pack(bundle.build(parts))
    assert len(packed) <= first.capacity
    return [(first.offset, packed + bytes(max(0, first.size - len(packed))))]


def dynamic(tag: int, value: int) -> Callable[[Path], Patches]:
    """Change an entry of the dynamic table."""

    def find(file: Path) -> Patches:
        with reader.open_image(file) as image:
            entry = next(entry for entry in image.dynamic() if entry.tag == tag)
        return [(entry.offset, constants.DYNAMIC.pack(tag, value))]

    return find


def wrapper(at: int, value: int) -> Callable[[Path], Patches]:
    """Change a number in the first wrapper of a bundle."""

    def find(file: Path) -> Patches:
        with reader.open_image(file) as image:
            section = image.section(".hipFatBinSegment")
            assert section is not None
            return [(section.offset + at, struct.pack("<I", value))]

    return find


def flipped(file: Path) -> Patches:
    """Change one byte in the middle of the first bundle."""
    first = find_bundles(file)[0]
    place = first.offset + first.size // 2
    return [(place, bytes([file.read_bytes()[place] ^ 0x40]))]


def other_processor(held: dict[str, bytes]) -> None:
    """Mark gfx950's code as gfx942 in e_flags."""
    code = bytearray(held["gfx950"])
    code[_E_FLAGS] = machs()["gfx942"]
    held["gfx950"] = bytes(code)


def next_generation(held: dict[str, bytes]) -> None:
    """Use gfx950's code for gfx942, with its name in header and metadata."""
    code = bytearray(held["gfx950"].replace(b"--gfx950", b"--gfx942"))
    code[_E_FLAGS] = machs()["gfx942"]
    held["gfx942"] = bytes(code)


def cut_code(held: dict[str, bytes]) -> None:
    """Fill the second half of gfx942's code with zeros."""
    code = held["gfx942"]
    held["gfx942"] = code[: len(code) // 2] + bytes(len(code) - len(code) // 2)


def other_instructions(held: dict[str, bytes]) -> None:
    """Flip one bit in the machine code of gfx942's kernels."""
    code = bytearray(held["gfx942"])
    text = reader.ElfImage.parse(bytes(code), "code").section(".text")
    assert text is not None
    code[text.offset + text.size // 2] ^= 1
    held["gfx942"] = bytes(code)


def other_kernel(held: dict[str, bytes]) -> None:
    """Rename the kernels of gfx942."""
    held["gfx942"] = held["gfx942"].replace(b"hreeFry2x32", b"hreeFrx2x32")
