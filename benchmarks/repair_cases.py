"""Cases of wheelkit in `benchmarks.repair`, which runs each case in a child process.

Usage: python -m benchmarks.repair_cases CASE WHEEL FOLDER; prints JSON with the seconds of the case.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from wheelkit.archive.reader import WheelArchive
from wheelkit.archive.rewrite import WheelRewrite

if TYPE_CHECKING:
    from wheelkit.repair.plan import RepairPlan

# Each case imports only the modules that it needs, as a separate program would.

PLATFORM = "manylinux_2_28_x86_64"
TARGETS = ("gfx942", "gfx950")


def _library(archive: WheelArchive) -> str:
    return max(archive.members, key=lambda member: member.size).name


def _renamed(archive: WheelArchive, folder: Path) -> Path:
    return folder / str(archive.name._replace(platform=PLATFORM))


def _retag(archive: WheelArchive, rewrite: WheelRewrite) -> None:
    path = f"{archive.dist_info}/WHEEL"
    lines = [line for line in archive.read(path).decode().splitlines() if line and not line.startswith("Tag:")]
    tags = archive.name._replace(platform=PLATFORM).tags
    rewrite.set(path, "".join(f"{line}\n" for line in [*lines, *(f"Tag: {tag}" for tag in tags)]).encode())


def retag(wheel: Path, folder: Path) -> None:
    """Change the tag; copy members without unpacking them."""
    with WheelArchive(wheel) as archive:
        rewrite = WheelRewrite(archive)
        _retag(archive, rewrite)
        rewrite.write(_renamed(archive, folder))


def verified(wheel: Path, folder: Path) -> None:
    """Change tag and metadata; check every member against CRC and RECORD, and unpack the library."""
    with WheelArchive(wheel) as archive:
        _verify(archive, folder / "library.so")
        rewrite = WheelRewrite(archive)
        _retag(archive, rewrite)
        path = f"{archive.dist_info}/METADATA"
        rewrite.set(path, archive.read(path).replace(b"Summary: ", b"Summary: repaired ", 1))
        rewrite.write(_renamed(archive, folder))


def _verify(archive: WheelArchive, library: Path) -> None:
    from wheelkit.archive.verify import verify_record

    problems = verify_record(archive, extract={_library(archive): library})
    if problems:
        raise SystemExit(problems[0].message)


def runpath(wheel: Path, folder: Path) -> None:
    """Like `verified`, and edit the library's RUNPATH in place."""
    from wheelkit.elf.runpath import set_runpath

    with WheelArchive(wheel) as archive:
        library = folder / "library.so"
        _verify(archive, library)
        rewrite = WheelRewrite(archive)
        _retag(archive, rewrite)
        rewrite.set_file(_library(archive), library, changed=set_runpath(library, "/opt/rocm/lib"))
        rewrite.write(_renamed(archive, folder))


def scan(wheel: Path, _folder: Path) -> None:
    """Search for the compressed block that follows the changed bytes, as the splice of a RUNPATH does."""
    from wheelkit.archive.blocks import scan_blocks
    from wheelkit.archive.splice import scan_goal

    with WheelArchive(wheel) as archive:
        member = archive[_library(archive)]
        goal = scan_goal([(0x6948, 0x6948 + 6300)], member.size, member.size)
        scan_blocks(archive.pread, member.data_offset, member.compressed_size, until=goal)


def tag_only(wheel: Path, folder: Path) -> None:
    """Run `repair` with a plan that changes tag and metadata only, including auditwheel's verdict."""
    plan = replace(_plan(wheel), strip=False, runpath={}, files={}, hip_soname="", verify_bundles=False)
    _repair(wheel, plan, folder)


def strip(wheel: Path, folder: Path) -> None:
    """Run `repair` with only the work of unpack, strip, patchelf and pack; do not read the fat binaries."""
    _repair(wheel, replace(_plan(wheel), verify_bundles=False), folder)


def full(wheel: Path, folder: Path) -> None:
    """Run `repair` with the recipe's plan, and discard symbols like the stock chain.

    The device code in the library is not verified, as if an earlier build had verified it.
    """
    _repair(wheel, replace(_plan(wheel, *TARGETS), verify_bundles=False), folder)


def full_first(wheel: Path, folder: Path) -> None:
    """Run `repair` as in the first build of an input: keep symbols and compare the MD5 of every old bundle."""
    _repair(wheel, _plan(wheel, *TARGETS), folder, debug_dir=folder / "debug")


