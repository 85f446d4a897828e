"""Decompression of .xz and .zst: the bytes of good files, an error for damaged ones."""

from __future__ import annotations

import io
import lzma
import random
from collections.abc import Callable

import pytest
import zstandard

from core.errors import ArchiveError
from core.unpack import decompress
from core.unpack.decompress import chunks_of, decompressed

PLAIN = random.Random(1).randbytes(300_000) + b"words " * 100_000


def unpacked(data: bytes, compression: str) -> bytes:
    with decompressed(chunks_of(io.BytesIO(data)), compression) as pieces:
        return b"".join(pieces)


def zst(plain: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(plain)


@pytest.mark.parametrize(
    ("compression", "compress"),
    [
        ("xz", lzma.compress),
        ("zst", zst),
    ],
)
def test_decompress_joins_streams_and_detects_damage(
    compression: str, compress: Callable[[bytes], bytes]
) -> None:
    packed = compress(PLAIN)
    assert unpacked(packed + compress(b"second"), compression) == PLAIN + b"second"
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 1
    with pytest.raises(ArchiveError):
        unpacked(bytes(damaged), compression)


def test_decompress_limits_window_of_zst(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = zstandard.ZstdCompressionParameters(
        window_log=27, write_content_size=False
    )
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = packer.compress(PLAIN) + packer.flush()
    assert unpacked(packed, "zst") == PLAIN
    monkeypatch.setattr(decompress, "_ZST_WINDOW", 64 << 20)
    with pytest.raises(ArchiveError, match="memory"):
        unpacked(packed, "zst")
