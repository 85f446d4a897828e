"""Decompression of .xz: the same bytes as liblzma for good files, an error for damaged ones."""

from __future__ import annotations

import io
import lzma
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import ArchiveError
from core.unpack.decompress import chunks_of, decompressed
from tests.support.made_xz import pack

PLAIN = random.Random(1).randbytes(300_000) + b"words " * 100_000
SIZE = 100_000


def unpacked(data: bytes | io.BytesIO) -> bytes:
    with decompressed(chunks_of(io.BytesIO(data) if isinstance(data, bytes) else data), "xz") as pieces:
        return b"".join(pieces)


@pytest.mark.parametrize("plain", [b"", b"x", PLAIN], ids=["empty", "small", "large"])
def test_decompress_round_trip(plain: bytes) -> None:
    blocks, stream = pack(plain, SIZE), lzma.compress(plain)
    assert lzma.decompress(blocks) == plain
    assert unpacked(blocks) == plain
    assert unpacked(stream) == plain


def test_decompress_reads_several_streams_and_padding() -> None:
    one, other = pack(PLAIN, SIZE), lzma.compress(b"second")
    assert unpacked(one + bytes(8) + other + one + bytes(4)) == PLAIN + b"second" + PLAIN
    with pytest.raises(ArchiveError):
        unpacked(one + bytes(3))
    with pytest.raises(ArchiveError):
        unpacked(one + b"no stream at all")


def test_decompress_handles_short_reads() -> None:
    class FakeTrickle(io.BytesIO):
        def read(self, count: int | None = -1, /) -> bytes:
            return super().read(min(3, count or 0))

    packed = pack(b"first", SIZE) + bytes(8) + lzma.compress(b"second") + bytes(4)
    assert unpacked(FakeTrickle(packed)) == b"firstsecond"


def test_decompress_limits_dictionary_memory() -> None:
    assert unpacked(pack(PLAIN, SIZE, dictionary=30)) == PLAIN
    with pytest.raises(ArchiveError, match="needs too much memory"):
        unpacked(pack(PLAIN, SIZE, dictionary=40))


def test_decompress_detects_every_damage() -> None:
    good = pack(PLAIN[:250_000], SIZE)
    rng = random.Random(2)
    ends = [*range(40), *(len(good) - 1 - place for place in range(60))]
    for place in [*ends, *(rng.randrange(len(good)) for _ in range(60))]:
        bad = bytearray(good)
        bad[place] ^= 1 << rng.randrange(8)
        with pytest.raises(ArchiveError):
            unpacked(bytes(bad))


@settings(max_examples=20, deadline=None)
@given(cut=st.floats(0, 1, exclude_max=True), size=st.sampled_from([0, SIZE]))
def test_decompress_refuses_truncated_file(cut: float, size: int) -> None:
    good = pack(PLAIN[:150_000], size) if size else lzma.compress(PLAIN[:150_000])
    with pytest.raises(ArchiveError):
        unpacked(good[: int(len(good) * cut)])


def test_decompress_can_be_closed_early() -> None:
    before = threading.active_count()
    with decompressed(chunks_of(io.BytesIO(pack(PLAIN, SIZE))), "xz") as pieces:
        assert bytes(next(pieces)[:10]) == PLAIN[:10]
    assert threading.active_count() == before