def needed(wheel: Path, _folder: Path) -> None:
    """Do only what `full` cannot leave out, in memory and in two threads: the limit of that case.

    The old library is inflated and hashed, all its device code decoded, that of both targets packed with its MD5, and
    what a stripped library keeps hashed again. Editing, writing, auditwheel and Python are left out.
    """
    import hashlib
    import mmap
    import os
    from concurrent.futures import ThreadPoolExecutor

    import zstandard

    from wheelkit.elf.constants import SHF_ALLOC
    from wheelkit.elf.reader import open_image
    from wheelkit.gpu.bundle import HEAD_LIMIT, pack, parse_entries
    from wheelkit.gpu.bundle_reader import BundleLocation, find_bundles
    from wheelkit.gpu.md5_lanes import LANES, Md5Lanes

    def slim(bundles: Sequence[BundleLocation], place: mmap.mmap, rooms: list[bytearray], lanes: Md5Lanes) -> None:
        plains = []
        for number, bundle in enumerate(bundles):
            assert bundle.packed is not None
            stored = library[bundle.offset + bundle.packed.header_size : bundle.offset + bundle.size]
            plain = memoryview(place)[: bundle.content_size]
            with zstandard.ZstdDecompressor().stream_reader(stored, read_size=len(stored)) as stream:
                stream.readinto(plain)  # the whole frame in one step, the fastest way
            entries = parse_entries(bytes(plain[:HEAD_LIMIT]), len(plain))
            kept = [plain[e.offset : e.offset + e.size] for e in entries if e.name in TARGETS]
            assert kept, "a bundle without code for the targets would be less work"
            size = sum(map(len, kept))
            if len(rooms[number]) < size:  # new memory would cost a fifth of the time
                rooms[number] = bytearray(size)
            at = 0
            for part in kept:
                memoryview(rooms[number])[at : at + len(part)] = part
                at += len(part)
            plains.append(memoryview(rooms[number])[:size])
        for content, md5 in zip(plains, lanes.of(plains), strict=True):
            pack(content, md5=md5)

    with WheelArchive(wheel) as archive, ThreadPoolExecutor(2) as pool:
        name, at = _library(archive), 0
        file = os.memfd_create("library")
        os.ftruncate(file, archive[name].size)
        library = mmap.mmap(file, archive[name].size)
        for chunk in archive.chunks(name):
            os.pwrite(file, chunk, at)
            at += len(chunk)
        path = Path(f"/proc/self/fd/{file}")
        with open_image(path) as image:
            end = min(section.offset for section in image.sections if section.offset and not section.flags & SHF_ALLOC)
        bundles = sorted(find_bundles(path), key=lambda bundle: bundle.content_size, reverse=True)
        groups = [bundles[start : start + LANES] for start in range(0, len(bundles), LANES)]

        def half(number: int) -> None:
            place, rooms, lanes = mmap.mmap(-1, bundles[0].content_size), [bytearray()] * LANES, Md5Lanes()
            hashlib.sha256(memoryview(library)[: len(library) if number else end])
            for group in groups[number::2]:
                slim(group, place, rooms, lanes)

        for part in [pool.submit(half, number) for number in range(2)]:
            part.result()


def recompress_isal(wheel: Path, folder: Path) -> None:
    """Run `full` without splicing: ISA-L compresses changed libraries whole, at its best reproducible level."""
    from wheelkit.archive import splice

    compress_piece = splice._compress_piece

    def fast_piece(content: int, start: int, end: int, last: bool, fast: bool) -> bytes:
        del fast
        return compress_piece(content, start, end, last, fast=True)

    splice._compress_piece = fast_piece
    recompress_zlib(wheel, folder)


def recompress_zlib(wheel: Path, folder: Path) -> None:
    """Run `full` without splicing: zlib compresses changed libraries whole, at level 6."""
    from unittest import mock

    from wheelkit.archive.blocks import CutPoints
    from wheelkit.repair import repair as repair_module

    class WholeMembers(WheelRewrite):
        """A rewrite that ignores which ranges of a file changed."""

        def set_file(self, name: str, content: Path, **_: object) -> None:
            super().set_file(name, content)

    with mock.patch.multiple(repair_module, WheelRewrite=WholeMembers, plan_cuts=lambda *_: CutPoints(())):
        full(wheel, folder)


def _repair(wheel: Path, plan: RepairPlan, folder: Path, debug_dir: Path | None = None) -> None:
    from wheelkit.repair.repair import repair

    repair(wheel, plan, folder, debug_dir=debug_dir)


def _plan(wheel: Path, *targets: str) -> RepairPlan:
    from core import versions
    from core.model import BuildRequest, GfxTarget, Payload, RocmVersion
    from pjrt.recipe import repair_plan
    from wheelkit.archive.filename import WheelName

    rocm, version = RocmVersion(text="7.2.0"), WheelName.parse(wheel.name).version
    request = BuildRequest(
        payload=Payload.PUBLISHED,
        jax_version=version,
        rocm_version=rocm,
        python_versions=("3.12",),
        targets=tuple(map(GfxTarget.parse, targets)) or None,
    )
    return repair_plan(request, versions.wheel_version(version, rocm=rocm))


CASES: dict[str, Callable[[Path, Path], None]] = {
    "retag": retag,
    "verified": verified,
    "scan": scan,
    "runpath": runpath,
    "tag-only": tag_only,
    "strip": strip,
    "full": full,
    "full-first": full_first,
    "needed": needed,
    "recompress-isal": recompress_isal,
    "recompress-zlib": recompress_zlib,
}


def main() -> None:
    """Run one case and print its seconds, without the start of the interpreter."""
    case, wheel, folder = sys.argv[1:]
    wall, cpu = time.perf_counter(), time.process_time()
    CASES[case](Path(wheel), Path(folder))
    print(f'{{"wall": {time.perf_counter() - wall}, "cpu": {time.process_time() - cpu}}}')


if __name__ == "__main__":
    main()
