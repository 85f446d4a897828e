"""Writer of large members from files: unchanged parts of the old stream are copied, and the result is verified."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from isal import isal_zlib

from core.digests import file_sha256
from core.errors import ArchiveError
from wheelkit.archive.blocks import BlockIndex, BlockRun, scan_blocks
from wheelkit.archive.inflate import CHUNK, WINDOW, InflateError, inflate, packed_chunks
from wheelkit.archive.output_file import ByteRange, OutFile
from wheelkit.archive.reader import WheelArchive
from wheelkit.archive.splice import CopiedBits, RecompressedBytes, Splicer, plan_splice, scan_goal
from wheelkit.archive.zip_format import DEFLATED, ZipMember, full_pread


@dataclass(frozen=True, kw_only=True, slots=True)
class FileContent:
    """New content of a member, in a file; `WheelRewrite.set_file` documents `changed` and `blocks`."""

    path: Path
    changed: tuple[ByteRange, ...] | None
    blocks: BlockIndex | None


def file_crc(fd: int, runs: Sequence[BlockRun]) -> int:
    """Read an open file once, and return its CRC-32.

    Raises:
        InflateError: the content of a run, or the window before it, has changed.
    """
    crc = at = 0
    needed = [(max(0, run.content[0] - WINDOW), run.content[1]) for run in runs]
    checksums = [0] * len(runs)
    buffer = memoryview(bytearray(CHUNK))
    while count := os.preadv(fd, [buffer], at):
        crc = isal_zlib.crc32(buffer[:count], crc)
        for number, (begin, end) in enumerate(needed):
            part = buffer[max(begin - at, 0) : min(max(end - at, 0), count)]
            checksums[number] = isal_zlib.crc32(part, checksums[number])
        at += count
    if checksums != [run.crc32 for run in runs]:
        raise InflateError("the file differs from the old content outside the given ranges")
    return crc


def write_file(
    name: str, content: FileContent, fd: int, out: OutFile, *, source: WheelArchive, old: ZipMember | None
) -> tuple[int, str]:
    """Append the content of an open file to the output as a deflate stream.

    Returns:
        CRC-32 and SHA-256 of the content.

    Raises:
        ArchiveError: the written stream does not inflate to the content.
    """
    size = os.fstat(fd).st_size
    pieces = _plan(content, source, old, size)
    runs = content.blocks.runs if content.blocks else ()
    copied = [
        run for run in runs if any(isinstance(piece, CopiedBits) and piece.holds(8 * run.packed) for piece in pieces)
    ]
    splicer = Splicer(out, old=source.fileno(), old_offset=old.data_offset if old else 0, content=fd)
    with ThreadPoolExecutor(2) as pool:
        summing = pool.submit(file_sha256, content.path)  # first, since it takes longest
        checking = pool.submit(file_crc, fd, copied)
        proofs = list(write_and_verify(pool, splicer, pieces, out, fd, size, split=bool(runs)))
        try:
            sums = checking.result(), summing.result()
            for proof in proofs:
                proof.result()
        except InflateError as error:
            raise ArchiveError(
                f"{name} would not have its new content: {error}.",
                hint="Pass every changed range to set_file, or none. If the ranges are right, the source is damaged.",
            ) from error
    return sums


def _plan(
    content: FileContent, source: WheelArchive, old: ZipMember | None, size: int
) -> Sequence[CopiedBits | RecompressedBytes]:
    blocks = content.blocks
    if old is not None and old.method == DEFLATED and content.changed is not None:
        goal = scan_goal(content.changed, old.size, size)
        if blocks is None or not (blocks.complete or blocks.reach >= goal):
            blocks = scan_blocks(source.pread, old.data_offset, old.compressed_size, until=goal)
        if blocks is not None:
            return plan_splice(blocks, content.changed, old.size, size, old.compressed_size)
    return (RecompressedBytes(0, size, last=True),)


def write_and_verify(
    pool: ThreadPoolExecutor,
    splicer: Splicer,
    pieces: Sequence[CopiedBits | RecompressedBytes],
    out: OutFile,
    content: int,
    size: int,
    *,
    split: bool = False,
) -> Iterator[Future[None]]:
    """Write a planned stream; inflate and compare each part that ends on a byte while the next part is written.

    Args:
        out: output of the splicer; must also be open for reading.
        split: True if copied pieces begin and end where the old stream was split, so that their content is known. Only
            recompressed pieces are then inflated; the caller checks that the content of copied pieces is unchanged.

    Yields:
        Pending comparisons. Each raises InflateError if its part does not inflate to the content, because a changed
        range is missing or the source is damaged.
    """
    begin, start = out.position, 0
    for number, piece in enumerate(pieces, 1):
        splicer.write(piece)
        last = number == len(pieces)
        if split and isinstance(piece, CopiedBits):
            begin, start = out.position, size if last else pieces[number].start
        elif last or isinstance(piece, RecompressedBytes):
            stop = size if last else piece.end
            packed = packed_chunks(partial(full_pread, out.fd), begin, out.position - begin)
            yield pool.submit(_verify_part, packed, content, start, stop, last)
            begin, start = out.position, stop


def _verify_part(packed: Iterator[bytes], content: int, start: int, stop: int, last: bool) -> None:
    """Check that whole blocks inflate to bytes [start, stop) of the content; the last part must end the stream."""
    window = full_pread(content, min(start, WINDOW), max(0, start - WINDOW))
    at = start
    for chunk in inflate(packed, window=window, more=lambda: not last):
        if full_pread(content, len(chunk), at) != chunk:
            raise InflateError("the file differs from the old content outside the given ranges")
        at += len(chunk)
    if at != stop:
        raise InflateError(f"the stream ends at byte {at} of the content instead of {stop}")
