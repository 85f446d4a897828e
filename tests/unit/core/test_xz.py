"""XzFile against liblzma: the same bytes of everything good, an error for everything bad."""

from __future__ import annotations

import io
import lzma
import random
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.unpack import xz
from core.unpack.xz import XzFile
from tests.support.made_xz import pack

PLAIN = random.Random(1).randbytes(300_000) + b"words " * 100_000
SIZE = 100_000


def unpacked(data: bytes, workers: int = 2) -> bytes:
    with XzFile(io.BytesIO(data), workers) as file:
        return file.read()


@pytest.mark.parametrize("plain", [b"", b"x", PLAIN], ids=["empty", "small", "large"])
def test_what_is_packed_is_unpacked(plain: bytes) -> None:
    blocks, stream = pack(plain, SIZE), lzma.compress(plain)
    assert lzma.decompress(blocks) == plain
    assert unpacked(blocks) == plain
    assert unpacked(stream) == plain


def test_streams_and_padding_follow_each_other() -> None:
    one, other = pack(PLAIN, SIZE), lzma.compress(b"second")
    assert unpacked(one + bytes(8) + other + one + bytes(4)) == PLAIN + b"second" + PLAIN
    with pytest.raises((lzma.LZMAError, EOFError)):
        unpacked(one + bytes(3))
    with pytest.raises(lzma.LZMAError):
        unpacked(one + b"no stream at all")


def test_a_source_may_give_less_than_it_is_asked_for() -> None:
    class FakeTrickle(io.BytesIO):
        def read(self, count: int | None = -1, /) -> bytes:
            return super().read(min(3, count or 0))

    with XzFile(FakeTrickle(pack(b"first", SIZE) + bytes(8) + lzma.compress(b"second") + bytes(4)), 2) as file:
        assert file.read() == b"firstsecond"


def test_blocks_are_inflated_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2, timeout=20)
    inflate = xz._inflate

    def meet(head: bytes, block: xz._Block, rest: bytes) -> list[bytes]:
        together.wait()
        return inflate(head, block, rest)

    monkeypatch.setattr(xz, "_inflate", meet)
    assert unpacked(pack(PLAIN[:400_000], SIZE)) == PLAIN[:400_000]


@pytest.mark.parametrize("most", [1, SIZE, 250_000])
def test_no_more_is_held_than_may_be(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    held: list[int] = []
    inflate = xz._inflate
    monkeypatch.setattr(xz, "MOST", most)

    def count(head: bytes, block: xz._Block, rest: bytes) -> list[bytes]:
        held.append(block.plain)
        return inflate(head, block, rest)

    monkeypatch.setattr(xz, "_inflate", count)
    with XzFile(io.BytesIO(pack(PLAIN, SIZE)), 4) as file:
        assert file.read(1) == PLAIN[:1]
        assert sum(held) <= most
        assert file.read() == PLAIN[1:]
    assert bool(held) == (most > 1)


@pytest.mark.parametrize("most", [1, xz.MOST])
def test_a_dictionary_takes_no_more_memory_than_it_may(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(xz, "MOST", most)
    assert unpacked(pack(PLAIN, SIZE, dictionary=30)) == PLAIN
    with pytest.raises(lzma.LZMAError, match="Memory usage limit"):
        unpacked(pack(PLAIN, SIZE, dictionary=40))


def test_small_blocks_do_not_pile_up() -> None:
    source = io.BytesIO(pack(PLAIN[:50_000], 10))
    with XzFile(source, 2) as file:
        assert file.read(1) == PLAIN[:1]
        assert source.tell() < len(source.getvalue()) / 100
        assert file.read() == PLAIN[1:50_000]


def test_what_promises_to_be_much_is_read_as_it_comes() -> None:
    block = xz._Block(header=b"", rest=1000, unpadded=0, plain=xz.MOST)
    assert xz._small(block)
    assert not xz._small(replace(block, plain=xz.MOST + 1))
    assert not xz._small(replace(block, rest=1 << 40))
    assert not xz._small(replace(block, rest=100_000, plain=0))


def test_every_damage_is_found() -> None:
    good = pack(PLAIN[:250_000], SIZE)
    rng = random.Random(2)
    ends = [*range(40), *(len(good) - 1 - place for place in range(60))]
    for place in [*ends, *(rng.randrange(len(good)) for _ in range(60))]:
        bad = bytearray(good)
        bad[place] ^= 1 << rng.randrange(8)
        with pytest.raises((lzma.LZMAError, EOFError)):
            unpacked(bytes(bad))


@settings(max_examples=20, deadline=None)
@given(cut=st.floats(0, 1, exclude_max=True), size=st.sampled_from([0, SIZE]))
def test_a_file_that_was_cut_off_is_refused(cut: float, size: int) -> None:
    good = pack(PLAIN[:150_000], size) if size else lzma.compress(PLAIN[:150_000])
    with pytest.raises((lzma.LZMAError, EOFError)):
        unpacked(good[: int(len(good) * cut)])


def test_blocks_that_were_left_out_or_doubled_are_missed() -> None:
    good = pack(PLAIN[:200_000], SIZE)
    block = xz._told(good[:12], good[12 : 12 + (good[12] + 1) * 4])
    assert block is not None
    size = len(block.header) + block.rest
    with pytest.raises(lzma.LZMAError, match="index"):
        unpacked(good[:12] + good[12 + size :])
    with pytest.raises((lzma.LZMAError, EOFError)):
        unpacked(good[: 12 + size] + good[12:])


def test_it_may_be_closed_before_its_end() -> None:
    before = threading.active_count()
    with XzFile(io.BytesIO(pack(PLAIN, SIZE)), 2) as file:
        assert file.read(10) == PLAIN[:10]
    assert threading.active_count() == before
