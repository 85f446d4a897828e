"""Block boundaries, and spliced streams in which only some ranges are recompressed."""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from isal import isal_zlib

from core.errors import ArchiveError
from wheelkit.archive import splice
from wheelkit.archive.blocks import BlockIndex, scan_blocks
from wheelkit.archive.file_member import write_and_verify
from wheelkit.archive.output_file import OutFile
from wheelkit.archive.splice import CopiedBits, RecompressedBytes, Splicer, plan_splice, scan_goal

Ranges = list[tuple[int, int]]


def noise(size: int, seed: int) -> bytes:
    return hashlib.shake_256(seed.to_bytes(8, "little")).digest(size)


def text(size: int, seed: int) -> bytes:
    """Return bytes that deflate compresses to about half."""
    return noise(size, seed).translate(bytes(b % 11 + 65 for b in range(256)))


def deflated(data: bytes, *, level: int = 6, memory: int = 8, strategy: int = 0, flushes: Sequence[int] = ()) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -15, memory, strategy)
    out = b""
    step = len(data) // (len(flushes) + 1) + 1
    for at, mode in enumerate([*flushes, zlib.Z_FINISH]):
        out += packer.compress(data[at * step : (at + 1) * step]) + packer.flush(mode)
    return out


def scan(packed: bytes, until: int | None = None) -> BlockIndex:
    index = scan_blocks(lambda size, at: packed[at : at + size], 0, len(packed), until=until)
    assert index is not None, "this machine lacks libz.so.1"
    return index


def spliced(
    old: bytes, packed: bytes, new: bytes, changed: Ranges, *, index: BlockIndex | None = None
) -> tuple[bytes, list[CopiedBits | RecompressedBytes]]:
    """Splice in files, like the product, and return the new stream and its plan."""
    index = index or scan(packed, scan_goal(changed, len(old), len(new)))
    plan = plan_splice(index, changed, len(old), len(new), len(packed))
    with tempfile.TemporaryFile() as archive, tempfile.TemporaryFile() as content, tempfile.TemporaryFile() as out:
        archive.write(b"header" + packed + b"more")
        content.write(new)
        archive.flush()
        content.flush()
        target = OutFile(out.fileno())
        target.write(b"before")
        splicer = Splicer(target, old=archive.fileno(), old_offset=6, content=content.fileno())
        with ThreadPoolExecutor(2) as pool:
            for proof in list(write_and_verify(pool, splicer, plan, target, content.fileno(), len(new))):
                proof.result()
        return os.pread(out.fileno(), target.position + 100, 6), list(plan)


def inflated(stream: bytes) -> bytes:
    """Inflate with zlib and with isal, which must agree and end at the last byte."""
    results: list[bytes] = []
    for library in (zlib, isal_zlib):
        inflater = library.decompressobj(-15)
        results.append(inflater.decompress(stream))
        assert inflater.eof
        assert inflater.unused_data == b""
    assert results[0] == results[1]
    return results[0]


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """Generate up to about 300 KB in stretches of zeros, text and noise."""
    parts = draw(st.lists(st.tuples(st.sampled_from("ztn"), st.integers(0, 90_000), st.integers(0, 9)), max_size=5))
    return b"".join(bytes(n) if kind == "z" else (text if kind == "t" else noise)(n, seed) for kind, n, seed in parts)


@st.composite
def edits(draw: st.DrawFn, size: int) -> tuple[Ranges, int]:
    """Generate some ranges and a new size."""
    new_size = draw(st.one_of(st.just(size), st.integers(0, size), st.integers(size, size + 5000)))
    ranges = []
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, size))
        ranges.append((start, draw(st.integers(start, min(size, start + draw(st.sampled_from([1, 300, 50_000])))))))
    return ranges, new_size


