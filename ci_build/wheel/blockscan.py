"""Which deflate blocks of a library its edits ask for."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from ci_build.wheel.archive import Member, WheelArchive
from ci_build.wheel.deflate import BlockIndex, Seam, scan_blocks, scan_end
from ci_build.wheel.elf64 import PF_X, PT_LOAD, first_segments
from ci_build.wheel.splice import WINDOW
from ci_build.wheel.zipformat import DEFLATED


def scan_library(archive: WheelArchive, member: Member) -> BlockIndex | None:
    """The blocks that edits ask for: all but those of the host's code, which nothing here changes."""
    if member.method != DEFLATED:
        return None
    stream = archive.pread, member.data_offset, member.compressed_size
    code = [s for s in first_segments(next(archive.chunks(member.name))) if s.type == PT_LOAD and s.flags & PF_X]
    if not code:
        return scan_blocks(*stream)
    begin, end = code[-1].offset, code[-1].offset + code[-1].file_size
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(scan_blocks, *stream, until=begin + WINDOW)
        rest = scan_end(*stream, total=member.size, goal=end)
        first = start.result()
    return first.joined(rest) if first and rest else scan_blocks(*stream)


def seam_of(scan: Future[BlockIndex | None]) -> Seam | None:
    """Wait for a scan, for its seam."""
    found = scan.result()
    return found.seam if found else None
