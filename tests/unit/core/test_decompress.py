"""Decompression of .xz and .zst: the bytes of good files, an error for damaged ones."""

from __future__ import annotations

import io
import lzma
import random
import threading
from collections.abc import Generator

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import ArchiveError
from core.unpack import decompress
from core.unpack.decompress import chunks_of, decompressed

PLAIN = random.Random(1).randbytes(300_000) + b"words " * 100_000


def unpacked(data: bytes, chunks: Generator[bytes] | None = None, compression: str = "xz") -> bytes:
    with decompressed(chunks or chunks_of(io.BytesIO(data)), compression) as pieces:
        return b"".join(pieces)


def zst(plain: bytes, *, size: bool = True, checksum: bool = True) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=size).compress(plain)


def zst_with_window(plain: bytes, window_log: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log, write_content_size=False)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(plain) + packer.flush()


@pytest.mark.parametrize("plain", [b"", b"x", PLAIN], ids=["empty", "small", "large"])
def test_decompress_round_trip(plain: bytes) -> None:
    assert unpacked(lzma.compress(plain)) == plain


def test_decompress_reads_several_streams_and_padding() -> None:
    one, other = lzma.compress(PLAIN), lzma.compress(b"second")
    assert unpacked(one + bytes(8) + other + one + bytes(4)) == PLAIN + b"second" + PLAIN
    for bad in (bytes(3), b"no stream at all"):
        with pytest.raises(ArchiveError):
            unpacked(one + bad)
    with pytest.raises(ArchiveError):
        unpacked(b"", (part for part in (one, bytes(3) + b"no stream", bytes(1))))


def test_decompress_handles_short_chunks() -> None:
    packed = lzma.compress(b"first") + bytes(8) + lzma.compress(b"second") + bytes(4)
    assert unpacked(b"", (packed[at : at + 3] for at in range(0, len(packed), 3))) == b"firstsecond"


def test_decompress_limits_dictionary_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = lzma.compress(PLAIN, preset=9)
    assert unpacked(packed) == PLAIN
    monkeypatch.setattr(decompress, "_XZ_MEMORY", 60 << 20)  # xz -9 has a dictionary of 64 MB
    with pytest.raises(ArchiveError, match="needs too much memory"):
        unpacked(packed)


def test_decompress_detects_every_damage() -> None:
    good = lzma.compress(PLAIN[:250_000])
    rng = random.Random(2)
    ends = [*range(40), *(len(good) - 1 - place for place in range(60))]
    for place in [*ends, *(rng.randrange(len(good)) for _ in range(60))]:
        bad = bytearray(good)
        bad[place] ^= 1 << rng.randrange(8)
        with pytest.raises(ArchiveError):
            unpacked(bytes(bad))


@settings(max_examples=20, deadline=None)
@given(cut=st.floats(0, 1, exclude_max=True))
def test_decompress_refuses_truncated_file(cut: float) -> None:
    good = lzma.compress(PLAIN[:150_000])
    with pytest.raises(ArchiveError):
        unpacked(good[: int(len(good) * cut)])


def test_decompress_can_be_closed_early() -> None:
    before = threading.active_count()
    with decompressed(chunks_of(io.BytesIO(lzma.compress(PLAIN))), "xz") as pieces:
        assert next(pieces)[:10] == PLAIN[:10]
    assert threading.active_count() == before


@pytest.mark.parametrize("plain", [b"", b"x", bytes(200_000), PLAIN], ids=["empty", "small", "zeros", "large"])
@pytest.mark.parametrize("size", [True, False])
@pytest.mark.parametrize("checksum", [True, False])
def test_zst_round_trip(plain: bytes, size: bool, checksum: bool) -> None:
    assert unpacked(zst(plain, size=size, checksum=checksum), compression="zst") == plain


def test_zst_frames_are_concatenated() -> None:
    skippable = b"\x5f\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"
    packed = skippable + zst(PLAIN) + zst(b"second", size=False) + skippable + zst(b"third", checksum=False) + skippable
    assert unpacked(packed, compression="zst") == PLAIN + b"secondthird"
    parts = (packed[at : at + 3] for at in range(0, len(packed), 3))
    assert unpacked(b"", parts, compression="zst") == PLAIN + b"secondthird"


def test_zst_pieces_are_small() -> None:
    packed = zst_with_window(bytes(64 << 20), 27)
    assert len(packed) < 10_000
    with decompressed(chunks_of(io.BytesIO(packed)), "zst") as pieces:
        sizes = [len(piece) for piece in pieces]
    assert max(sizes) <= decompress._PIECE
    assert sum(sizes) == 64 << 20


def test_zst_refuses_large_block() -> None:
    start = b"\x28\xb5\x2f\xfd\x00\x88"  # a frame with a window of 128 MB
    block = (2_000_000 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"x"  # one byte, repeated
    with pytest.raises(ArchiveError, match="a block has 2000000 bytes"):
        unpacked(start + block, compression="zst")


def test_zst_limits_window(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = zst_with_window(PLAIN, 27)
    assert unpacked(packed, compression="zst") == PLAIN
    monkeypatch.setattr(decompress, "_ZST_WINDOW", 64 << 20)
    with pytest.raises(ArchiveError, match="needs too much memory"):
        unpacked(packed, compression="zst")


def test_zst_detects_truncation_and_damage() -> None:
    good = zst(PLAIN[:250_000])
    rng = random.Random(2)
    cuts = [*range(30), *(len(good) - 1 - place for place in range(30)), *(rng.randrange(len(good)) for _ in range(30))]
    for place in cuts:
        bad = bytearray(good)
        bad[place] ^= 1 << rng.randrange(8)
        for data in (good[:place], good + good[: place or 1], bytes(bad)):
            with pytest.raises(ArchiveError):
                unpacked(data, compression="zst")