FLUSHES = st.lists(
    st.sampled_from([zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH, zlib.Z_PARTIAL_FLUSH, zlib.Z_BLOCK]), max_size=6
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_splice_any_edit_inflates_to_new_content(data: st.DataObject) -> None:
    old = data.draw(contents())
    packed = deflated(
        old,
        level=data.draw(st.integers(0, 9)),
        memory=data.draw(st.sampled_from([1, 1, 2, 8, 9])),
        strategy=data.draw(
            st.sampled_from([zlib.Z_DEFAULT_STRATEGY, zlib.Z_FILTERED, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED])
        ),
        flushes=data.draw(FLUSHES),
    )
    changed, new_size = data.draw(edits(len(old)))
    new = bytearray(old[:new_size].ljust(new_size, b"+"))
    for start, end in changed:
        piece = data.draw(st.sampled_from([bytes, lambda n: noise(n, 77), lambda n: text(n, 78)]))(end - start)
        new[start:end] = piece[: max(0, new_size - start)]
    full = data.draw(st.booleans())
    stream, _ = spliced(old, packed, bytes(new), changed, index=scan(packed) if full else None)
    assert inflated(stream) == bytes(new)


def test_splice_small_edit_recompresses_little() -> None:
    old = text(3_000_000, 1)
    packed = deflated(old)
    new = old[:1_500_000] + b"!" * 50 + old[1_500_050:]
    stream, plan = spliced(old, packed, new, [(1_500_000, 1_500_050)])
    assert inflated(stream) == new
    assert [type(piece) for piece in plan] == [CopiedBits, RecompressedBytes, CopiedBits]
    assert isinstance(plan[1], RecompressedBytes)
    assert plan[1].end - plan[1].start < 300_000
    assert abs(len(stream) - len(packed)) < 4000


def test_plan_splice_joins_near_edits_only() -> None:
    old = text(4_000_000, 2)
    packed = deflated(old)
    index = scan(packed)
    near = plan_splice(index, [(1_000_000, 1_000_001), (1_010_000, 1_010_001)], len(old), len(old), len(packed))
    far = plan_splice(index, [(3_000_000, 3_000_001), (1_000_000, 1_000_001)], len(old), len(old), len(packed))
    assert [type(piece) for piece in near] == [CopiedBits, RecompressedBytes, CopiedBits]
    assert [type(piece) for piece in far] == [CopiedBits, RecompressedBytes, CopiedBits, RecompressedBytes, CopiedBits]


def test_splice_reaches_every_bit_position() -> None:
    """Raw runs begin and end at each even bit, so that each padding is used."""
    old = text(200_000, 3)
    packed = deflated(old, memory=1)
    index = scan(packed)
    phases = set()
    for start in range(0, 150_000, 3_000):
        new = old[:start] + b"#" + old[start + 1 :]
        stream, plan = spliced(old, packed, new, [(start, start + 1)], index=index)
        assert inflated(stream) == new
        phases |= {piece.start % 8 for piece in plan if isinstance(piece, CopiedBits)}
    assert phases == {0, 2, 4, 6}


def test_splice_copies_blocks_bit_for_bit(tmp_path: Path) -> None:
    """Every start and length near byte boundaries: short runs end in the byte where they begin, or in the next one."""
    old = noise(8, 10)
    (tmp_path / "old").write_bytes(old)

    def bits(data: bytes, start: int, end: int) -> int:
        return (int.from_bytes(data, "little") & (1 << end) - 1) >> start

    with (tmp_path / "old").open("rb") as source, (tmp_path / "new").open("w+b") as out:
        for start in range(0, 16, 2):
            for end in range(start + 1, 50):
                target = OutFile(out.fileno())
                splicer = Splicer(target, old=source.fileno(), old_offset=0, content=source.fileno())
                splicer.write(CopiedBits(start, end))
                splicer.write(RecompressedBytes(0, 0, last=True))
                data = os.pread(out.fileno(), target.position, 0)
                padding = 10 * next(n for n in range(4) if 10 * n % 8 == start % 8)
                at = padding + end - start
                assert bits(data, padding, at) == bits(old, start, end), (start, end)
                assert data.endswith((b"\0\0\xff\xff\3\0", b"\3\0") if at % 8 == 0 else b"\0\0\xff\xff\3\0")
                assert bits(data, at, at + 3) == 0 or at % 8 == 0


def test_splice_without_changes_gives_same_stream() -> None:
    old = text(100_000, 4)
    packed = deflated(old)
    assert spliced(old, packed, old, [])[0] == packed


def test_splice_shorter_and_longer_content() -> None:
    old = text(1_000_000, 5)
    packed = deflated(old)
    for new in (old[:600_000], old + b"tail" * 500, b"", old[:1]):
        stream, plan = spliced(old, packed, new, [])
        assert inflated(stream) == new
        assert isinstance(plan[-1], RecompressedBytes)
        assert plan[-1].last


def test_scan_blocks_stops_at_goal() -> None:
    packed = deflated(text(2_000_000, 6))
    index = scan(packed, until=300_000)
    assert 300_000 <= index.reach < 600_000
    assert not index.complete
    whole = scan(packed)
    assert whole.complete
    assert whole.reach == 2_000_000
    assert whole.offsets[: len(index.offsets)] == index.offsets
    with pytest.raises(ArchiveError, match="scanned only to byte"):
        plan_splice(index, [(1_000_000, 1_000_001)], 2_000_000, 2_000_000, len(packed))


def test_scan_blocks_returns_block_boundaries() -> None:
    """From each byte-aligned boundary on, zlib inflates the rest with the right window."""
    old = text(500_000, 7)
    packed = deflated(old, flushes=[zlib.Z_SYNC_FLUSH] * 9)
    index = scan(packed)
    aligned = [(o, b) for o, b in zip(index.offsets, index.bits, strict=True) if b % 8 == 0]
    assert len(aligned) > 9
    for offset, bit in aligned:
        inflater = zlib.decompressobj(-15, zdict=old[max(0, offset - 32768) : offset])
        assert inflater.decompress(packed[bit // 8 :]) == old[offset:]


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"\xff" * 99, lambda data: b""])
def test_scan_blocks_refuses_damaged_stream(damage: object) -> None:
    assert callable(damage)
    with pytest.raises(ArchiveError, match="deflate stream is damaged"):
        scan(damage(deflated(text(300_000, 8))))


def test_scan_blocks_without_libz_returns_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert scan_blocks(lambda size, at: b"", 0, 0) is None


def test_compress_joins_pieces_of_all_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splice, "PIECE", 50_000)
    new = text(420_000, 9)
    for content in (new, b"", new[:50_000]):
        path = tmp_path / "content"
        path.write_bytes(content)
        with path.open("rb") as file:
            assert inflated(b"".join(splice.compress(file.fileno(), 0, len(content), last=True))) == content
            with pytest.raises(ArchiveError, match="ends at byte"):
                list(splice.compress(file.fileno(), 0, len(content) + 1, last=True))


def test_out_file_copies_without_fallocate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    def cannot(*args: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "not this file system")

    (tmp_path / "a").write_bytes(noise(3_000_000, 1))
    with (tmp_path / "a").open("rb") as source, (tmp_path / "b").open("wb") as out:
        monkeypatch.setattr(os, "posix_fallocate", cannot)
        OutFile(out.fileno()).copy(source.fileno(), 5, 2_500_000)
        with pytest.raises(ArchiveError, match="ended 1 bytes early"):
            OutFile(out.fileno()).copy(source.fileno(), 0, 3_000_001)
    assert (tmp_path / "b").read_bytes()[:2_500_000] == noise(3_000_000, 1)[:2_500_000]
