"""How each fault of the matrix is put into the published wheels: functions that make a broken case of a good set."""

from __future__ import annotations

import csv
import io
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ci_build.model import GfxTarget
from ci_build.targets import machs
from ci_build.wheel import bundle, elf64
from ci_build.wheel.fatslim import slim
from ci_build.wheel.fatstream import find_bundles
from ci_build.wheel.manifest import Library
from promotion.dirbucket import DirBucket
from promotion.layout import StagedSet
from tests.broken_set import XLA, Bench, Case, Patches

HIP, SPARSE = "libamdhip64.so.7", "libhipsparse.so.4"
PACKAGE = "jax_rocm7_plugin"
_RELACOUNT = 0x6FFFFFF9
_E_FLAGS = 48

Inject = Callable[[Bench], Case]


# The ROCm


def rocm(soname: str, change: Callable[[Library], Library | None]) -> Inject:
    """The set's ROCm has another library, or none, under a soname."""

    def inject(bench: Bench) -> Case:
        libraries = dict(bench.manifest.libraries)
        changed = change(libraries.pop(soname))
        if changed is not None:
            libraries[changed.soname] = changed
        return Case(manifest=replace(bench.manifest, libraries=libraries))

    return inject


def without_symbol(name: str) -> Callable[[Library], Library]:
    """The library without a symbol."""
    return lambda row: replace(row, symbols={key: value for key, value in row.symbols.items() if key != name})


def without_version(version: str) -> Callable[[Library], Library]:
    """The library with a version of another name."""

    def change(row: Library) -> Library:
        assert any(version in versions for versions in row.symbols.values())
        return replace(
            row,
            symbols={
                name: tuple("hip_9.9" if v == version else v for v in versions)
                for name, versions in row.symbols.items()
            },
        )

    return change


def renamed(soname: str) -> Callable[[Library], Library]:
    """The library under another soname."""
    return lambda row: replace(row, soname=soname, path=f"lib/{soname}")


# Libraries


def library(name: str, find: Callable[[Path], Patches]) -> Inject:
    """A library of the plugin wheel with some bytes changed."""
    return lambda bench: bench.case(plugin=bench.patched("plugin", f"{PACKAGE}/{name}", find))


def xla(find: Callable[[Path], Patches]) -> Inject:
    """XLA's plugin with some bytes changed."""
    return lambda bench: bench.case(pjrt=bench.patched("pjrt", XLA, find))


def replaced(name: str, data: Callable[[bytes], bytes]) -> Inject:
    """A library of the plugin wheel with other content."""
    member = f"{PACKAGE}/{name}"
    return lambda bench: bench.case(
        plugin=bench.rewritten("plugin", lambda wheel: wheel.set(member, data(bench.read("plugin", member))))
    )


