"""Decompression of .xz: the bytes of good files, an error for damaged ones."""

from __future__ import annotations

import io
import lzma
import random
import threading
from collections.abc import Generator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import ArchiveError
from core.unpack import decompress
from core.unpack.decompress import chunks_of, decompressed

PLAIN = random.Random(1).randbytes(300_000) + b"words " * 100_000


def unpacked(data: bytes, chunks: Generator[bytes] | None = None) -> bytes:
    with decompressed(chunks or chunks_of(io.BytesIO(data)), "xz") as pieces:
        return b"".join(pieces)


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
