"""Writing a big member from a file: spliced where its old self can serve, summed and proven on all cores."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from isal import isal_zlib

from core.errors import ArchiveError
from wheelkit.archive.archive import WheelArchive
from wheelkit.archive.deflate import BlockIndex, Run, scan_blocks
from wheelkit.archive.inflate import CHUNK, InflateError
from wheelkit.archive.output_file import OutFile
from wheelkit.archive.proof import write_proven
from wheelkit.archive.splice import WINDOW, Fresh, Range, Raw, Splicer, plan_splice, scan_goal
from wheelkit.archive.zip_format import DEFLATED, Member


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """New content from a file; `changed` and `blocks` as `WheelRewrite.set_file` takes them."""

    path: Path
    changed: tuple[Range, ...] | None
    blocks: BlockIndex | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sums:
    """What a zip archive and RECORD want to know of a file: CRC-32, and SHA-256 in hexadecimal."""

    crc32: int
    sha256: str


def file_sums(fd: int, runs: Sequence[Run] = ()) -> Sums:
    """Read an open file once, from its beginning.

    Raises:
        InflateError: what belongs to one of the runs is not what it was.
    """
    crc, digest, at = 0, hashlib.sha256(), 0
    needed = [(max(0, run.content[0] - WINDOW), run.content[1]) for run in runs]
    found = [0] * len(runs)
    buffer = memoryview(bytearray(CHUNK))
    while count := os.preadv(fd, [buffer], at):
        crc = isal_zlib.crc32(buffer[:count], crc)
        digest.update(buffer[:count])
        for number, (begin, end) in enumerate(needed):
            part = buffer[max(begin - at, 0) : min(max(end - at, 0), count)]
            found[number] = isal_zlib.crc32(part, found[number])
        at += count
    if found != [run.crc32 for run in runs]:
        raise InflateError("it differs from the old content outside of the given ranges")
    return Sums(crc32=crc, sha256=digest.hexdigest())


def write_file(name: str, content: Content, fd: int, out: OutFile, *, source: WheelArchive, old: Member | None) -> Sums:
    """Append the deflated content of an open file.

    Args:
        name: the member, for errors.
        content: what is known about the file.
        fd: its descriptor.
        out: the new archive.
        source: the old archive, open.
        old: the member as it was there, if it was.

    Raises:
        ArchiveError: what was written would not be the content.
    """
    size = os.fstat(fd).st_size
    pieces = _plan(content, source, old, size)
    runs = content.blocks.runs if content.blocks else ()
    copied = [run for run in runs if any(isinstance(piece, Raw) and piece.holds(8 * run.packed) for piece in pieces)]
    splicer = Splicer(out, old=source.fileno(), old_offset=old.data_offset if old else 0, content=fd)
    with ThreadPoolExecutor(2) as pool:
        summing = pool.submit(file_sums, fd, copied)  # first, for it takes the longest
        proofs = list(write_proven(pool, splicer, pieces, out, fd, size, unpacked=bool(runs)))
        try:
            sums = summing.result()
            for proof in proofs:
                proof.result()
        except InflateError as error:
            raise ArchiveError(
                f"{name} would not hold its new content: {error}.",
                hint="Give set_file every changed range, or none; if they are right, the source is damaged.",
            ) from error
    return sums


def _plan(content: Content, source: WheelArchive, old: Member | None, size: int) -> Sequence[Raw | Fresh]:
    blocks = content.blocks
    if old is not None and old.method == DEFLATED and content.changed is not None:
        goal = scan_goal(content.changed, old.size, size)
        if blocks is None or not (blocks.complete or blocks.reach >= goal):
            blocks = scan_blocks(source.pread, old.data_offset, old.compressed_size, until=goal)
        if blocks is not None:
            return plan_splice(blocks, content.changed, old.size, size, old.compressed_size)
    return (Fresh(0, size, last=True),)