def half(data: bytes) -> bytes:
    """The first half of a file."""
    return data[: len(data) // 2]


def runpath(file: Path) -> Patches:
    """The RUNPATH names the folder of a build."""
    with elf64.open_image(file) as image:
        place, old = _runpath(image)
    new = b"/home/builder/xla/bazel-out/lib:" + old
    return [(place, new[: len(old)])]


def leaked_needed(name: str) -> Callable[[Path], Patches]:
    """One more NEEDED: its name goes behind the RUNPATH, its entry into the place of an optional one."""

    def find(file: Path) -> Patches:
        with elf64.open_image(file) as image:
            place, old = _runpath(image)
            data = b"\0" + name.encode() + b"\0"
            assert not any(image.read(place + len(old), len(data))), "there is no room behind the RUNPATH"
            table = image.dynamic()
            tags = {entry.tag: entry for entry in table}
            at = place + len(old) + 1 - image.offset_of(tags[elf64.DT_STRTAB].value)
            entry = tags[_RELACOUNT]
        return [(place + len(old), data), (entry.offset, elf64.DYNAMIC.pack(elf64.DT_NEEDED, at))]

    return find


def no_symbols(file: Path) -> Patches:
    """The dynamic symbol table emptied."""
    with elf64.open_image(file) as image:
        section = image.section(".dynsym")
        assert section is not None
        return [(section.offset, bytes(section.size))]


def word(old: bytes, new: bytes, section: str = "") -> Callable[[Path], Patches]:
    """A word of the same length in the place of each one that is there."""
    assert len(old) == len(new)

    def find(file: Path) -> Patches:
        with elf64.open_image(file) as image:
            part = image.section(section) if section else None
            start, data = (part.offset, image.contents(part)) if part else (0, bytes(image.data))
        places = [start + at for at in range(len(data)) if data.startswith(old, at)] if part else _all(data, old)
        assert places, f"{file.name} has no {old!r}"
        return [(place, new) for place in places]

    return find


def newer_glibc(file: Path) -> Patches:
    """A symbol version of a newer glibc, with its hash."""
    old, new = b"GLIBC_2.17", b"GLIBC_2.38"
    names = word(old + b"\0", new + b"\0", ".dynstr")(file)
    hashes = word(struct.pack("<I", _hash(old)), struct.pack("<I", _hash(new)), ".gnu.version_r")(file)
    return [*names, *hashes]


def bitcode(file: Path) -> Patches:
    """The device libraries that XLA links into kernels, the largest LLVM module in it, with damage every 4 kB."""
    with elf64.open_image(file) as image:
        section = image.section(".rodata")
        assert section is not None
        data = image.contents(section)
    sizes = {place: size for place in _all(data, b"BC\xc0\xde") if (size := _module_size(data, place))}
    largest = max(sizes, key=sizes.__getitem__)
    assert sizes[largest] > 100_000
    return [(section.offset + largest + at, b"\xff" * 64) for at in range(0x1000, sizes[largest], 0x1000)]


def _module_size(data: bytes, place: int) -> int:
    """Bytes of the module block of LLVM bitcode, which comes after the identification block; 0 for anything else.

    Source: LLVM Bitcode File Format: abbreviation ID 1, block 13 and block 8, lengths in words.
    """
    first = place + 4
    (head, words) = struct.unpack_from("<II", data, first)
    if (head & 3, head >> 2 & 0xFF) != (1, 13):
        return 0
    head, size = struct.unpack_from("<II", data, first + 8 + 4 * words)
    return 4 * int(size) if (head & 3, head >> 2 & 0xFF) == (1, 8) else 0


def _all(data: bytes, old: bytes) -> list[int]:
    found, at = [], data.find(old)
    while at >= 0:
        found.append(at)
        at = data.find(old, at + 1)
    return found


def _hash(name: bytes) -> int:
    """The hash function of the gABI."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        value = (value ^ (value & 0xF0000000) >> 24) & 0x0FFFFFFF
    return value


def _runpath(image: elf64.Image) -> tuple[int, bytes]:
    tags = {entry.tag: entry.value for entry in image.dynamic()}
    place = image.offset_of(tags[elf64.DT_STRTAB]) + tags[elf64.DT_RUNPATH]
    return place, image.read(place, 4096).partition(b"\0")[0]


# Device code


def device_code(change: Callable[[dict[str, bytes]], None]) -> Callable[[Path], Patches]:
    """The first bundle with other code objects (target -> code), packed with a right checksum."""

    def find(file: Path) -> Patches:
        first = find_bundles(file)[0]
        plain = bundle.unpack(file.read_bytes()[first.offset : first.offset + first.size])
        entries = bundle.parse_entries(plain, len(plain))
        code = {entry.id: plain[entry.offset : entry.offset + entry.size] for entry in entries}
        held = {entry.name: code[entry.id] for entry in entries if not entry.is_host}
        change(held)
        parts = [(e.id, code[e.id] if e.is_host else held[e.name]) for e in entries if e.is_host or e.name in held]
        packed = bundle.pack(bundle.build(parts))
        assert len(packed) <= first.capacity
        return [(first.offset, packed + bytes(max(0, first.size - len(packed))))]

    return find


def flipped(file: Path) -> Patches:
    """One byte in the middle of the first bundle."""
    first = find_bundles(file)[0]
    place = first.offset + first.size // 2
    return [(place, bytes([file.read_bytes()[place] ^ 0x40]))]


def other_processor(held: dict[str, bytes]) -> None:
    """gfx950's code says in e_flags that it is gfx942's."""
    code = bytearray(held["gfx950"])
    code[_E_FLAGS] = machs()["gfx942"]
    held["gfx950"] = bytes(code)


def cut_code(held: dict[str, bytes]) -> None:
    """The second half of gfx942's code is zeros."""
    code = held["gfx942"]
    held["gfx942"] = code[: len(code) // 2] + bytes(len(code) - len(code) // 2)


def other_instructions(held: dict[str, bytes]) -> None:
    """One bit in the machine code of gfx942's kernels."""
    code = bytearray(held["gfx942"])
    text = elf64.Image.parse(bytes(code), "code").section(".text")
    assert text is not None
    code[text.offset + text.size // 2] ^= 1
    held["gfx942"] = bytes(code)


def other_kernel(held: dict[str, bytes]) -> None:
    """The kernels of gfx942 have another name."""
    held["gfx942"] = held["gfx942"].replace(b"hreeFry2x32", b"hreeFrx2x32")


def only_gfx950(bench: Bench) -> Case:
    """Slimmed too far."""
    file = bench.extract("plugin", f"{PACKAGE}/_prng.so", bench.fresh())
    slim(file, [GfxTarget.parse("gfx950")])
    data = file.read_bytes()
    return bench.case(plugin=bench.rewritten("plugin", lambda wheel: wheel.set(f"{PACKAGE}/_prng.so", data)))


def not_slimmed(bench: Bench) -> Case:
    """The library as it was published."""
    with zipfile.ZipFile(bench.real_wheel("jax-rocm7-plugin", "0.10.2", "3.12")) as archive:
        data = archive.read(f"{PACKAGE}/_prng.so")
    return bench.case(plugin=bench.rewritten("plugin", lambda wheel: wheel.set(f"{PACKAGE}/_prng.so", data)))


# Files of a wheel


def without(kind: str, member: str) -> Inject:
    """The wheel without a file."""
    return lambda bench: bench.case(**{kind: bench.without(kind, member)})


def text(kind: str, member: str, old: str, new: str, *, beside: tuple[str, ...] = ()) -> Inject:
    """The wheel with other words in a text, and other good wheels beside it."""

    def inject(bench: Bench) -> Case:
        wheels = {kind: bench.with_text(kind, member, old, new)} | {other: bench.path(other) for other in beside}
        return bench.case(**wheels)

    return inject


def of_another_python(bench: Bench) -> Case:
    """The extension modules of Python 3.11 in the wheel for 3.12."""
    folder = bench.fresh()

    def edit(wheel: object) -> None:
        with zipfile.ZipFile(bench.real_wheel("jax-rocm7-plugin", "0.10.2", "3.11")) as archive:
            for name in (name for name in archive.namelist() if name.endswith(".so")):
                wheel.set_file(name, Path(archive.extract(name, folder)))  # type: ignore[attr-defined]

    return bench.case(plugin=bench.rewritten("plugin", edit))


def record(change: Callable[[list[list[str]]], None]) -> Inject:
    """The plugin wheel with another RECORD."""

    def inject(bench: Bench) -> Case:
        out, name = bench.fresh() / bench.path("plugin").name, f"{bench.info('plugin')}/RECORD"
        rows = list(csv.reader(io.StringIO(bench.read("plugin", name).decode())))
        change(rows)
        target = io.StringIO()
        csv.writer(target, lineterminator="\n").writerows(rows)
        with zipfile.ZipFile(bench.path("plugin")) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
            for item in old.infolist():
                new.writestr(item, target.getvalue() if item.filename == name else old.read(item))
        return bench.case(plugin=out)

    return inject


def twice(rows: list[list[str]]) -> None:
    """One file has two entries."""
    rows.insert(0, next(row for row in rows if row[0].endswith("_rnn.so")))


def wrong_hash(rows: list[list[str]]) -> None:
    """Two files have each other's hashes."""
    one, other = (next(row for row in rows if row[0].endswith(name)) for name in ("_rnn.so", "_prng.so"))
    one[1], other[1] = other[1], one[1]


def unlisted(rows: list[list[str]]) -> None:
    """One file has no entry."""
    rows[:] = [row for row in rows if not row[0].endswith("_rnn.so")]


def damaged_archive(bench: Bench) -> Case:
    """One bit of a compressed member."""
    out = bench.fresh() / bench.path("plugin").name
    data = bytearray(bench.path("plugin").read_bytes())
    with zipfile.ZipFile(bench.path("plugin")) as archive:
        item = archive.getinfo(f"{PACKAGE}/_triton.so")
    data[item.header_offset + item.compress_size // 2] ^= 1
    out.write_bytes(data)
    return bench.case(plugin=out)


# Sets


def newer_jaxlib(bench: Bench) -> Case:
    """jax and jaxlib of the next release."""
    case = bench.case(jaxlib=bench.real_wheel("jaxlib", "0.12.0", "3.12"), plugin=bench.path("plugin"))
    return replace(case, fields={"pins": {"jax": "0.12.0"}})


def older_jaxlib(bench: Bench) -> Case:
    """jax and jaxlib of the release before that of the other wheels."""
    wheels = {
        kind: bench.real_wheel(project, "0.12.0", "3.12")
        for kind, project in (("pjrt", "jax-rocm7-pjrt"), ("plugin", "jax-rocm7-plugin"))
    }
    fields = {"pins": {"jax": "0.10.2"}, "rocm_version": "7.14.0"}
    return Case(wheels=wheels | {"jaxlib": bench.path("jaxlib")}, fields=fields)


def altered_after_staging(bench: Bench) -> Case:
    """One byte of a staged wheel."""

    def tamper(bucket: DirBucket, staged: StagedSet) -> None:
        path = bucket.path(staged.file(bench.path("plugin").name))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.unlink()
        path.write_bytes(data)

    return Case(manifest=bench.manifest, tamper=tamper)
