"""Decompression of .xz and .zst: the bytes of good files, an error for damaged ones."""

from __future__ import annotations

import io
import lzma
import random

import pytest
import zstandard

from core.errors import ArchiveError
from core.unpack import decompress
from core.unpack.decompress import chunks_of, decompressed

PLAIN = random.Random(1).randbytes(300_000) + b"words " * 100_000


def unpacked(data: bytes, compression: str = "xz") -> bytes:
    with decompressed(chunks_of(io.BytesIO(data)), compression) as pieces:
        return b"".join(pieces)


def zst(plain: bytes, *, size: bool = True, checksum: bool = True) -> bytes:
    return zstandard.ZstdCompressor(
        write_checksum=checksum, write_content_size=size
    ).compress(plain)


def zst_with_window(plain: bytes, window_log: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(
        window_log=window_log, write_content_size=False
    )
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(plain) + packer.flush()


@pytest.mark.parametrize("plain", [b"", b"x", PLAIN], ids=["empty", "small", "large"])
def test_decompress_round_trip(plain: bytes) -> None:
    assert unpacked(lzma.compress(plain)) == plain


def test_decompress_reads_several_streams_and_padding() -> None:
    one = lzma.compress(PLAIN)
    other = lzma.compress(b"second")
    assert (
        unpacked(one + bytes(8) + other + one + bytes(4)) == PLAIN + b"second" + PLAIN
    )
    for bad in (bytes(3), b"no stream at all"):
        with pytest.raises(ArchiveError):
            unpacked(one + bad)
    with pytest.raises(ArchiveError):
        unpacked(one + bytes(3) + other)


def test_decompress_limits_dictionary_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = lzma.compress(PLAIN, preset=9)
    assert unpacked(packed) == PLAIN
    monkeypatch.setattr(
        decompress, "_XZ_MEMORY", 60 << 20
    )  # xz -9 has a dictionary of 64 MB
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


def test_zst_refuses_large_block() -> None:
    start = b"\x28\xb5\x2f\xfd\x00\x88"  # a frame with a window of 128 MB
    block = (2_000_000 << 3 | 1 << 1 | 1).to_bytes(
        3, "little"
    ) + b"x"  # one byte, repeated
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
    cuts = [
        *range(30),
        *(len(good) - 1 - place for place in range(30)),
        *(rng.randrange(len(good)) for _ in range(30)),
    ]
    for place in cuts:
        bad = bytearray(good)
        bad[place] ^= 1 << rng.randrange(8)
        for data in (good[:place], good + good[: place or 1], bytes(bad)):
            with pytest.raises(ArchiveError):
                unpacked(data, compression="zst")
