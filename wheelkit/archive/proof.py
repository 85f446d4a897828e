"""Writing a spliced stream, and proving while it grows that it inflates to the content that it stands for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from wheelkit.archive.inflate import InflateError, inflate, packed_chunks
from wheelkit.archive.output_file import OutFile
from wheelkit.archive.splice import WINDOW, Fresh, Raw, Splicer
from wheelkit.archive.zip_format import full_pread


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """Bytes [begin, end) of the output, which begin and end a run of blocks, for [start, stop) of the content."""

    begin: int
    end: int
    start: int
    stop: int
    last: bool


def write_proven(
    pool: ThreadPoolExecutor,
    splicer: Splicer,
    pieces: Sequence[Raw | Fresh],
    out: OutFile,
    content: int,
    size: int,
    *,
    unpacked: bool = False,
) -> Iterator[Future[None]]:
    """Write a planned stream; what ends on a byte is inflated and compared at once, beside the writing.

    Args:
        pool: where the proofs run.
        out: where the splicer writes; open for reading, too.
        content: descriptor of the file with the content.
        size: bytes of the content.
        unpacked: raw pieces begin and end where the old stream was taken apart, so they hold what they held. Whether
            the content is still that, the caller checks; only fresh ones are inflated.

    Yields:
        The proofs; each raises InflateError where its part of the stream would hold something else: a changed range
        was not named, or the source is damaged.
    """
    begin, start = out.position, 0
    for number, piece in enumerate(pieces, 1):
        splicer.write(piece)
        last = number == len(pieces)
        if unpacked and isinstance(piece, Raw):
            begin, start = out.position, size if last else pieces[number].start
        elif last or isinstance(piece, Fresh):
            stop = size if last else piece.end
            part = _Part(begin=begin, end=out.position, start=start, stop=stop, last=last)
            yield pool.submit(_prove, out.fd, content, part)
            begin, start = part.end, part.stop


def _prove(out: int, content: int, part: _Part) -> None:
    at = part.start
    window = full_pread(content, min(at, WINDOW), max(0, at - WINDOW))
    packed = packed_chunks(partial(full_pread, out), part.begin, part.end - part.begin)
    for chunk in inflate(packed, window=window, more=lambda: not part.last):
        if full_pread(content, len(chunk), at) != chunk:
            raise InflateError("it differs from the old content outside of the given ranges")
        at += len(chunk)
    if at != part.stop:
        raise InflateError(f"byte {part.stop} of it would be byte {at}")
